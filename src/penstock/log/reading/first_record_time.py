"""Timestamp of the first record at or after an offset, to the second.

The header of a batch has the timestamp of its first record and the largest of all. Where these are within a
second of each other, the header is enough and the batch is not decompressed: ten thousand groups may need
this, each for a record somewhere inside a batch. A batch that is too large is not decompressed either: the
largest timestamp in its header is then the result.

Blocks, as all reading does: it runs in a worker thread on values made for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.errors import CorruptData
from penstock.host.disk import File, opened
from penstock.limits import RECORD_TIME_EXPANDED_BYTES_MAX, RECORD_TIME_RECORDS_MAX, SECOND_MS
from penstock.log.partition_log import PartitionLog
from penstock.log.reading.cold_reading import (
    LoadedIndexes,
    SegmentView,
    find_batch,
    validate_stored_batch,
)
from penstock.protocol.batches import HEADER_BYTES, BatchHeader, parse_header
from penstock.protocol.records import timed_records
from penstock.types import Offset

PRECISION_MS: Final = 1 * SECOND_MS


class FirstRecordTime(NamedTuple):
    """Result of the lookup in one batch."""

    timestamp_ms: int | None
    """None: the batch has no record at or after the offset; the result is in the next batch."""
    next_offset: Offset
    """First offset of the next batch; the requested offset if no batch reaches it."""
    loaded: Sequence[LoadedIndexes]


@dataclass(frozen=True, slots=True)
class FirstRecordRead:
    """Lookup in one segment, for a worker thread."""

    segment: SegmentView
    offset: Offset
    records_max: int = RECORD_TIME_RECORDS_MAX
    expanded_bytes_max: int = RECORD_TIME_EXPANDED_BYTES_MAX
    """Largest batch that is decompressed."""

    @property
    def segments(self) -> Sequence[SegmentView]:
        return (self.segment,)

    def run(self) -> FirstRecordTime:
        """Run the lookup. Blocks. Raises CorruptData when the data on disk is not what was written."""
        segment = self.segment
        with opened(segment.disk, segment.log_path) as file:
            indexes = segment.load_indexes(file)
            loaded = (LoadedIndexes(segment, indexes),)
            position = find_batch(file, indexes.by_offset, self.offset, segment.size_bytes)
            if position >= segment.size_bytes:  # compaction may leave nothing behind the last batch
                return FirstRecordTime(None, self.offset, loaded)
            header = parse_header(file.read(position, HEADER_BYTES))
            timestamp_ms = self._time_in(file, position, header)
            return FirstRecordTime(timestamp_ms, header.next_offset, loaded)

    def _time_in(self, file: File, position: int, header: BatchHeader) -> int | None:
        if header.is_control or header.record_count == 0:
            return None  # control batches are not for consumers
        if header.has_log_append_time:
            return header.max_timestamp
        has_all = header.record_count == header.last_offset_delta + 1
        if has_all and 0 <= header.max_timestamp - header.base_timestamp <= PRECISION_MS:
            return header.base_timestamp
        if header.record_count > self.records_max:
            return header.max_timestamp
        batch = file.read(position, header.size)
        validate_stored_batch(batch, header, 0, f"{self.segment.log_path} at {position}")
        return self._time_of_record(batch, header)

    def _time_of_record(self, batch: bytes, header: BatchHeader) -> int | None:
        """Timestamp of the record; None if compaction removed the records at the end of the batch."""
        # The checksum is valid, so an error is what the producer sent, or the batch is too large to open.
        try:
            for found, timestamp in timed_records(batch, limit_bytes=self.expanded_bytes_max)[1]:
                if found >= self.offset:
                    return timestamp
        except CorruptData:
            return header.max_timestamp
        return None


def plan_first_record(log: PartitionLog, offset: Offset, end_offset: Offset) -> FirstRecordRead:
    """Make the lookup in the segment that holds `offset`."""
    assert log.log_start_offset <= offset < end_offset, "the segment lookup needs an offset that has a record"
    return FirstRecordRead(log.view(log.segment_holding(offset)), offset)
