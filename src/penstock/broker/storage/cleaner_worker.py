"""The process that cleans compacted logs: `python -m penstock.broker.storage.cleaner_worker`.

It reads segments and writes `.cleaned` files beside them, and knows nothing of brokers. Whatever it
meets is an answer, even what nobody expected; it never decides what happens to a log. Between two
answers it remembers where it is in the one cleaning that was begun.
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
    """One at a time."""

    def __init__(self) -> None:
        self._steps: Iterator[CleaningStep] = iter(())

    def answer(self, question: bytes) -> bytes:
        try:
            result = self._next_step(msgspec.msgpack.decode(question, type=CleaningRequest))
        except tuple(FAILURES.values()) as failure:
            result = CleaningReply(failure=(type(failure).__name__, str(failure)))
        except Exception as mistake:
            # The root of the process: dying would tell nobody what it was.
            result = CleaningReply(failure=(CleanerFailed.__name__, _describe(mistake)))
        if result.replacement is None:
            self._steps = iter(())  # the keys it has learned take much memory
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
    """What it was, and then where."""
    told = f"{type(mistake).__name__}: {mistake}\n" + "".join(traceback.format_exception(mistake))
    return told[:DESCRIPTION_CHARACTERS_MAX]


def throttle_to(bytes_per_second_max: float) -> Callable[[int], None]:
    """Waits as long as the bytes so far should have taken."""
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
