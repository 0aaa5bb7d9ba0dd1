"""Subscriptions by regular expression: RE2 syntax, matched against the whole topic name, as in Kafka.

RE2 takes time proportional to the expression and the text: no expression can run for ever. But a large
expression against ten thousand topics would block the event loop. So a resolution runs in chunks, one per
heartbeat, and each chunk does a bounded amount of work. With a few thousand topics an ordinary expression
takes one chunk.

Rule 1: until a resolution is complete, the previous matches stay in force.
Rule 2: expressions that compile to more than a fixed size are rejected: INVALID_REGULAR_EXPRESSION.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final, NamedTuple

from penstock.errors import ApiError, ErrorCode

REGEX_BYTES_MAX: Final = 4096
"""Limit on an expression. Topic names are much shorter; and the expression must fit a record key."""
REGEXES_PER_GROUP_MAX: Final = 64
"""Limit on distinct expressions. Members mostly use the same one, or two during a change."""
_COMPILED_BYTES_MAX: Final = 256 * 1024
"""Limit on RE2's program and its cache of states. A larger cache slows down the hostile expressions, which
need many states."""
REGEX_CHUNK_WORK_MAX: Final = 10_000_000
"""Work units of one chunk: about twenty milliseconds."""
_WORK_PER_NAME: Final = 4_500
"""Work units per topic name, beside the matching itself."""


class ResolvedRegularExpression(NamedTuple):
    """Topics that an expression matched at its last resolution."""

    topics: frozenset[str]
    version: int
    """Number of resolutions that changed the matches."""
    timestamp_ms: int


@cache
def _re2() -> Any:
    """Import RE2 on first use: most brokers never need it."""
    import re2

    return re2


def _options() -> Any:
    options = _re2().Options()
    options.max_mem = _COMPILED_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    return options


def compile_regex(regex: str) -> Any:
    """Compile an expression, or raise ApiError."""
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
    """A resolution in progress."""

    def __init__(self, regex: str, names: Iterable[str], chunk_work_max: int = REGEX_CHUNK_WORK_MAX) -> None:
        self._chunk_work_max = chunk_work_max
        self._expression = compile_regex(regex)
        self._size: int = self._expression.programsize
        self._remaining = list(names)
        self._found: list[str] = []

    @property
    def memory_bytes(self) -> int:
        """Estimated memory, at most."""
        return _COMPILED_BYTES_MAX + self._remaining.__sizeof__() + self._found.__sizeof__()

    def run_chunk(self) -> bool:
        """Match some more names. True: all names are done."""
        units = 0
        matches = self._expression.fullmatch
        while self._remaining and units < self._chunk_work_max:
            name = self._remaining.pop()
            # RE2's work is proportional to program size times text length.
            units += _WORK_PER_NAME + len(name) * self._size
            if matches(name):
                self._found.append(name)
        return not self._remaining

    def topics(self, can_describe: Callable[[str], bool]) -> frozenset[str]:
        """Matching topics that the client may describe."""
        assert not self._remaining, "the resolution is not complete"
        return frozenset(filter(can_describe, self._found))
