"""What must be true of a partition, whatever happened to it.

The history holds every batch as it was appended. After a restart the log must be the beginning of
that, byte for byte, and reach at least as far as anybody was told that it is safe:

    flush policy before_ack     the high watermark, which readers and acknowledgements have seen
    flush policy interval, os   what was flushed
    a killed process            everything: the page cache survives it

Invariants hold after every event (`check`), validations after every restart and at the end.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from penstock.config.topic import FlushPolicy
from penstock.limits import DECOMPRESSED_BYTES_MAX
from penstock.log.producer_state import Producers
from penstock.log.reading.cold_reading import ColdRead
from penstock.protocol import records
from penstock.protocol.batches import parse_header
from penstock.replication.partition import Partition
from penstock.types import Offset

READ_BYTES = 2**30


class InvariantViolation(AssertionError):
    """A promise was broken."""


class AppendedBatch(NamedTuple):
    base_offset: int
    end_offset: int
    data: bytes


class History:
    """Of one partition, over all its lives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.batches: list[AppendedBatch] = []
        self.safe_end = 0
        """Nothing below may ever be lost."""
        self.start_acknowledged = 0
        self.start_seen = 0
        self.acknowledged: dict[int, bytes] = {}
        """Base offset and content without stamp of every batch that was acknowledged as safe."""
        self._producers = Producers()
        self._high_watermark = 0
        self._high_watermark_at_failure: int | None = None

    @property
    def end(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            raise InvariantViolation(f"{self.name}: {message}")

    # While it lives

    def appended(self, data: bytes) -> None:
        header = parse_header(data)
        self.require(header.base_offset == self.end, f"offset {header.base_offset} follows {self.end}")
        self.batches.append(AppendedBatch(header.base_offset, header.next_offset, data))
        if header.producer_id >= 0:
            self._producers.replay(header, header.base_offset)

    def check(self, partition: Partition) -> None:
        """After every event: cheap, and true at any moment."""
        log, high = partition.log, partition.high_watermark
        waits = partition.config.flush_policy is FlushPolicy.BEFORE_ACK
        flushed = log.flushed_end_offset
        sound = (
            self._high_watermark <= high <= (flushed if waits else log.log_end_offset)
            and log.recovery_point <= flushed <= log.log_end_offset == self.end
        )
        if not sound:
            raise InvariantViolation(
                f"{self.name}: {partition} {log}; it ended at {self.end}, {self._high_watermark}"
            )
        if partition.read_only is not None:
            self._high_watermark_at_failure = (
                self._high_watermark_at_failure if self._high_watermark_at_failure is not None else high
            )
            self.require(
                high == self._high_watermark_at_failure, "a record became safe on a disk that failed"
            )
        self._high_watermark = high
        self.start_seen = max(self.start_seen, log.log_start_offset)
        self.safe_end = max(self.safe_end, high if waits else flushed)

    def check_producers(self, partition: Partition) -> None:
        same = partition.log.producers.to_bytes() == self._producers.to_bytes()
        self.require(same, "the producers are not what the log says")

    def check_read(self, offset: int, data: bytes) -> int:
        """A reader got these batches for this offset. Returns where it goes on."""
        first = self._batch_index_of(offset)
        at = 0
        for batch in self.batches[first:]:
            if at == len(data):
                break
            same = data[at : at + len(batch.data)] == batch.data
            self.require(same, f"a reader at {offset} got other bytes than were written")
            at += len(batch.data)
            offset = batch.end_offset
        self.require(at == len(data), f"a reader got {len(data) - at} bytes past the end of the log")
        return offset

    def _batch_index_of(self, offset: int) -> int:
        return bisect_right(self.batches, offset, key=lambda batch: batch.end_offset)

    # After a restart

    def check_reopened(self, partition: Partition, *, power_was_lost: bool) -> None:
        """Compare what came back with what must have, and go on from there."""
        self.require(partition.offline is None, f"is refused as damaged: {partition.offline}")
        log = partition.log
        start, end = log.log_start_offset, log.log_end_offset
        if end == self.safe_end == 0 and power_was_lost:
            self.start_acknowledged = 0  # nothing was ever flushed, not even that there is a folder
        self.require(start >= self.start_acknowledged, f"starts at {start} although its records were deleted")
        self.require(start <= self.start_seen, f"starts at {start}, which nobody asked for")
        least = self.safe_end if power_was_lost else self.end
        self.require(end >= least, f"ends at {end}; records below {least} were safe")
        if start == end > 0 and partition.config.flush_policy is not FlushPolicy.BEFORE_ACK:
            self._restart_empty(partition)
            return
        self.batches = [batch for batch in self.batches if batch.end_offset <= end]
        self.require(self.end == end, f"ends at {end}, within a batch")
        self._compare(partition)
        self._producers = Producers()
        for batch in self.batches:
            if batch.data and (header := parse_header(batch.data)).producer_id >= 0:
                self._producers.replay(header, Offset(batch.base_offset))
        self.check_producers(partition)
        self._high_watermark, self._high_watermark_at_failure = 0, None

    def _restart_empty(self, partition: Partition) -> None:
        """Its start was moved past everything that survived: it is empty, and goes on from there."""
        log = partition.log
        self.batches = [batch for batch in self.batches if batch.end_offset <= log.log_end_offset]
        if self.end < log.log_end_offset:
            self.batches.append(AppendedBatch(self.end, log.log_end_offset, b""))
        self._producers = Producers.from_bytes(log.producers.to_bytes())
        self._high_watermark, self._high_watermark_at_failure = 0, None

    def _compare(self, partition: Partition) -> None:
        stored = b"".join(batches_of(partition))
        start = partition.log.log_start_offset
        kept = [batch for batch in self.batches if batch.end_offset > start]
        self.require(stored == b"".join(batch.data for batch in kept), "holds other bytes than were written")

    # At the end

    def validate(self, partition: Partition) -> None:
        self._compare(partition)
        self.check_producers(partition)
        present = {batch.base_offset: batch.data for batch in self.batches}
        for base_offset, data in self.acknowledged.items():
            found = present.get(base_offset, b"")
            self.require(
                found[16:] == data[16:], f"what was acknowledged at offset {base_offset} is not there"
            )
        self._validate_order()

    def _validate_order(self) -> None:
        """The records of each idempotent producer: once each, in the order they were sent."""
        last: dict[int, int] = {}
        for batch in self.batches:
            if not batch.data or (producer := parse_header(batch.data).producer_id) < 0:
                continue
            for record in records.iterate(batch.data, limit_bytes=DECOMPRESSED_BYTES_MAX):
                if record.value is None:
                    continue  # a tombstone, which has no number
                number = int(record.value.split(b".")[0])
                before = last.get(producer, -1)
                self.require(number > before, f"producer {producer}: record {number} follows {before}")
                last[producer] = number

    def first_at_or_after(self, timestamp: int, start: int, end: int) -> tuple[int, int] | None:
        """A linear scan: the answer that a lookup by time must give."""
        for batch in self.batches[self._batch_index_of(start) :]:
            if not batch.data or parse_header(batch.data).max_timestamp < timestamp:
                continue
            for record in records.iterate(batch.data, limit_bytes=DECOMPRESSED_BYTES_MAX):
                if record.offset >= end:
                    return None
                if record.offset >= start and record.timestamp >= timestamp:
                    return record.offset, record.timestamp
        return None


def batches_of(partition: Partition) -> Iterator[bytes]:
    """The whole log, as a reader with much patience gets it."""
    log = partition.log
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, log.log_end_offset, READ_BYTES, at_least_one=True)
        if isinstance(found, ColdRead):
            found = found.run().found
        assert found.next_offset > offset, f"a read at {offset} makes no progress"
        offset = found.next_offset
        yield bytes(found.data)
