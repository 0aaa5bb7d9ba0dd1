"""Runs a streaming query from start to end: shows progress, handles signals, formats failures.

The main thread polls the query at short intervals. The first SIGINT or SIGTERM requests a stop: the current
batch is finished, since its work is nearly done. The second signal stops the query within the batch: the next
run processes the rows of that batch again, and the sink does not write them twice.

Rule: a stop is a success. Finished batches stay committed, and the next run continues after them.
"""

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, StreamingQueryException

from penstock.errors import CommandFailed
from penstock.spark.pipelines.common.progress import Progress, parse_batch_progress

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

POLL_INTERVAL_S: Final = 0.2
CAUSES_MAX: Final = 20
TO_ALLOW_LOSS: Final = "set the option failOnDataLoss to false"
PENSTOCK_ERROR: Final = re.compile(r"^penstock\.[\w.]+: (?P<sentence>.+?)$", re.MULTILINE)
PYTHON_ERROR: Final = re.compile(r"^(?P<sentence>[A-Za-z_][\w.]*(?:Error|Exception): .+)$", re.MULTILINE)


class SparkEnded(CommandFailed):
    """Failure of a pipeline because Spark's JVM has ended."""

    def __init__(self) -> None:
        super().__init__("Spark was ended from outside; what was committed is kept, and the next run goes on")


class StopRequest:
    """Counter of stop requests from the user."""

    def __init__(self) -> None:
        self.requested = 0
        self.cut_short = False
        """Whether the stop left work undone."""

    def request(self) -> None:
        self.requested += 1


@contextmanager
def stop_on_signals(show_line: Callable[[str], None]) -> Iterator[StopRequest]:
    """Count SIGINT and SIGTERM as stop requests. Enter after Spark set its own handler at its start."""
    stop = StopRequest()

    def requested(number: int) -> None:
        stop.request()
        name = signal.Signals(number).name
        if stop.requested == 1:
            show_line(f"{name}: stopping when the batch that runs is done; once more to stop at once")
        else:
            show_line(f"{name}: stopping at once")

    with handling_signals(requested):
        yield stop


@contextmanager
def handling_signals(requested: Callable[[int], None]) -> Iterator[None]:
    """Call `requested` for each SIGINT and SIGTERM; restore the previous handlers at the end."""

    def handle(number: int, frame: FrameType | None) -> None:
        requested(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(
    query: "StreamingQuery",
    progress: Progress,
    stop: StopRequest,
    show_line: Callable[[str], None],
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Run until the query ends by itself or a stop is requested; raise CommandFailed if the query fails.

    `meanwhile` is called between polls, for other work of a pipeline.
    """
    with reporting_spark_errors():
        while not query.awaitTermination(POLL_INTERVAL_S):  # type: ignore[arg-type]
            _show_progress(query, progress, show_line)
            if stop.requested:
                _finish(query, progress, stop, show_line)
                break
            if meanwhile is not None:
                meanwhile()
        # The last batch may have finished between the last poll and the end of the query.
        _show_progress(query, progress, show_line)
        _end(query)


@contextmanager
def reporting_spark_errors() -> Iterator[None]:
    """Convert Spark's exceptions to CommandFailed with one sentence."""
    try:
        yield
    except StreamingQueryException as problem:
        raise CommandFailed(reason(problem)) from problem
    except PySparkException as problem:
        raise CommandFailed(f"Spark failed: {reason(problem)}") from problem
    except Py4JJavaError as problem:
        raise CommandFailed(f"Spark failed: {reason(problem)}") from problem
    # The connection to the JVM is gone, so the JVM's own error cannot be read.
    except (Py4JError, ConnectionError) as problem:
        raise SparkEnded from problem


@contextmanager
def reporting_data_loss() -> Iterator[None]:
    """Name the command's option, `--allow-loss`, in errors about records that retention removed."""
    try:
        yield
    except CommandFailed as problem:
        raise CommandFailed(str(problem).replace(TO_ALLOW_LOSS, "give --allow-loss")) from problem


def _end(query: "StreamingQuery") -> None:
    if query.isActive:
        query.stop()


def _finish(
    query: "StreamingQuery", progress: Progress, stop: StopRequest, show_line: Callable[[str], None]
) -> None:
    """Wait for the current batch, but not for the batch after it."""
    stop.cut_short = True
    batches = progress.batches
    while query.isActive and query.status["isTriggerActive"] and stop.requested == 1:
        _show_progress(query, progress, show_line)
        # The trigger may start the next batch at once, so the count shows that this batch ended.
        if progress.batches > batches:
            break
        time.sleep(POLL_INTERVAL_S / 4)
    query.stop()


def _show_progress(query: "StreamingQuery", progress: Progress, show_line: Callable[[str], None]) -> None:
    for report in query.recentProgress:
        if progress.add(parse_batch_progress(json.loads(report.json))):
            show_line(progress.line())


def reason(problem: Exception) -> str:
    """Return the relevant sentence from the stack traces of Java and of several Python processes."""
    texts = [str(problem), *_causes(problem)]
    for pattern in (PENSTOCK_ERROR, PYTHON_ERROR):
        if found := [sentence for text in texts for sentence in pattern.findall(text)]:
            # The last match is the cause nearest to the failed code.
            return str(found[-1])
    first = next((line for line in texts[-1].splitlines() if line.strip()), type(problem).__name__)
    return first[:500]


def _causes(problem: Exception) -> list[str]:
    """Return the messages of the Java exceptions behind `problem`, deepest last."""
    cause = getattr(problem, "_origin", None) or getattr(problem, "java_exception", None)
    texts: list[str] = []
    while cause is not None and len(texts) < CAUSES_MAX:
        texts.append(str(cause.getMessage() or ""))
        cause = cause.getCause()
    return texts
