"""Produce requests that wait for a position.

A produce is answered when the high watermark has passed everything it wrote. The partition tells
its waiters when that moves, in the same call that moves it.

Rule 1: a wait is over once, by whichever comes first of position, failure and deadline.
Rule 2: ending one never waits; it hands itself to a callback.
"""

from collections import deque
from collections.abc import Callable

from penstock.errors import ErrorCode
from penstock.types import Offset


class ProduceWait:
    """One produce request, waiting for each partition it wrote to."""

    __slots__ = ("_done", "deadline", "errors", "outstanding")

    def __init__(self, deadline: float, done: Callable[["ProduceWait"], None]) -> None:
        self._done: Callable[[ProduceWait], None] | None = done
        self.deadline = deadline
        self.outstanding: set[int] = set()
        """Which of the request's partitions, by number, are not yet safe."""
        self.errors: dict[int, ErrorCode] = {}

    def reached(self, number: int) -> None:
        self.outstanding.discard(number)
        if not self.outstanding:
            self._finish()

    def failed(self, number: int, code: ErrorCode) -> None:
        self.errors[number] = code
        self.reached(number)

    def expire(self) -> None:
        """The records are in the log and may still become safe; the client only stops waiting."""
        for number in self.outstanding:
            self.errors[number] = ErrorCode.REQUEST_TIMED_OUT
        self.outstanding.clear()
        self._finish()

    def _finish(self) -> None:
        if self._done is not None:
            done, self._done = self._done, None
            done(self)


class ProduceWaits:
    """Of one partition, in the order of the offsets they wait for."""

    __slots__ = ("queue",)

    def __init__(self) -> None:
        self.queue: deque[tuple[Offset, ProduceWait, int]] = deque()
        """For a look whether anybody waits, which is cheaper than a call; changed only here."""

    def __len__(self) -> int:
        return len(self.queue)

    def add(self, end_offset: Offset, wait: ProduceWait, number: int) -> None:
        wait.outstanding.add(number)
        self.queue.append((end_offset, wait, number))

    def release(self, high_watermark: Offset) -> None:
        queue = self.queue
        while queue and queue[0][0] <= high_watermark:
            _, wait, number = queue.popleft()
            wait.reached(number)

    def expire(self, now: float) -> None:
        """Whoever has waited too long is told, and waits for nothing here any more."""
        expired = [entry for entry in self.queue if entry[1].deadline <= now]
        if expired:
            self.queue = deque(entry for entry in self.queue if entry[1].deadline > now)
        for _, wait, _ in expired:
            wait.expire()

    def fail(self, code: ErrorCode) -> None:
        queue, self.queue = self.queue, deque()
        for _, wait, number in queue:
            wait.failed(number, code)
