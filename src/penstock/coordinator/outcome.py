"""What a command decides: records to append, and replies that wait until those are safe."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.errors import ErrorCode


class Now(NamedTuple):
    """Both clocks at one moment. Wall time goes into records, monotonic time into timers."""

    wall_ms: int
    monotonic: float


class StateRecord(NamedTuple):
    """One change of the state, as it stands in the internal topic. No value: the key is gone."""

    key: bytes
    value: bytes | None


class Pending:
    """A client that waits for an answer; it gets exactly one."""

    __slots__ = ("_finish", "_refusal")

    def __init__(self, finish: Callable[[Any], None], refusal: Callable[[ErrorCode, str], Any]) -> None:
        """`refusal` makes the reply that carries an error and its detail, in the form of its API."""
        self._finish: Callable[[Any], None] | None = finish
        self._refusal = refusal

    def answer(self, reply: Any) -> None:
        finish, self._finish = self._finish, None
        assert finish is not None, "a client is answered once"
        finish(reply)

    def refuse(self, code: ErrorCode, detail: str = "") -> None:
        self.answer(self._refusal(code, detail))

    def refusal(self, code: ErrorCode, detail: str = "") -> "Reply":
        """For an outcome: this client's answer is an error."""
        return Reply(self, self._refusal(code, detail))

    @property
    def is_answered(self) -> bool:
        return self._finish is None


class Reply(NamedTuple):
    pending: Pending
    content: Any


class Outcome(NamedTuple):
    records: Sequence[StateRecord] = ()
    """All of them are kept, or none."""
    replies: Sequence[Reply] = ()

    @property
    def size_bytes(self) -> int:
        return sum(len(key) + len(value or b"") for key, value in self.records)

    def __add__(self, other: object) -> "Outcome":
        assert isinstance(other, Outcome), "outcomes are joined with outcomes"
        return Outcome((*self.records, *other.records), (*self.replies, *other.replies))


NOTHING = Outcome()
