"""A Spark action that can be given up: it runs in a thread while the main thread hears signals.

Spark's calls do not return before the work is done, and a signal is handled between two steps of Python.
So the main thread only waits, in short turns, and asks Spark to give up the work when it is told to.
"""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from penstock.spark.pipelines.common.running import TURN_S, Stop, failures_told, signals_heard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")


class GivenUp(Exception):
    """A stop was asked for, and the work was not finished."""


def done_by_spark(
    spark: "SparkSession", act: Callable[[], Result], stop: Stop, *, give_up_when_asked: int
) -> Result:
    """What `act` returns. CommandFailed if Spark fails, GivenUp once a stop was asked for so many times."""
    tag = f"penstock-{uuid.uuid4().hex}"

    def tagged() -> Result:
        spark.addTag(tag)
        with failures_told():
            return act()

    with ThreadPoolExecutor(1, "spark-action") as threads:
        work = threads.submit(tagged)
        while not wait([work], TURN_S).done:
            if stop.asked >= give_up_when_asked:
                spark.interruptTag(tag)
                wait([work])
                raise GivenUp
        return work.result()


@contextmanager
def stop_at_once_on_signals() -> Iterator[Stop]:
    """For work whose parts are worth nothing: the first signal ends it.

    To be entered after Spark has started, which sets a handler of its own.
    """
    stop = Stop()
    with signals_heard(lambda number: stop.ask()):
        yield stop
