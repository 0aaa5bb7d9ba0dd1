"""The process that cleans compacted logs: `python -m penstock.broker.cleaner_main`.

It reads segments and writes `.cleaned` files beside them, and knows nothing of brokers. Whatever it
meets is an answer; it never decides what happens to a log. Between two answers it remembers where it
is in the one cleaning that was begun.
"""

import time
from collections.abc import Callable, Iterator

import msgspec

from penstock.host.child_process import serve_questions
from penstock.host.os_disk import OsDisk
from penstock.log.cleaning import clean
from penstock.log.cleaning_job import FAILURES, Answer, Cleaned, Question, Step

NICENESS = 10


class Cleanings:
    """One at a time."""

    def __init__(self) -> None:
        self._steps: Iterator[Step] = iter(())

    def answer(self, question: bytes) -> bytes:
        job = msgspec.msgpack.decode(question, type=Question).job
        if job is not None:
            self._steps = clean(OsDisk(), job, pace_of(job.bytes_per_second_max))
        try:
            step = next(self._steps)
        except tuple(FAILURES.values()) as failure:
            result = Answer(failure=(type(failure).__name__, str(failure)))
        else:
            result = Answer(cleaned=step) if isinstance(step, Cleaned) else Answer(replacement=step)
        if result.replacement is None:
            self._steps = iter(())  # the keys it has learned take much memory
        return msgspec.msgpack.encode(result)


def pace_of(bytes_per_second_max: float) -> Callable[[int], None]:
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
    serve_questions(Cleanings().answer, niceness=NICENESS)
