"""The committed records of a compacted partition, and the invariants that compare replicas with them.

The cleaner rewrites batches, so records are compared instead of batches:

    each record that a replica has    is the one that was committed at its offset
    the last record of each key       is present, if it has a value
    offsets                           have no hole from batch to batch

Tombstones are left to `sim/compacted_history.py`: a follower that was unavailable for longer than
delete.retention.ms never receives one, as in Kafka.
"""

from penstock.log.partition_log import PartitionLog
from penstock.protocol.records import Record
from penstock.sim.cluster.checks.ledger import Ledger, LogRange, StoredBatch
from penstock.sim.compacted_history import records_in
from penstock.sim.disk import SimDisk


class CompactedLedger(Ledger):
    _records: dict[int, Record]
    """Committed records by offset. Created when the first batch is committed."""

    def batch_committed(self, stored: StoredBatch) -> None:
        if not self.batches:
            self._records = {}
        for _, found in records_in(stored.content):
            for record in found:
                self._records[record.offset] = record

    def leadership_began(self, leader: int, epoch: int, span: LogRange) -> None:
        last = self._last_committed_before(epoch)
        if last is not None:
            message = f"node-{leader} leads in epoch {epoch} and ends at {span.end}; {last} was committed"
            self.require(span.end >= last.next_offset, message)

    def require_caught_up(self, node_id: int, span: LogRange | None) -> None:
        if span is not None and not self._nodes[node_id].has_lost_data:
            message = f"node-{node_id} joins and ends at {span.end}; {self.end} was committed"
            self.require(span.end >= self.end, message)

    def compare_records(self, node_id: int, disk: SimDisk, log: PartitionLog) -> None:
        """Compare a replica in the ISR with the committed records while no segment of it is being
        replaced.
        """
        assert log.has_stable_segments
        if not self.batches:
            return
        present: set[int] = set()
        expected = None
        for segment in log.segments:
            content = disk.peek(segment.path())[: segment.size_bytes]
            for header, found in records_in(content):
                message = f"node-{node_id} has {header} where {expected} follows"
                self.require(expected in (None, header.base_offset), message)
                expected = header.next_offset
                for record in found:
                    self._require_committed(node_id, record)
                    present.add(record.offset)
        for key, last in self._last_of_each_key().items():
            message = f"node-{node_id} has not the last record of {key!r}, at {last.offset}"
            self.require(last.value is None or last.offset in present, message)

    def _require_committed(self, node_id: int, record: Record) -> None:
        """Compare a record below the high watermark. A record above it may still be truncated."""
        if record.offset < self.end:
            committed = self._records.get(record.offset)
            self.require(committed == record, f"node-{node_id} has {record} where {committed} was committed")

    def _last_of_each_key(self) -> dict[bytes | None, Record]:
        return {record.key: record for _, record in sorted(self._records.items())}
