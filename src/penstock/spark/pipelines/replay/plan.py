"""Planning of a replay: the next slice, its rate limit, and the recorded progress. Pure.

A replay advances through the offsets of all partitions of the table side by side, in slices. A slice is sent
whole and then recorded. So however a run ends, at most one slice is sent again.

Rule 1: the range of a replay is resolved once, at its first start, and is part of the recorded state.
        `--start 24h` would mean another time at each start; a resumed run uses the times of the first run.
        Rows that are added to the table later are not in the range.
Rule 2: slices of one partition are in offset order and do not overlap.
Rule 3: offsets that no file holds are skipped, however many they are.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.errors import CommandFailed, CorruptData
from penstock.spark.lake.lake_table import OffsetSpan
from penstock.spark.source.offsets import from_document, limit_offsets, to_document
from penstock.types import TopicPartition

SLICE_S: Final = 2.0
"""Duration of a slice under a rate limit: shorter slices would mostly be overhead."""
GROWTH_MAX: Final = 10
LAYOUT: Final = 2


class Bound(NamedTuple):
    """Start or end of a range of offsets or times; without values, unbounded."""

    text: str = ""
    """Text as the user gave it."""
    offset: int | None = None
    """Offset for every partition."""
    offsets: Mapping[TopicPartition, int] = {}
    timestamp_ms: int | None = None

    def offset_in(self, partition: TopicPartition, default: int) -> int:
        """Return the bound's offset in the partition, or the default if the bound has none there."""
        if partition in self.offsets:
            return self.offsets[partition]
        return default if self.offset is None else self.offset


class FileOffsets(NamedTuple):
    """Offsets of one partition in one file."""

    path: str
    partition: TopicPartition
    first: int
    last: int
    rows: int


class ReplaySlice(NamedTuple):
    """Offsets that are sent in one step, and the files that hold them."""

    spans: dict[TopicPartition, OffsetSpan]
    files: tuple[str, ...]

    @property
    def offsets(self) -> int:
        return sum(span.end - span.start for span in self.spans.values())


class TimeRange(NamedTuple):
    """Timestamp range of the replayed rows, in milliseconds since 1970. None: unbounded on that side."""

    start_ms: int | None = None
    """Inclusive."""
    end_ms: int | None = None
    """Exclusive."""


class ReplayState(NamedTuple):
    """Range of a replay, and its progress."""

    next: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    times: TimeRange = TimeRange()
    rows: int = 0
    bytes: int = 0
    slices: int = 0

    @property
    def left(self) -> int:
        """Return the number of offsets left; some of them may have no row."""
        return sum(max(end - self.next[partition], 0) for partition, end in self.ends.items())

    def after(self, sent: ReplaySlice, rows: int, size: int) -> "ReplayState":
        reached = {partition: span.end for partition, span in sent.spans.items()}
        return self._replace(
            next=self.next | reached, rows=self.rows + rows, bytes=self.bytes + size, slices=self.slices + 1
        )

    def finished(self) -> "ReplayState":
        """Return the state at the end: offsets may be left, but they have no rows."""
        return self._replace(next=dict(self.ends))

    def document(self) -> dict[str, Any]:
        counts = {"rows": self.rows, "bytes": self.bytes, "slices": self.slices}
        times = self.times._asdict()
        offsets = {"next": to_document(self.next), "ends": to_document(self.ends)}
        return {"layout": LAYOUT, **offsets, "times": times, **counts}


def parse_replay_state(document: Mapping[str, Any], place: str) -> ReplayState:
    """Parse a recorded state; raises CorruptData, or CommandFailed for another version of Penstock."""
    try:
        _check_layout(document["layout"], place)
        state = ReplayState(
            from_document(document["next"]),
            from_document(document["ends"]),
            TimeRange(_ms(document["times"]["start_ms"]), _ms(document["times"]["end_ms"])),
            int(document["rows"]),
            int(document["bytes"]),
            int(document["slices"]),
        )
        # `left` and `next_slice` look up the partitions of one map in the other.
        if state.next.keys() != state.ends.keys():
            raise ValueError("it names other partitions as the place to go on than as the end")
    except (KeyError, TypeError, ValueError) as problem:
        raise CorruptData(f"{place} is not what was written there: {problem!r}") from problem
    return state


