"""The committed records of a compacted partition, and the invariants that compare replicas with them.

The cleaner rewrites batches, so records are compared instead of batches:

    each record that a replica has    is the one that was committed at its offset
    the last record of each key       is present, if it has a value
    offsets                           have no hole from batch to batch

Where a partition has one replica, these hold as well:

    a tombstone that is the last      is present until its delete horizon, which is at least
    record of its key                 delete.retention.ms after it was committed; once it is gone, no older
                                      record of its key is present
    records that were removed         never return

With several replicas they do not: a follower that was unavailable for longer than delete.retention.ms never
receives a tombstone, as in Kafka, and each replica is cleaned by itself.
"""

from collections.abc import Iterator

from penstock.limits import DECOMPRESSED_BYTES_MAX
from penstock.log.compaction.batch_filter import horizon_of
from penstock.log.partition_log import PartitionLog
from penstock.protocol import records
from penstock.protocol.batches import BatchHeader, split_batches
from penstock.protocol.records import Record
from penstock.sim.cluster.checks.ledger import Ledger, LogRange
from penstock.sim.cluster.node import SimNode


class CompactedLedger(Ledger):
    def __init__(
        self, name: str, nodes: dict[int, SimNode], *, on_platter: bool, delete_retention_ms: int
    ) -> None:
        super().__init__(name, nodes, on_platter=on_platter)
        self._delete_retention_ms = delete_retention_ms
        self._records: dict[int, Record] = {}
        """Committed records by offset."""
        self._committed_ms: dict[int, int] = {}
        """By offset: the wall clock of the leader when the record was committed."""
        self._last_of_key: dict[bytes | None, Record] = {}
        self._removed: set[int] = set()
        """The offsets of records that were found to be gone."""
        self._horizons: dict[int, int] = {}
        """The delete horizons of tombstones, as they were first seen."""

    def _batch_committed(self, leader: int, content: bytes) -> None:
        for _, found in records_in(content):
            for record in found:
                self._records[record.offset] = self._last_of_key[record.key] = record
                self._committed_ms[record.offset] = self._nodes[leader].wall_ms()

    def _forget_from(self, end: int, log: PartitionLog) -> None:
        super()._forget_from(end, log)
        for kept in (self._records, self._committed_ms, self._horizons):
            for offset in [offset for offset in kept if offset >= end]:
                del kept[offset]
        self._removed = {offset for offset in self._removed if offset < end}
        self._last_of_key = {record.key: record for _, record in sorted(self._records.items())}

    def leadership_began(self, leader: int, epoch: int, span: LogRange) -> None:
        last = self._last_committed_before(epoch)
        if last is not None:
            message = f"node-{leader} leads in epoch {epoch} and ends at {span.end}; {last} was committed"
            self.require(span.end >= last.header.next_offset, message)

    def require_caught_up(self, node_id: int, span: LogRange | None) -> None:
        if span is not None and not self._nodes[node_id].has_lost_data:
            message = f"node-{node_id} joins and ends at {span.end}; {self.end} was committed"
            self.require(span.end >= self.end, message)

    def records_between(self, start: int, end: int) -> Iterator[Record]:
        for record in sorted(self._last_of_key.values()):
            if start <= record.offset < end and record.value is not None:
                yield record

    def read(self, header: BatchHeader, content: bytes, offset: int) -> None:
        found = [record for _, of_batch in records_in(content) for record in of_batch]
        for record in found:
            self._require_committed("a reader", record)
        there = {record.offset for record in found}
        missed = {record.offset for record in self.records_between(offset, header.next_offset)} - there
        self.require(not missed, f"a reader at {offset} was not given {sorted(missed)}")

    def compare(self, node_id: int, log: PartitionLog, start: int) -> None:
        """Compare a replica in the ISR with the committed records while no segment of it is being
        replaced.
        """
        assert log.has_stable_segments
        who, expected = f"node-{node_id}", None
        present: dict[int, Record] = {}
        for segment in log.segments:
            content = self._nodes[node_id].disk.peek(segment.path())[: segment.size_bytes]
            for header, found in records_in(content):
                message = f"{who} has {header} where {expected} follows"
                self.require(expected in (None, header.base_offset), message)
                expected = header.next_offset
                self._note_horizons(header, found)
                for record in found:
                    self._require_committed(who, record)
                    present[record.offset] = record
        for record in self.records_between(start, self.end):
            message = f"{who} has not the last record of {record.key!r}, at {record.offset}"
            self.require(record.offset in present, message)
        if len(self._nodes) == 1:
            self._compare_removed(node_id, present, start)

    def _compare_removed(self, node_id: int, present: dict[int, Record], start: int) -> None:
        back = sorted(self._removed & present.keys())
        self.require(not back, f"the records at {back} were gone and are back")
        self._removed |= {offset for offset in self._records if offset >= start and offset not in present}
        gone = {key: last.offset for key, last in self._last_of_key.items() if last.offset in self._removed}
        for offset in gone.values():
            horizon = self._horizons.get(offset)
            is_due = horizon is not None and horizon <= self._nodes[node_id].wall_ms()
            self.require(is_due, f"the tombstone at {offset} is gone before its horizon {horizon}")
        for record in present.values():
            at = gone.get(record.key)
            message = f"{record.key!r} was deleted at {at} and is there at {record.offset}"
            self.require(at is None or not start <= record.offset < at, message)

    def _note_horizons(self, header: BatchHeader, found: list[Record]) -> None:
        if len(self._nodes) > 1 or (horizon := horizon_of(header)) is None:
            return
        for record in found:
            if record.value is None:
                earliest = self._committed_ms[record.offset] + self._delete_retention_ms
                self.require(horizon >= earliest, f"the horizon of {record} is {horizon}, before {earliest}")
                first = self._horizons.setdefault(record.offset, horizon)
                self.require(horizon == first, f"the horizon of {record} was {first} and is {horizon}")

    def _require_committed(self, who: str, record: Record) -> None:
        """Compare a record below the high watermark. A record above it may still be truncated."""
        if record.offset < self.end:
            committed = self._records.get(record.offset)
            self.require(committed == record, f"{who} has {record} where {committed} was committed")


def records_in(data: bytes) -> Iterator[tuple[BatchHeader, list[Record]]]:
    for at, header in split_batches(data):
        batch = data[at : at + header.size]
        found = (
            records.iterate_records(batch, limit_bytes=DECOMPRESSED_BYTES_MAX) if header.record_count else ()
        )
        yield header, list(found)
