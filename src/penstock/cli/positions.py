"""Positions in a log as users write them: earliest, an offset, a date, a duration before now.

earliest, latest, max-timestamp
15m, 15m-ago, 1h30m, 7d         that long before now
2026-03-01, 2026-03-01T12:00Z   that time; without a zone, the zone of this machine
1250                            an offset, or milliseconds since 1970, depending on the option
"""

import re
from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from typing import Final, NamedTuple

from penstock.limits import DAY_MS, HOUR_MS, LONG_MAX, MINUTE_MS, SECOND_MS


class PositionKind(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    MAX_TIMESTAMP = "max-timestamp"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"


class PositionSpec(NamedTuple):
    kind: PositionKind
    number: int = 0
    """Offset, or milliseconds since 1970."""


_UNITS_MS: Final = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}
_PART: Final = re.compile(r"([0-9]{1,15})(ms|s|m|h|d|w)", re.ASCII)
_DURATION: Final = re.compile(rf"((?:{_PART.pattern})+)(-ago)?", re.ASCII)
_NUMBERS: Final = {PositionKind.OFFSET: "an offset", PositionKind.TIMESTAMP: "milliseconds since 1970"}
_WORDS: Final = {
    kind.value: kind for kind in (PositionKind.EARLIEST, PositionKind.LATEST, PositionKind.MAX_TIMESTAMP)
}


def parse_position(
    text: str, now_ms: int, *, number_is: PositionKind, words: Sequence[str] = tuple(_WORDS)
) -> PositionSpec:
    """Parse a position; raise ValueError with a readable sentence for other text."""
    text = text.strip()
    if text in words:
        return PositionSpec(_WORDS[text])
    if text.isascii() and text.isdigit():
        return _bounded(PositionSpec(number_is, int(text)), text)
    if (duration_ms := parse_duration(text)) is not None:
        return PositionSpec(PositionKind.TIMESTAMP, max(now_ms - duration_ms, 0))
    try:
        seconds = datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text!r} is no place in a log: give {_NUMBERS[number_is]}, a time (2026-03-01T12:00Z), "
            f"how long ago (15m, 1h30m, 7d), {', '.join(words[:-1])} or {words[-1]}"
        ) from None
    return _bounded(PositionSpec(PositionKind.TIMESTAMP, round(seconds * 1000)), text)


def parse_duration(text: str) -> int | None:
    """Return the milliseconds of 15m, 1h30m or 7d, with or without -ago; None for other text."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    return sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(found[1]))


def _bounded(position: PositionSpec, text: str) -> PositionSpec:
    if not 0 <= position.number <= LONG_MAX:
        if position.kind is PositionKind.OFFSET:
            raise ValueError(f"{text!r} is no offset: they go from 0 to {LONG_MAX}")
        raise ValueError(f"{text!r} is no time of a record: they go from 1970 on, to {LONG_MAX} ms after")
    return position