def _check_layout(layout: Any, place: str) -> None:
    if not isinstance(layout, int):
        raise TypeError(f"layout is {layout!r}")
    if layout != LAYOUT:
        raise CommandFailed(
            f"{place} is of {'an earlier' if layout < LAYOUT else 'a later'} version of Penstock: finish the "
            "replay with that version, or begin anew with another --name or --checkpoint"
        )


def _ms(value: Any) -> int | None:
    return None if value is None else int(value)


def initial_state(file_offsets: Iterable[FileOffsets], start: Bound, end: Bound) -> ReplayState:
    """Return the state before anything is sent."""
    spans: dict[TopicPartition, OffsetSpan] = {}
    for each in file_offsets:
        known = spans.get(each.partition, OffsetSpan(each.first, each.last + 1))
        spans[each.partition] = OffsetSpan(min(known.start, each.first), max(known.end, each.last + 1))
    # A bound outside of the table is clamped to the rows that the table has.
    first = {partition: max(span.start, start.offset_in(partition, 0)) for partition, span in spans.items()}
    last = {partition: min(span.end, end.offset_in(partition, span.end)) for partition, span in spans.items()}
    wanted = [partition for partition in sorted(spans) if first[partition] < last[partition]]
    return ReplayState(
        {partition: first[partition] for partition in wanted},
        {partition: last[partition] for partition in wanted},
        TimeRange(start.timestamp_ms, end.timestamp_ms),
    )


def next_slice(
    state: ReplayState, file_offsets: Iterable[FileOffsets], offsets_max: int
) -> ReplaySlice | None:
    """Return the next slice; None when everything is sent."""
    pending = [
        each
        for each in file_offsets
        if each.partition in state.ends
        and max(each.first, state.next[each.partition]) < min(each.last + 1, state.ends[each.partition])
    ]
    if not pending:
        return None
    starts: dict[TopicPartition, int] = {}
    for each in pending:
        start = max(each.first, state.next[each.partition])
        starts[each.partition] = min(start, starts.get(each.partition, start))
    ends = {partition: state.ends[partition] for partition in starts}
    waiting = {partition: ends[partition] - start for partition, start in starts.items()}
    # The slice is shared out by what each partition has left, so that no partition starves.
    until = limit_offsets(starts, ends, waiting, offsets_max)
    spans = {
        partition: OffsetSpan(start, until[partition])
        for partition, start in starts.items()
        if start < until[partition]
    }
    files = [
        each.path
        for each in pending
        if (span := spans.get(each.partition)) is not None and each.first < span.end
    ]
    return ReplaySlice(spans, tuple(dict.fromkeys(files)))


class ReplayThrottle:
    """Throttle of a replay: sets the number of offsets in a slice, and the pause after it."""

    def __init__(self, rows_per_s: float | None, rows_max: int) -> None:
        self._rows_per_s = rows_per_s
        self._rows_max = rows_max
        self._rows = rows_max if rows_per_s is None else min(rows_max, max(int(rows_per_s * SLICE_S), 1))
        self._earned_s = 0.0
        self.offsets_max = self._rows

    def after_slice(self, *, offsets: int, rows: int, elapsed_s: float) -> float:
        """Count a slice that was sent, and return the seconds to pause. The run began `elapsed_s` ago."""
        # If few rows pass the filter, or many offsets have no row, a slice gets more offsets. The number
        # grows step by step, since all rows of the next offsets may pass.
        needed = offsets * self._rows // rows if rows else self._rows_max
        self.offsets_max = max(min(needed, self.offsets_max * GROWTH_MAX, self._rows_max), 1)
        if self._rows_per_s is None:
            return 0.0
        # Time that was lost while Spark was slow is not made up for in a burst, except for one slice.
        self._earned_s = max(self._earned_s, elapsed_s - SLICE_S) + rows / self._rows_per_s
        return max(self._earned_s - elapsed_s, 0.0)
