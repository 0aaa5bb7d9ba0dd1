"""From a time to an offset.

Timestamps need not ascend, so the answer is defined by the first record, in offset order, whose
timestamp is at or after the asked one. Segments and batches whose newest timestamp is older are
skipped by their index entry or header; only the batch that holds the answer is opened.

All of this blocks; it runs in a worker thread on values made for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import CorruptData
from penstock.host.disk import File
from penstock.limits import DECOMPRESSED_BYTES_MAX
from penstock.log.reading import Loaded, SegmentView, check_stored, find_batch
from penstock.log.segment import Segment
from penstock.protocol import records
from penstock.protocol.batches import HEADER_BYTES, BatchHeader, parse_header
from penstock.types import Offset


class TimedOffset(NamedTuple):
    offset: Offset
    timestamp: int


class TimedSegment(NamedTuple):
    view: SegmentView
    segment: Segment
    """Asked only for its newest timestamp, which may have to be read from disk."""

    @property
    def newest_timestamp(self) -> int:
        return self.segment.newest_timestamp


class TimeLookup(NamedTuple):
    segments: Sequence[TimedSegment]
    start_offset: Offset
    end_offset: Offset

    def first_at_or_after(self, timestamp: int) -> TimedOffset | None:
        """Blocks. Raises CorruptData if the batch that should hold the answer is damaged."""
        for segment in self.segments:
            if segment.newest_timestamp >= timestamp and (found := self._in_segment(segment.view, timestamp)):
                return found if found.offset < self.end_offset else None
        return None

    def newest(self) -> TimedOffset | None:
        """The earliest record that has the largest timestamp of all."""
        best: TimedOffset | None = None
        for segment in self.segments:
            if best is not None and segment.newest_timestamp <= best.timestamp:
                continue
            found = self._newest_in_segment(segment.view)
            if found is not None and (best is None or found.timestamp > best.timestamp):
                best = found
        return best

    def _in_segment(self, view: SegmentView, timestamp: int) -> TimedOffset | None:
        file = view.disk.open(view.log_path)
        try:
            indexes = view.load_indexes(file)
            first = max(indexes.by_time.offset_before(timestamp) + 1, self.start_offset)
            position = find_batch(file, indexes.by_offset, Offset(first), view.size_bytes)
            while position < view.size_bytes:
                header = parse_header(file.read(position, HEADER_BYTES))
                if header.max_timestamp >= timestamp:
                    for timed in self._times(_opened(file, view, header, position), header):
                        if timed.timestamp >= timestamp:
                            return timed
                position += header.size
            return None
        finally:
            file.release()

    def _newest_in_segment(self, view: SegmentView) -> TimedOffset | None:
        file = view.disk.open(view.log_path)
        try:
            best: TimedOffset | None = None
            position = find_batch(file, view.load_indexes(file).by_offset, self.start_offset, view.size_bytes)
            while position < view.size_bytes:
                header = parse_header(file.read(position, HEADER_BYTES))
                if header.base_offset >= self.end_offset:
                    break
                if best is None or header.max_timestamp > best.timestamp:
                    for timed in self._times(_opened(file, view, header, position), header):
                        if best is None or timed.timestamp > best.timestamp:
                            best = timed
                position += header.size
            return best
        finally:
            file.release()

    def _times(self, batch: bytes, header: BatchHeader) -> Iterator[TimedOffset]:
        """Of the records of a batch that are within the log: its first ones may have been deleted.

        Batches are stored without being opened, so one may be found here that cannot be. That is what
        its producer sent, not damage: its header answers for it.
        """
        try:
            for record in records.iterate(batch, limit_bytes=DECOMPRESSED_BYTES_MAX):
                if record.offset >= self.start_offset:
                    yield TimedOffset(record.offset, record.timestamp)
        except CorruptData:
            yield TimedOffset(max(header.base_offset, self.start_offset), header.max_timestamp)


class TimeFound(NamedTuple):
    found: TimedOffset | None
    loaded: Sequence[Loaded] = ()


@dataclass(frozen=True, slots=True)
class TimeRead:
    """One lookup, for a worker thread."""

    lookup: TimeLookup
    timestamp: int | None
    """None: the newest record is looked for."""

    @property
    def segments(self) -> Sequence[SegmentView]:
        return [segment.view for segment in self.lookup.segments]

    def run(self) -> TimeFound:
        if self.timestamp is None:
            return TimeFound(self.lookup.newest())
        return TimeFound(self.lookup.first_at_or_after(self.timestamp))


def _opened(file: File, view: SegmentView, header: BatchHeader, position: int) -> bytes:
    batch = file.read(position, header.size)
    if len(batch) < header.size:
        raise CorruptData(f"{view.log_path} ends inside the batch at {position}")
    check_stored(batch, header, 0, f"{view.log_path} at {position}")
    return batch
