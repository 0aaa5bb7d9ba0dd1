"""A query from its start to its end: progress told, signals heard, failures put into a sentence.

Strategy: the main thread waits for the query in short turns. The first SIGINT or SIGTERM asks for a stop:
the batch that runs is finished, since its work is nearly done. The second stops it there: its rows come
again in the next run, and are not there twice.

Rule: a stop is a success. What was done is done, and the next run goes on from there.
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
    def __init__(self) -> None:
        super().__init__("Spark was ended from outside; what was committed is kept, and the next run goes on")


class StopRequest:
    """Whether somebody asked for an end, and how often."""

    def __init__(self) -> None:
        self.requested = 0
        self.cut_short = False
        """Whether something was left undone because of it."""

    def request(self) -> None:
        self.requested += 1


@contextmanager
def stop_on_signals(show_line: Callable[[str], None]) -> Iterator[StopRequest]:
    """To be entered after Spark has started, which sets a handler of its own."""
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
    """Calls `requested` for each that asks for an end, in place of what was done about them before."""

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
    """Until the query ends by itself or a stop is asked for. CommandFailed if it fails.

    `meanwhile` is called between turns, for what a pipeline does beside its query.
    """
    with reporting_spark_errors():
        while not query.awaitTermination(POLL_INTERVAL_S):  # type: ignore[arg-type]
            _show_progress(query, progress, show_line)
            if stop.requested:
                _finish(query, progress, stop, show_line)
                break
            if meanwhile is not None:
                meanwhile()
        _show_progress(query, progress, show_line)
        _end(query)


@contextmanager
def reporting_spark_errors() -> Iterator[None]:
    """What Spark raises, as one sentence."""
    try:
        yield
    except StreamingQueryException as problem:
        raise CommandFailed(reason(problem)) from problem
    except PySparkException as problem:
        raise CommandFailed(f"Spark failed: {reason(problem)}") from problem
    except Py4JJavaError as problem:
        raise CommandFailed(f"Spark failed: {reason(problem)}") from problem
    except (Py4JError, ConnectionError) as problem:
        raise SparkEnded from problem


@contextmanager
def reporting_data_loss() -> Iterator[None]:
    """Records that retention removed: with the word that commands have for going on."""
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
    """Wait for the batch that runs now, but not for the one after it."""
    stop.cut_short = True
    batches = progress.batches
    while query.isActive and query.status["isTriggerActive"] and stop.requested == 1:
        _show_progress(query, progress, show_line)
        if progress.batches > batches:
            break
        time.sleep(POLL_INTERVAL_S / 4)
    query.stop()


def _show_progress(query: "StreamingQuery", progress: Progress, show_line: Callable[[str], None]) -> None:
    for report in query.recentProgress:
        if progress.add(parse_batch_progress(json.loads(report.json))):
            show_line(progress.line())


def reason(problem: Exception) -> str:
    """The sentence that matters, out of the traces of Java and of several Pythons."""
    texts = [str(problem), *_causes(problem)]
    for pattern in (PENSTOCK_ERROR, PYTHON_ERROR):
        if found := [sentence for text in texts for sentence in pattern.findall(text)]:
            return str(found[-1])
    first = next((line for line in texts[-1].splitlines() if line.strip()), type(problem).__name__)
    return first[:500]


def _causes(problem: Exception) -> list[str]:
    """What Java's exceptions behind this one say, the deepest last."""
    cause = getattr(problem, "_origin", None) or getattr(problem, "java_exception", None)
    texts: list[str] = []
    while cause is not None and len(texts) < CAUSES_MAX:
        texts.append(str(cause.getMessage() or ""))
        cause = cause.getCause()
    return texts
