"""What a command decides: records to append, and replies that wait until those are safe."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from penstock.errors import ErrorCode
from penstock.protocol.batches import HEADER_BYTES

_RECORD_BYTES: Final = 24
"""What a record takes up in a batch beside its key and value, at the most."""


class Now(NamedTuple):
    """Both clocks at one moment. Wall time goes into records, monotonic time into timers."""

    wall_ms: int
    monotonic: float


class StateRecord(NamedTuple):
    """One change of the state, as it stands in the internal topic. No value: the key is gone."""

    key: bytes
    value: bytes | None

    @property
    def size_bytes(self) -> int:
        return _RECORD_BYTES + len(self.key) + len(self.value or b"")


class WaitingRequest:
    """A client that waits for an answer; it gets exactly one."""

    __slots__ = ("_cancel", "_finish", "_rejection")

    def __init__(
        self,
        finish: Callable[[Any], None],
        rejection: Callable[[ErrorCode, str], Any],
        cancel: Callable[[], None] = lambda: None,
    ) -> None:
        """`rejection` makes the reply that carries an error and its detail, in the form of its API.

        `cancel` ends the wait of somebody to whom not even that can be said.
        """
        self._finish: Callable[[Any], None] | None = finish
        self._rejection = rejection
        self._cancel = cancel

    def complete(self, reply: Any) -> None:
        """What `finish` raises is passed on, and the client waits as before."""
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
        """For an outcome: this client's answer is an error."""
        return Reply(self, self._rejection(code, detail))

    @property
    def is_completed(self) -> bool:
        return self._finish is None


class Reply(NamedTuple):
    pending: WaitingRequest
    content: Any


class CommandOutcome(NamedTuple):
    records: Sequence[StateRecord] = ()
    """All of them are kept, or none."""
    replies: Sequence[Reply] = ()
    is_divisible: bool = False
    """Each record may be kept without those behind it: they need not fit one batch together."""

    @property
    def batch_bytes_min(self) -> int:
        """What must fit a batch at the least, and a little more."""
        sizes = (record.size_bytes for record in self.records)
        return HEADER_BYTES + (max(sizes, default=0) if self.is_divisible else sum(sizes))

    @property
    def size_bytes(self) -> int:
        return sum(record.size_bytes for record in self.records)

    @property
    def batch_records_min(self) -> int:
        """How many records must be in one batch at the least."""
        return min(1, len(self.records)) if self.is_divisible else len(self.records)

    def __add__(self, other: object) -> "CommandOutcome":
        assert isinstance(other, CommandOutcome), "outcomes are joined with outcomes"
        is_divisible = all(part.is_divisible for part in (self, other) if part.records)
        return CommandOutcome((*self.records, *other.records), (*self.replies, *other.replies), is_divisible)


EMPTY_OUTCOME = CommandOutcome()
