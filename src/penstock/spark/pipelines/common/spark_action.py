"""Interruptible Spark action: the action runs in a thread while the main thread handles signals.

A Spark call does not return before its work is done, and Python handles a signal only between two bytecode
steps of the main thread. So the main thread only waits, at short intervals, and interrupts the Spark action
after a stop request.
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
    """Raised when a stop was requested and the action was not finished."""


def run_spark_action(
    spark: "SparkSession", act: Callable[[], Result], stop: StopRequest, *, stops_to_interrupt: int
) -> Result:
    """Return what `act` returns.

    Raises CommandFailed if Spark fails, and RunInterrupted after `stops_to_interrupt` stop requests.
    """
    tag = f"penstock-{uuid.uuid4().hex}"

    def tagged() -> Result:
        # The tag belongs to the thread that adds it, so `act` must run in this thread.
        spark.addTag(tag)
        with reporting_spark_errors():
            return act()

    with ThreadPoolExecutor(1, "spark-action") as threads:
        work = threads.submit(tagged)
        while not wait([work], POLL_INTERVAL_S).done:
            if stop.requested >= stops_to_interrupt:
                spark.interruptTag(tag)
                # Spark must have ended the jobs before the session is used or stopped.
                wait([work])
                raise RunInterrupted
        return work.result()


@contextmanager
def stop_at_once_on_signals() -> Iterator[StopRequest]:
    """Request a stop at the first signal, for actions whose partial results are useless.

    Enter it after Spark has started, since Spark sets its own handler.
    """
    stop = StopRequest()
    with handling_signals(lambda number: stop.request()):
        yield stop
