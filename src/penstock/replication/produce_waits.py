"""Produce requests that wait for an offset.

A produce request is answered when the offset that its acks require has passed every record it wrote: the high
watermark (acks=all), or the leader's own end (acks=1), which is the flushed end under before_ack. A partition
has one `ProduceWaits` for each of the two, and releases the waits in the same call that moves the offset.

Rule 1: a wait ends once: when its offset is reached, or on a failure, or at its deadline, whichever is first.
Rule 2: ending a wait does not block: the wait passes itself to a callback.
"""

from collections import deque
from collections.abc import Callable

from penstock.errors import ErrorCode
from penstock.types import Offset


class ProduceWait:
    """One produce request that waits for the offset that its acks require, in each partition it wrote to."""

    __slots__ = ("_done", "deadline", "errors", "outstanding")

    def __init__(self, deadline: float, done: Callable[["ProduceWait"], None]) -> None:
        self._done: Callable[[ProduceWait], None] | None = done
        self.deadline = deadline
        self.outstanding: set[int] = set()
        """Numbers of the request's partitions whose records are not yet below that offset."""
        self.errors: dict[int, ErrorCode] = {}

    def partition_done(self, number: int) -> None:
        """End the wait for one partition; the last one ends the wait of the request."""
        self.outstanding.discard(number)
        if not self.outstanding:
            self._finish()

    def failed(self, number: int, code: ErrorCode) -> None:
        self.errors[number] = code
        self.partition_done(number)

    def expire(self) -> None:
        """End the wait at its deadline. The records are in the log and may still be committed."""
        for number in self.outstanding:
            self.errors[number] = ErrorCode.REQUEST_TIMED_OUT
        self.outstanding.clear()
        self._finish()

    def _finish(self) -> None:
        if self._done is not None:
            # Cleared before the call, so that a failure and an expiry in one call chain reply only once.
            done, self._done = self._done, None
            done(self)


class ProduceWaits:
    """Waits of one partition, for its high watermark or for the leader's own end, in the order of offsets."""

    __slots__ = ("queue",)

    def __init__(self) -> None:
        self.queue: deque[tuple[Offset, ProduceWait, int]] = deque()
        """Read by callers, because a check for waits is cheaper than a call. Only this class changes it."""

    def __len__(self) -> int:
        return len(self.queue)

    def add(self, end_offset: Offset, wait: ProduceWait, number: int) -> None:
        wait.outstanding.add(number)
        self.queue.append((end_offset, wait, number))

    def release(self, end_offset: Offset) -> None:
        """End the waits for records below `end_offset`."""
        queue = self.queue
        while queue and queue[0][0] <= end_offset:
            _, wait, number = queue.popleft()
            wait.partition_done(number)

    def expire(self, now: float) -> None:
        """End the waits whose deadline has passed."""
        expired = [entry for entry in self.queue if entry[1].deadline <= now]
        if expired:
            # Removed before the waits are ended: their callbacks may add new ones.
            self.queue = deque(entry for entry in self.queue if entry[1].deadline > now)
        for _, wait, _ in expired:
            wait.expire()

    def fail(self, code: ErrorCode) -> None:
        queue, self.queue = self.queue, deque()
        for _, wait, number in queue:
            wait.failed(number, code)
