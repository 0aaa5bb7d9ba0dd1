"""The outcome of a command: records to append, and replies that wait until the records are committed."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from penstock.errors import ApiError, ErrorCode
from penstock.protocol.batches import HEADER_BYTES

_RECORD_BYTES: Final = 24
"""Upper bound of a record's overhead in a batch, beside its key and value."""


class Now(NamedTuple):
    """A reading of both clocks at one moment. Wall time goes into records, monotonic time into timers."""

    wall_ms: int
    monotonic: float


class StateRecord(NamedTuple):
    """One change of the state, as a record of the internal topic. A value of None is a tombstone."""

    key: bytes
    value: bytes | None

    @property
    def size_bytes(self) -> int:
        return _RECORD_BYTES + len(self.key) + len(self.value or b"")


class WaitingRequest:
    """A client request that waits for its reply. It gets exactly one."""

    __slots__ = ("_cancel", "_finish", "_rejection")

    def __init__(
        self,
        finish: Callable[[Any], None],
        rejection: Callable[[ErrorCode, str], Any],
        cancel: Callable[[], None] = lambda: None,
    ) -> None:
        """`rejection` builds the error reply of the request's API from an error code and a detail.

        `cancel` ends the request when not even an error reply can be sent.
        """
        self._finish: Callable[[Any], None] | None = finish
        self._rejection = rejection
        self._cancel = cancel

    def complete(self, reply: Any) -> None:
        """Send the reply. An exception of `finish` is passed on, and the request keeps waiting."""
        # Cleared before the call: a reply that is sent while `finish` runs must fail the assertion.
        finish, self._finish = self._finish, None
        assert finish is not None, "a client is answered once"
        try:
            finish(reply)
        except BaseException:
            self._finish = finish
            raise

    def cancel(self) -> None:
        self._finish = None
        self._cancel()

    def reject(self, code: ErrorCode, detail: str = "") -> None:
        self.complete(self._rejection(code, detail))

    def rejection(self, code: ErrorCode, detail: str = "") -> "Reply":
        """Build an error reply to this request, to be part of an outcome."""
        return Reply(self, self._rejection(code, detail))

    @property
    def is_completed(self) -> bool:
        return self._finish is None


class Reply(NamedTuple):
    pending: WaitingRequest
    content: Any


class CommandOutcome(NamedTuple):
    records: Sequence[StateRecord] = ()
    """The records of one command: they are one batch, so the log keeps all of them or none."""
    replies: Sequence[Reply] = ()

    @property
    def size_bytes(self) -> int:
        return sum(record.size_bytes for record in self.records)

    @property
    def batch_bytes(self) -> int:
        """Size of a batch of this outcome alone, rounded up a little."""
        return HEADER_BYTES + self.size_bytes

    def __add__(self, other: object) -> "CommandOutcome":
        assert isinstance(other, CommandOutcome), "outcomes are joined with outcomes"
        return CommandOutcome((*self.records, *other.records), (*self.replies, *other.replies))


EMPTY_OUTCOME = CommandOutcome()


def not_writable() -> ApiError:
    """Rejection of a command that would write, by the read-only view of a state machine. Clients retry it."""
    return ApiError(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        "nothing can be written: the disk is full, or too few replicas are in sync",
    )
