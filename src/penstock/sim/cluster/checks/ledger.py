"""The committed batches of each partition, and the invariants that hold for them ever after.

A batch is committed when it lies below a leader's high watermark. The ledger records each batch when the
first leader commits it, as it lies on the disks at that moment. From then on:

    every replica that may be in the ISR has it     on the platter, byte for byte, whether it runs or not
    every later leader has it                       when its leadership begins
    an idempotent producer wrote it once            the producer's batches follow each other without a gap
    a client reads it                               and nothing else, at its offset
    a deletion stays                                the log start offset never moves back below what
                                                    DeleteRecords confirmed, and moves only because of
                                                    DeleteRecords or the topic's retention
    a single broker recovers it                     after a kill all of it, after a power failure at least
                                                    what was flushed; and nothing else is in its log

Unless topics flush before they acknowledge, the comparison uses what the processes of a machine read from its
page cache, which a power failure loses. Disks are read from outside, so the checks do not depend on a
broker's own state.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.errors import CorruptData
from penstock.limits import DECOMPRESSED_BYTES_MAX
from penstock.log.partition_log import SNAPSHOT_SUFFIX, PartitionLog
from penstock.protocol import records
from penstock.protocol.batches import BatchHeader, parse_header
from penstock.protocol.records import Record
from penstock.sim.cluster.node import LOGS, SimNode
from penstock.sim.device import FileNode, FolderNode, Node
from penstock.sim.violation import InvariantViolation
from penstock.types import TopicId

LOG_SUFFIX: Final = ".log"
NO_CONTENT: Final = bytearray()
TopicIdPartition = tuple[TopicId, int]
"""A partition: topic id and partition number."""


class CommittedBatch(NamedTuple):
    header: BatchHeader
    content: bytes
    epoch: int
    """The epoch of the leader that committed it first."""

    def __str__(self) -> str:
        return str(self.header)


class LogRange(NamedTuple):
    """The log start offset and log end offset of a replica."""

    start: int
    end: int


class StoredBatch(NamedTuple):
    """A batch as it lies on a platter."""

    header: BatchHeader
    content: bytes


class BatchLocation(NamedTuple):
    """Where a batch lies: segment, file and position."""

    segment: str
    file: FileNode
    position: int


class ReplicaOnDisk:
    """One replica on one node's disk. Reads continue at the position of the previous one."""

    def __init__(self, node: SimNode, folder: str, *, on_platter: bool = True) -> None:
        """`on_platter`: False reads what the machine's processes see, the page cache included."""
        self._node = node
        self._path = f"{LOGS}/{folder}"
        self._on_platter = on_platter
        self._segment = ""
        self._position = 0
        """The position after the batch that was last requested."""
        self._size = 0
        """The size of the batch that was found last."""

    def batch_at(self, offset: int) -> StoredBatch | None:
        """The batch on the platter that starts at this offset. None if none is durable."""
        files = self._files()
        content = self._content(files)
        # The position is only a guess: another batch may be there now, or the middle of one.
        header = _header(content, self._position)
        if header is not None and header.base_offset == offset:
            return self._read_at_position(content, header)
        found = self.covering(offset)
        return found if found is not None and found.header.base_offset == offset else None

    def covering(self, offset: int) -> StoredBatch | None:
        """The batch that contains this offset."""
        files = self._files()
        self._segment, self._position = _segment_of(files, offset), 0
        content = self._content(files)
        while (header := _header(content, self._position)) is not None and header.base_offset <= offset:
            if header.next_offset > offset:
                return self._read_at_position(content, header)
            self._position += header.size
        return None

    def location(self, offset: int) -> BatchLocation | None:
        """Where the batch that starts at this offset lies."""
        file = self._files().get(self._segment) if self.batch_at(offset) is not None else None
        if not isinstance(file, FileNode):
            return None
        return BatchLocation(self._segment, file, self._position - self._size)

    def recovery_point(self) -> int:
        """The offset below which records were safe when the newest snapshot was written.

        At a start, a broker treats a difference below this offset as damage. Above it, a broker truncates,
        because it treats the difference as a torn write.
        """
        names = [
            name.removesuffix(SNAPSHOT_SUFFIX) for name in self._files() if name.endswith(SNAPSHOT_SUFFIX)
        ]
        return max((int(name) for name in names if name.isdigit()), default=0)

    def _files(self) -> Mapping[str, Node]:
        folder = (
            self._node.disk.durable_node(self._path)
            if self._on_platter
            else self._node.disk.visible_node(self._path)
        )
        if not isinstance(folder, FolderNode):
            return {}
        return folder.stored if self._on_platter else folder.seen

    def _content(self, files: Mapping[str, Node]) -> bytearray:
        """The content of the segment that was last requested."""
        file = files.get(self._segment)
        if not isinstance(file, FileNode):
            return NO_CONTENT
        return file.stored if self._on_platter else file.seen

    def _read_at_position(self, content: bytearray, header: BatchHeader) -> StoredBatch | None:
        begin, self._position, self._size = self._position, self._position + header.size, header.size
        whole = len(content) >= self._position
        return StoredBatch(header, bytes(content[begin : self._position])) if whole else None


