"""The process that cleans compacted logs: `python -m penstock.broker.cleaner_main`.

It reads segments and writes `.cleaned` files beside them, and knows nothing of brokers. Whatever it
meets is an answer; it never decides what happens to a log.
"""

import time
from collections.abc import Callable

import msgspec

from penstock.host.child_process import serve_questions
from penstock.host.os_disk import OsDisk
from penstock.log.cleaning import clean
from penstock.log.cleaning_job import FAILURES, Answer, Job

NICENESS = 10


def answer(question: bytes) -> bytes:
    job = msgspec.msgpack.decode(question, type=Job)
    try:
        result = Answer(cleaned=clean(OsDisk(), job, pace_of(job.bytes_per_second_max)))
    except tuple(FAILURES.values()) as failure:
        result = Answer(failure=(type(failure).__name__, str(failure)))
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
    serve_questions(answer, niceness=NICENESS)
