"""The invariants of one partition, whatever happens to it.

The history holds every batch as it was appended. After a restart the log must be a prefix of the history,
byte for byte, and reach at least as far as was reported to be safe:

    flush policy before_ack     the high watermark, which readers and acknowledgements depend on
    flush policy interval, os   the flushed end offset
    a killed process            the log end offset, because the page cache survives

`check` runs after every event, the validations after every restart and at the end.
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
    """An invariant does not hold."""


class AppendedBatch(NamedTuple):
    base_offset: int
    end_offset: int
    data: bytes


class History:
    """The history of one partition, over all lives of its broker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.batches: list[AppendedBatch] = []
        self.safe_end = 0
        """The offset below which no record may ever be lost."""
        self.start_acknowledged = 0
        self.start_seen = 0
        self.acknowledged: dict[int, bytes] = {}
        """By base offset: the content, without stamped fields, of every batch that was acknowledged as
        safe.
        """
        self._producers = Producers()
        self._high_watermark = 0
        self._high_watermark_at_failure: int | None = None

    @property
    def end(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            raise InvariantViolation(f"{self.name}: {message}")

    # While the broker runs

    def appended(self, data: bytes) -> None:
        header = parse_header(data)
        self.require(header.base_offset == self.end, f"offset {header.base_offset} follows {self.end}")
        self.batches.append(AppendedBatch(header.base_offset, header.next_offset, data))
        if header.producer_id >= 0:
            self._producers.replay(header, header.base_offset)

    def check(self, partition: Partition) -> None:
        """Check after every event. The check is cheap and holds at any moment."""
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
        """Check the batches that a reader got for this offset.

        Returns the offset at which the reader continues.
        """
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
        """Compare the log after a restart with what must have survived, and continue with what did."""
        self.require(partition.offline is None, f"is refused as damaged: {partition.offline}")
        log = partition.log
        start, end = log.log_start_offset, log.log_end_offset
        if end == self.safe_end == 0 and power_was_lost:
            self.start_acknowledged = 0  # nothing was ever flushed, not even the folder
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
        """Handle a log whose start passed all surviving records: it is empty and continues at its start."""
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
        """Check that each idempotent producer's records are present once, in the order of sending."""
        last: dict[int, int] = {}
        for batch in self.batches:
            if not batch.data or (producer := parse_header(batch.data).producer_id) < 0:
                continue
            for record in records.iterate(batch.data, limit_bytes=DECOMPRESSED_BYTES_MAX):
                if record.value is None:
                    continue  # a tombstone has no number
                number = int(record.value.split(b".")[0])
                before = last.get(producer, -1)
                self.require(number > before, f"producer {producer}: record {number} follows {before}")
                last[producer] = number

    def first_at_or_after(self, timestamp: int, start: int, end: int) -> tuple[int, int] | None:
        """The required result of a lookup by time, found by a linear scan."""
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
    """The whole log, read batch by batch as a reader does."""
    log = partition.log
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, log.log_end_offset, READ_BYTES, at_least_one=True)
        if isinstance(found, ColdRead):
            found = found.run().found
        assert found.next_offset > offset, f"a read at {offset} makes no progress"
        offset = found.next_offset
        yield bytes(found.data)
