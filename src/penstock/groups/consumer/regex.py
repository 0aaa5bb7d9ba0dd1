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
REGEX_CHUNK_WORK_MAX: Final = 10_000_000
"""About twenty milliseconds of work."""
_WORK_PER_NAME: Final = 4_500
"""What it costs to ask about one name besides the matching itself."""


class ResolvedRegularExpression(NamedTuple):
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


def compile_regex(regex: str) -> Any:
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


class RegexResolver:
    """A resolution under way."""

    __slots__ = ("_chunk_work_max", "_expression", "_found", "_remaining", "_size")

    def __init__(self, regex: str, names: Iterable[str], chunk_work_max: int = REGEX_CHUNK_WORK_MAX) -> None:
        self._chunk_work_max = chunk_work_max
        self._expression = compile_regex(regex)
        self._size: int = self._expression.programsize
        self._remaining = list(names)
        self._found: list[str] = []

    @property
    def memory_bytes(self) -> int:
        """About what it may take in memory."""
        return _COMPILED_BYTES_MAX + self._remaining.__sizeof__() + self._found.__sizeof__()

    def run_chunk(self) -> bool:
        """Go on for a while. True: every name has been looked at."""
        units = 0
        matches = self._expression.fullmatch
        while self._remaining and units < self._chunk_work_max:
            name = self._remaining.pop()
            units += _WORK_PER_NAME + len(name) * self._size
            if matches(name):
                self._found.append(name)
        return not self._remaining

    def topics(self, can_describe: Callable[[str], bool]) -> frozenset[str]:
        """Those that match, of which only those that the one who asks may know of."""
        assert not self._remaining, "the resolution is not complete"
        return frozenset(filter(can_describe, self._found))
