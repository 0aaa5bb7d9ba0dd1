"""A Spark action that can be given up: it runs in a thread while the main thread hears signals.

Spark's calls do not return before the work is done, and a signal is handled between two steps of Python.
So the main thread only waits, in short turns, and asks Spark to give up the work when it is told to.
"""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from penstock.spark.pipelines.common.query_run import (
    POLL_INTERVAL_S,
    StopRequest,
    handling_signals,
    reporting_spark_errors,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")


class RunInterrupted(Exception):
    """A stop was asked for, and the work was not finished."""


def run_spark_action(
    spark: "SparkSession", act: Callable[[], Result], stop: StopRequest, *, stops_to_interrupt: int
) -> Result:
    """What `act` returns. CommandFailed if Spark fails, GivenUp once a stop was asked for so many times."""
    tag = f"penstock-{uuid.uuid4().hex}"

    def tagged() -> Result:
        spark.addTag(tag)
        with reporting_spark_errors():
            return act()

    with ThreadPoolExecutor(1, "spark-action") as threads:
        work = threads.submit(tagged)
        while not wait([work], POLL_INTERVAL_S).done:
            if stop.requested >= stops_to_interrupt:
                spark.interruptTag(tag)
                wait([work])
                raise RunInterrupted
        return work.result()


@contextmanager
def stop_at_once_on_signals() -> Iterator[StopRequest]:
    """For work whose parts are worth nothing: the first signal ends it.

    To be entered after Spark has started, which sets a handler of its own.
    """
    stop = StopRequest()
    with handling_signals(lambda number: stop.request()):
        yield stop
