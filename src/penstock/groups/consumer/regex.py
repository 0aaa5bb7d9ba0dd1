"""Subscriptions by regular expression: RE2's syntax, against the whole name of a topic, as in Kafka.

RE2 takes time in proportion to the expression and the text, whatever they are: no expression can be
made to take for ever. But a large expression against ten thousand topics is much work in one turn of
the loop. So a resolution is made in turns, one for each heartbeat, and each turn does a bounded
amount of work. With a few thousand topics an ordinary expression takes one turn.

Rule 1: until a resolution is complete, what was known before holds.
Rule 2: expressions are compiled to a bounded size, or refused: INVALID_REGULAR_EXPRESSION.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final, NamedTuple

from penstock.errors import ApiError, ErrorCode

REGEX_BYTES_MAX: Final = 4096
"""Names of topics are much shorter; and it must fit the key of a record."""
REGEXES_PER_GROUP_MAX: Final = 64
"""Different ones. Members of a group mostly use the same, or two while it is being changed."""
_COMPILED_BYTES_MAX: Final = 256 * 1024
"""For RE2's program and its memory of states. More makes it slower where it matters: the hostile
expressions that need many states."""
TURN_UNITS_MAX: Final = 10_000_000
"""About twenty milliseconds of work."""
_NAME_UNITS: Final = 4_500
"""What it costs to ask about one name besides the matching itself."""


class Resolution(NamedTuple):
    """What an expression meant when it was looked at last."""

    topics: frozenset[str]
    version: int
    """How often it was resolved to something new."""
    timestamp_ms: int


@cache
def _re2() -> Any:
    """Loaded when the first expression comes: most brokers never see one."""
    import re2

    return re2


def _options() -> Any:
    options = _re2().Options()
    options.max_mem = _COMPILED_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    return options


def compiled(regex: str) -> Any:
    """Refuse what cannot be an expression."""
    if len(regex.encode()) > REGEX_BYTES_MAX:
        detail = f"a regular expression has at most {REGEX_BYTES_MAX} bytes"
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, detail)
    try:
        return _re2().compile(regex, _options())
    except _re2().error as problem:
        reason = problem.args[0] if problem.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{regex!r}: {text}") from problem


class Resolving:
    """A resolution under way."""

    __slots__ = ("_expression", "_found", "_left", "_size", "_turn_units_max")

    def __init__(self, regex: str, names: Iterable[str], turn_units_max: int = TURN_UNITS_MAX) -> None:
        self._turn_units_max = turn_units_max
        self._expression = compiled(regex)
        self._size: int = self._expression.programsize
        self._left = list(names)
        self._found: list[str] = []

    @property
    def kept_bytes(self) -> int:
        """About what it may take in memory."""
        return _COMPILED_BYTES_MAX + self._left.__sizeof__() + self._found.__sizeof__()

    def turn(self) -> bool:
        """Go on for a while. True: every name has been looked at."""
        units = 0
        matches = self._expression.fullmatch
        while self._left and units < self._turn_units_max:
            name = self._left.pop()
            units += _NAME_UNITS + len(name) * self._size
            if matches(name):
                self._found.append(name)
        return not self._left

    def topics(self, may_see: Callable[[str], bool]) -> frozenset[str]:
        """Those that match, of which only those that the one who asks may know of."""
        assert not self._left, "the resolution is not complete"
        return frozenset(filter(may_see, self._found))
