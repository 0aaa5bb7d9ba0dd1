"""The process that cleans compacted logs: `python -m penstock.broker.storage.cleaner_worker`.

The process reads segments and writes `.cleaned` files beside them. It does not depend on the broker. It
replies with every failure, even an unexpected one, and never decides what happens to a log. Between two
replies it keeps the position of the one cleaning that is under way.
"""

import time
import traceback
from collections.abc import Callable, Iterator

import msgspec

from penstock.host.child_process import serve_requests
from penstock.host.os_disk import OsDisk
from penstock.log.compaction.cleaner import clean
from penstock.log.compaction.cleaning_job import (
    FAILURES,
    CleanerFailed,
    CleaningReply,
    CleaningRequest,
    CleaningResult,
    CleaningStep,
)

NICENESS = 10
DESCRIPTION_CHARACTERS_MAX = 10_000


class CleaningServer:
    """Server of cleaning requests, one cleaning at a time."""

    def __init__(self) -> None:
        self._steps: Iterator[CleaningStep] = iter(())

    def answer(self, question: bytes) -> bytes:
        try:
            result = self._next_step(msgspec.msgpack.decode(question, type=CleaningRequest))
        except tuple(FAILURES.values()) as failure:
            result = CleaningReply(failure=(type(failure).__name__, str(failure)))
        except Exception as mistake:
            # This is the outermost frame of the process: if it died here, the broker would not learn the
            # reason.
            result = CleaningReply(failure=(CleanerFailed.__name__, _describe(mistake)))
        if result.replacement is None:
            self._steps = iter(())  # frees the key map, which takes much memory
        return msgspec.msgpack.encode(result)

    def _next_step(self, question: CleaningRequest) -> CleaningReply:
        if question.job is not None:
            self._steps = clean(OsDisk(), question.job, throttle_to(question.job.bytes_per_second_max))
        step = next(self._steps)
        return (
            CleaningReply(cleaned=step)
            if isinstance(step, CleaningResult)
            else CleaningReply(replacement=step)
        )


def _describe(mistake: Exception) -> str:
    """The error and then its traceback, limited in size."""
    told = f"{type(mistake).__name__}: {mistake}\n" + "".join(traceback.format_exception(mistake))
    return told[:DESCRIPTION_CHARACTERS_MAX]


def throttle_to(bytes_per_second_max: float) -> Callable[[int], None]:
    """A function that sleeps until the bytes so far have taken as long as the rate limit demands."""
    started, done = time.monotonic(), 0

    def pace(count: int) -> None:
        nonlocal done
        done += count
        ahead_s = done / bytes_per_second_max - (time.monotonic() - started)
        if ahead_s > 0:
            time.sleep(ahead_s)

    return pace


if __name__ == "__main__":
    serve_requests(CleaningServer().answer, niceness=NICENESS)