def _segment_of(files: Iterable[str], offset: int) -> str:
    """The segment that covers the offset. Empty: there is none."""
    names = [name for name in files if name.endswith(LOG_SUFFIX) and int(name[:20]) <= offset]
    return max(names, default="")


def _header(content: bytearray, position: int) -> BatchHeader | None:
    """The batch header at this position. None: no batch is there."""
    with suppress(CorruptData):
        return parse_header(content, position)
    return None


class Ledger:
    """The committed batches of one partition, across all its leaders."""

    def __init__(self, name: str, nodes: dict[int, SimNode], *, on_platter: bool = True) -> None:
        self.name = name
        self.batches: dict[int, CommittedBatch] = {}
        """Committed batches by base offset, one after the other without a hole."""
        self.end = 0
        self.safe_end = 0
        """The offset below which a single broker has flushed everything."""
        self.start_max = 0
        """The highest log start offset that a leader had."""
        self.requested_start = 0
        """The highest log start offset that DeleteRecords requested."""
        self.deleted = 0
        """The highest log start offset that DeleteRecords confirmed."""
        self._copies = {
            node_id: ReplicaOnDisk(node, name, on_platter=on_platter) for node_id, node in nodes.items()
        }
        self._nodes = nodes
        self._may_be_shorter = False
        """Whether a single broker may have lost committed records since its log was compared."""
        self._has_lost_batches = False
        """Whether a single broker has ever lost committed records."""
        self._on_platter = on_platter
        self._known: dict[int, tuple[int, int]] = {}
        """By producer id: its next sequence number, and where its last batch ends."""

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            raise InvariantViolation(f"{self.name}: {message}")

    def high_watermark_moved(self, leader: int, epoch: int, up_to: int, *, isr: frozenset[int]) -> None:
        """Record the batches that a leader's high watermark has passed.

        `isr`: the replicas that may be in the ISR as far as the leader knows. Each of them must have every
        batch that is committed, which is why the leader's maximal ISR is passed, not the ISR in the
        metadata store alone.
        """
        while (offset := self.end) < up_to:
            stored = self._copies[leader].batch_at(offset)
            self.require(stored is not None, f"node-{leader} shows offset {offset}, which is not on its disk")
            assert stored is not None
            for member in sorted(isr - {leader}):
                if not self._nodes[member].has_lost_data:
                    there = self._copies[member].batch_at(offset)
                    message = (
                        f"node-{leader} shows offset {offset}; node-{member} is in sync and has not stored it"
                    )
                    self.require(there is not None and there.content == stored.content, message)
            self._check_sequence(stored.header)
            self._batch_committed(leader, stored.content)
            self.batches[offset] = CommittedBatch(stored.header, stored.content, epoch)
            self.end = stored.header.next_offset

    def _batch_committed(self, leader: int, content: bytes) -> None:
        """Hook that is called with every batch when it is committed."""

    def _check_sequence(self, header: BatchHeader) -> None:
        producer, known = header.producer_id, self._known
        if producer < 0:
            return
        expected, last_end = known.get(producer, (0, self.end))
        # A replica whose log was replaced from an offset behind all records of a producer has no state
        # for that producer, as in Kafka. So a batch that the producer retries for lack of a reply
        # counts as new there.
        is_repeated = header.base_sequence < expected and last_end <= self.start_max
        # As in Kafka, a broker accepts any sequence number of a producer all of whose batches it has lost.
        is_new = self._has_lost_batches and producer not in known
        message = f"producer {producer}: sequence {header.base_sequence} follows {expected - 1}"
        self.require(header.base_sequence == expected or is_repeated or is_new, message)
        known[producer] = _next_sequence(header), header.next_offset

    def _last_committed_before(self, epoch: int) -> CommittedBatch | None:
        return next((each for each in reversed(self.batches.values()) if each.epoch < epoch), None)

    def leadership_began(self, leader: int, epoch: int, span: LogRange) -> None:
        """Check that a new leader has every committed batch that was not deleted.

        Comparing the last batch is enough: logs that share a batch are equal before it, which
        `log_matching.py` checks.
        """
        batch = self._last_committed_before(epoch)
        if batch is not None and batch.header.next_offset > span.start:
            at = batch.header.base_offset
            message = f"node-{leader} leads in epoch {epoch} without what was committed at offset {at}"
            self._require_header(leader, batch, message)

    def require_caught_up(self, node_id: int, span: LogRange | None) -> None:
        """Check that a replica that joins the ISR has caught up.

        A replica's log has no holes and equals the leader's, so comparing the last batch is enough. `span`:
        None if it is unknown, because the broker process does not serve yet.
        """
        if not self.end or self._nodes[node_id].has_lost_data:
            return
        last = next(reversed(self.batches.values()))
        if last.header.next_offset > (self.start_max if span is None else span.start):
            at = last.header.base_offset
            message = f"node-{node_id} joins without what was committed at offset {at}"
            self._require_header(node_id, last, message)

    def _require_header(self, node_id: int, batch: CommittedBatch, message: str) -> None:
        """Check that a replica has this batch. A bit in its records may have flipped."""
        stored = self._copies[node_id].batch_at(batch.header.base_offset)
        self.require(stored is not None and stored.header == batch.header, message)

    # Restarts of a single broker

    def power_lost(self) -> None:
        """The power of a single broker failed. Unless its topics flush before they acknowledge, it may have
        lost committed records.
        """
        self._may_be_shorter = not self._on_platter

    def reopened(self, node_id: int, log: PartitionLog) -> None:
        """Compare the log of a single broker after a restart with the committed batches, and continue with
        those that survived.
        """
        least = self.safe_end if self._may_be_shorter else self.end
        end = log.log_end_offset
        self.require(end >= least, f"ends at {end} after a restart; records below {least} were safe")
        if self._may_be_shorter:
            self._forget_from(end, log)
        self._may_be_shorter = False
        if log.has_stable_segments:
            self.compare(node_id, log, log.log_start_offset)

    def _forget_from(self, end: int, log: PartitionLog) -> None:
        self.batches = {at: batch for at, batch in self.batches.items() if batch.header.next_offset <= end}
        self._known = {}
        self._has_lost_batches = True
        last_end = 0
        for header, *_ in self.batches.values():
            last_end = header.next_offset
            if header.producer_id >= 0:
                self._known[header.producer_id] = _next_sequence(header), last_end
        if not end:
            self.start_max = self.deleted = self.requested_start = 0  # not even the folder was flushed
        elif end == log.log_start_offset:
            # The log is empty, perhaps because the start that DeleteRecords stored passed all surviving
            # records. No record contradicts what the broker remembers of producers.
            self._known = {
                int(producer_id): (each.last.last_sequence + 1, each.last.last_offset + 1)
                for producer_id, each in log.producers.items()
            }
        else:
            self.require(last_end >= min(end, self.end), f"ends at {end}, within a batch")
            end = last_end
        self.end = end

    # Log start offset

    def newest_timestamp_below(self, offset: int) -> int:
        """The newest timestamp of the batches from the highest log start offset until now to this offset."""
        batches = [each.header for each in self.batches.values() if each.header.next_offset > self.start_max]
        return max((each.max_timestamp for each in batches if each.base_offset < offset), default=-1)

    def require_start(self, node_id: int, start: int) -> None:
        """Check that the leader according to the metadata store has deleted what was confirmed as deleted."""
        message = (
            f"node-{node_id} leads and starts at {start}; it was confirmed that {self.deleted} is the start"
        )
        self.require(start >= self.deleted, message)

    def has_deleted(self, producer_id: int, base_sequence: int) -> bool:
        """Whether a producer's batch with this sequence number was committed, and lies before the start."""
        return any(
            (each.header.producer_id, each.header.base_sequence) == (producer_id, base_sequence)
            for each in self.batches.values()
            if each.header.next_offset <= self.start_max
        )

    # Replies to clients

    def acknowledged(self, header: BatchHeader, base_offset: int) -> None:
        """Check an acknowledged batch. `header`: the batch as the producer sent it."""
        batch = self.batches.get(base_offset)
        what = (
            f"sequence {header.base_sequence} of producer {header.producer_id}, acknowledged at {base_offset}"
        )
        self.require(batch is not None, f"{what}, is not committed; that ends at {self.end}")
        assert batch is not None
        same = (batch.header.crc, batch.header.producer_id) == (header.crc, header.producer_id)
        self.require(same, f"{what}, is not there; {batch} is")

    def read(self, header: BatchHeader, content: bytes, offset: int) -> None:
        """Check a batch that a reader got for this offset."""
        batch = self.batches.get(header.base_offset)
        self.require(batch is not None, f"offset {header.base_offset} was read and is not committed")
        assert batch is not None
        self.require(batch.content == content, f"{header} was read where {batch} is committed")

    def records_between(self, start: int, end: int) -> Iterator[Record]:
        """The committed records from `start` on, up to `end`."""
        for batch in self.batches.values():
            if batch.header.next_offset > start and batch.header.base_offset < end:
                for record in records.iterate_records(batch.content, limit_bytes=DECOMPRESSED_BYTES_MAX):
                    if start <= record.offset < end:
                        yield record

    def looked_up(self, timestamp: int, found: int, end_before: int) -> None:
        """Check a lookup by time against a linear scan.

        `found`: -1 if no record is so new. `end_before`: where the committed records ended when it was sent.
        """
        message = f"time {timestamp} leads to offset {found}"
        for record in self.records_between(self.start_max, end_before if found < 0 else found):
            self.require(record.timestamp < timestamp, f"{message}, and {record} is before it")
        if found >= 0:
            self.require(self.timestamp_at(found) >= timestamp, f"{message}, which is older")

    def timestamp_at(self, offset: int) -> int:
        """The timestamp of a committed record; -1 if there is none."""
        return next((each.timestamp for each in Ledger.records_between(self, offset, offset + 1)), -1)

    # At the end

    def producers_on(self, node_id: int, log: PartitionLog, start: int) -> dict[int, tuple[int, int, int]]:
        """Check that a replica's producer state matches the log, and return it.

        Only producers whose last batch ends after `start`: a replica copied from that offset on has no state
        of others. By producer id: epoch, last sequence number and last offset.
        """
        known = {
            int(producer_id): (each.epoch, each.last.last_sequence, each.last.last_offset)
            for producer_id, each in log.producers.items()
        }
        wanted = sorted(producer_id for producer_id, (_, end) in self._known.items() if end > start)
        for producer_id in wanted:
            last, expected = known.get(producer_id, (0, -1, 0))[1], self._known[producer_id][0] - 1
            message = f"node-{node_id} takes {last} for the last of producer {producer_id}, not {expected}"
            self.require(last == expected, message)
        return {producer_id: known[producer_id] for producer_id in wanted}

    def compare(self, node_id: int, log: PartitionLog, start: int) -> None:
        """Check that a replica has every committed batch that ends after `start`, byte for byte."""
        for offset, batch in self.batches.items():
            if batch.header.next_offset > start:
                stored = self._copies[node_id].batch_at(offset)
                message = f"node-{node_id} has not what was committed at offset {offset}"
                self.require(stored is not None and stored.content == batch.content, message)


def _next_sequence(header: BatchHeader) -> int:
    return header.base_sequence + header.next_offset - header.base_offset
