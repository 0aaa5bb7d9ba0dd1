"""Planning of `penstock group reset`: parses the target and computes offsets. Sends no requests.

earliest, latest
offset:1234, or 1234
datetime:2026-11-15T10:00, or without the word; without a zone, the zone of this machine
duration:1h30m, duration:PT1H30M, or without the word: that long before now
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.cli.positions import PositionKind, PositionSpec, parse_position
from penstock.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from penstock.types import TopicPartition

_ISO_DURATION: Final = re.compile(
    r"P(?!$)(?:(?P<d>\d{1,9})D)?(?:T(?!$)(?:(?P<h>\d{1,9})H)?(?:(?P<m>\d{1,9})M)?(?:(?P<s>\d{1,9})S)?)?",
    re.ASCII | re.IGNORECASE,
)
_ISO_UNITS_MS: Final = {"d": DAY_MS, "h": HOUR_MS, "m": MINUTE_MS, "s": SECOND_MS}
_KINDS: Final = {
    "offset": PositionKind.OFFSET,
    "datetime": PositionKind.TIMESTAMP,
    "duration": PositionKind.TIMESTAMP,
}
_DURATION: Final = re.compile(r"[0-9]+[a-z].*", re.ASCII)


class TopicSelection(NamedTuple):
    topic: str
    partitions: Sequence[int] | None
    """None: all partitions."""


class OffsetMove(NamedTuple):
    partition: TopicPartition
    before: int | None
    """None: nothing was committed."""
    after: int
    note: str = ""


def parse_target(text: str, now_ms: int) -> PositionSpec:
    """Parse a reset target; raise ValueError with a readable sentence for other text."""
    word, colon, rest = text.partition(":")
    if not colon or word not in _KINDS:
        return parse_position(_without_iso(text), now_ms, number_is=PositionKind.OFFSET, words=_WORDS)
    try:
        position = parse_position(_without_iso(rest), now_ms, number_is=PositionKind.OFFSET)
    except ValueError:
        position = None
    is_duration = _DURATION.fullmatch(_without_iso(rest)) is not None
    if position is None or position.kind is not _KINDS[word] or (word == "duration") != is_duration:
        raise ValueError(f"{rest!r} is no {word}: try {_EXAMPLES[word]}")
    return position


_WORDS: Final = (PositionKind.EARLIEST.value, PositionKind.LATEST.value)
_EXAMPLES: Final = {
    "offset": "offset:1234",
    "datetime": "datetime:2026-11-15T10:00",
    "duration": "duration:1h30m or duration:PT1H30M",
}


def _without_iso(text: str) -> str:
    """Convert an ISO 8601 duration to the spelling of other commands; return other text unchanged."""
    found = _ISO_DURATION.fullmatch(text)
    if found is None:
        return text
    total_ms = sum(int(number) * _ISO_UNITS_MS[unit] for unit, number in found.groupdict().items() if number)
    return f"{total_ms}ms"


def parse_selection(text: str) -> TopicSelection:
    """Parse T, or T:0,2 for some of its partitions; raise ValueError with a readable sentence otherwise."""
    topic, colon, numbers = text.partition(":")
    if not topic:
        raise ValueError(f"{text!r} names no topic")
    if not colon:
        return TopicSelection(topic, None)
    parts = numbers.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ValueError(f"{text!r} is not TOPIC or TOPIC:PARTITION, as in orders or orders:0,2")
    return TopicSelection(topic, sorted({int(part) for part in parts}))


def plan_moves(
    position: PositionSpec,
    spans: Mapping[TopicPartition, tuple[int, int]],
    found: Mapping[TopicPartition, int | None],
    committed: Mapping[TopicPartition, int],
) -> list[OffsetMove]:
    """Plan a move for each partition of `spans`.

    `found` has the offset of the target time, or None without a record that new.
    """
    moves = []
    for partition, (start, end) in sorted(spans.items()):
        after, note = _target(position, start, end, found.get(partition))
        moves.append(OffsetMove(partition, committed.get(partition), after, note))
    return moves


def _target(position: PositionSpec, start: int, end: int, found: int | None) -> tuple[int, str]:
    if position.kind is PositionKind.EARLIEST:
        return start, ""
    if position.kind is PositionKind.LATEST:
        return end, ""
    if position.kind is PositionKind.TIMESTAMP:
        return (end, "no record is that new: the end") if found is None else (found, "")
    # The target is clamped to the log, so that a consumer does not start with OFFSET_OUT_OF_RANGE.
    if position.number < start:
        return start, f"{position.number} is gone: the start"
    if position.number > end:
        return end, f"{position.number} does not exist yet: the end"
    return position.number, ""
