"""The shared memory that one connection holds for incoming requests.

An unfinished frame takes what it needs from the budget of its size class, and waits if the budget is used up.
Bytes that were received although the connection is paused are counted at once, because they are in memory
already.

While other connections wait, a connection may be closed to free what it holds. `held_byte_seconds` ranks the
connections by bytes times the seconds they were held. A client that sends steadily costs nothing. A
connection that waits for memory itself costs nothing either, because it cannot continue.
"""

from collections import Counter
from collections.abc import Callable

from penstock.broker.network.memory_budget import MemoryBudget, MemoryBudgets
from penstock.limits import DECODED_REQUEST_BYTES, FRAME_BYTES_PER_SECOND_MIN
from penstock.protocol.connection import FrameReceiver


class FrameMemory:
    def __init__(
        self,
        budgets: MemoryBudgets,
        receiver: FrameReceiver,
        clock: Callable[[], float],
        pause_reading: Callable[[], None],
        resume_reading: Callable[[], None],
    ) -> None:
        self._budgets = budgets
        self._receiver = receiver
        self._clock = clock
        self._pause_reading = pause_reading
        self._resume_reading = resume_reading
        self._is_waiting = False
        self._taken: Counter[MemoryBudget] = Counter()
        """Bytes taken from the budgets of small and large frames."""
        self._wanted_bytes = 0
        """Requested for the unfinished frame, and not granted yet."""
        self._turn_bytes = 0
        """Reserved in the budget of decoded requests for the request that is handled next."""
        self._granted_at = 0.0
        self._granted_have_bytes = 0
        """When the unfinished frame was last granted memory, and how many of its bytes had been received
        then.
        """

    # Taking and releasing memory

    def move_to_own_buffer(self, rest: memoryview, need_bytes: int) -> None:
        """Move the received part of an unfinished frame to its own buffer; until memory is granted, set it
        aside.
        """
        if not self._budgets.small_frames.try_take(need_bytes):
            self.set_aside(rest)
            self._wait(self._budgets.small_frames, need_bytes - len(rest), self._frame_granted)
            return
        self._taken[self._budgets.small_frames] += need_bytes
        self._receiver.move_to_own_buffer(rest, need_bytes)
        self._note_grant()

    def set_aside(self, rest: memoryview) -> None:
        """Copy received bytes that must not be processed yet."""
        self._receiver.set_aside(rest)
        self._taken[self._budgets.small_frames] += len(rest)
        # Overdrawn, not taken: the bytes are in memory already, and rejecting them would lose part of a
        # request.
        self._budgets.small_frames.overdraw(len(rest))

    def grow(self) -> None:
        need_bytes = self._receiver.grow_bytes
        if self._growth_budget.try_take(need_bytes):
            self._grow(need_bytes)
        else:
            self._wait(self._growth_budget, need_bytes, self._frame_granted)

    @property
    def _growth_budget(self) -> MemoryBudget:
        return self._budgets.large_frames if self._receiver.is_large else self._budgets.small_frames

    def _grow(self, granted_bytes: int) -> None:
        self._taken[self._growth_budget] += granted_bytes
        self._receiver.grow()
        self._note_grant()

    def release_taken(self) -> None:
        """Return all memory of frames to the budgets."""
        # Taken out first: a release may let another frame of this connection take memory.
        taken, self._taken = self._taken, Counter()
        for budget, count in taken.items():
            budget.release(count)

    def drop(self) -> None:
        """Discard received bytes and cancel pending memory requests."""
        self._budgets.small_frames.forget(self._frame_granted)
        self._budgets.large_frames.forget(self._frame_granted)
        self._budgets.decoded.forget(self._turn_granted)
        self._receiver.take_set_aside()
        self._receiver.release_frame()
        self.release_taken()
        self.end_turn()

    # Waiting

    def _wait(self, budget: MemoryBudget, need_bytes: int, granted: Callable[[], None]) -> None:
        self._is_waiting = True
        self._wanted_bytes = need_bytes
        budget.wait(need_bytes, granted)
        self._pause_reading()
        self._budgets.on_shortage()

    def _frame_granted(self) -> None:
        if (held := self._receiver.take_set_aside()) is None:
            self._grow(self._wanted_bytes)
        else:
            self._taken[self._budgets.small_frames] += self._wanted_bytes
            self._receiver.move_to_own_buffer(held, len(held) + self._wanted_bytes)
            self._note_grant()
        self._end_wait()

    def _end_wait(self) -> None:
        self._is_waiting = False
        self._resume_reading()

    def _note_grant(self) -> None:
        self._granted_at = self._clock()
        self._granted_have_bytes = self._receiver.received_bytes

    def wait_for_turn(self) -> None:
        """Wait until the memory of requests without a reply allows another request to be handled."""
        self._wait(self._budgets.decoded, DECODED_REQUEST_BYTES, self._turn_granted)

    def _turn_granted(self) -> None:
        self._turn_bytes = self._wanted_bytes
        self._end_wait()

    def end_turn(self) -> None:
        if self._turn_bytes:
            self._budgets.decoded.release(self._turn_bytes)
            self._turn_bytes = 0

    @property
    def holds_large_frame(self) -> bool:
        """Whether a complete large frame is held and waits to be handled. Holding it again would copy it, and
        would count its bytes in the budget of small frames.
        """
        return self._taken[self._budgets.large_frames] > 0 and not self._receiver.is_unfinished

    # Ranking for eviction

    def taken_bytes(self, budget: MemoryBudget) -> int:
        return self._taken[budget]

    def waits_for_client(self, budget: MemoryBudget) -> bool:
        """Whether the connection holds part of a budget and only the client keeps it from continuing."""
        return self.taken_bytes(budget) > 0 and not self._is_waiting

    def held_byte_seconds(self, budget: MemoryBudget, now: float, read_at: float) -> float:
        """Held bytes times the seconds since `read_at` or the last grant; 0 while the frame arrives at the
        minimum rate.
        """
        # A connection that waits for memory cannot make progress, so its wait is not the client's fault.
        if self._is_waiting:
            return 0.0
        since = read_at
        if self._receiver.is_unfinished:
            came_bytes = self._receiver.received_bytes - self._granted_have_bytes
            if came_bytes >= (now - self._granted_at) * FRAME_BYTES_PER_SECOND_MIN:
                return 0.0
            since = self._granted_at
        grace_ms = self._budgets.memory_limits.grace_ms
        return held_byte_seconds(self.taken_bytes(budget), now - since, grace_ms=grace_ms)


def held_byte_seconds(held_bytes: int, seconds: float, *, grace_ms: int) -> float:
    """Bytes times seconds; 0 until `grace_ms` have passed."""
    return held_bytes * seconds if seconds * 1000 >= grace_ms else 0.0
