"""What has been committed, partition by partition, and what must be true of it ever after.

Committed is what a leader shows: what lies below its high watermark. Each batch is entered when the first
leader does, as it lies on the disks at that moment. From then on

    everybody who may be in sync has it     on the platter, byte for byte, dead or alive
    every later leader has it               when its leadership begins
    an idempotent producer wrote it once    its batches follow each other without a gap
    a client sees it                        and nothing else, at the offset where it is
    a deletion stays                        the start never goes back behind what DeleteRecords confirmed, and
                                            moves only by DeleteRecords or by the topic's retention

Under flush.policy=os what counts is what the processes of a machine see, which a power failure takes away.
Disks are looked at from outside, so that what a broker believes of itself does not count.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.errors import CorruptData
from penstock.log.partition_log import SNAPSHOT_SUFFIX
from penstock.protocol.batches import BatchHeader, parse_header
from penstock.sim.cluster.node import LOGS, SimNode
from penstock.sim.device import FileNode, FolderNode, Node
from penstock.sim.history import InvariantViolation
from penstock.types import TopicId

LOG_SUFFIX: Final = ".log"
NO_CONTENT: Final = bytearray()
TopicIdPartition = tuple[TopicId, int]
"""A topic, by id, and the number of a partition."""


class CommittedBatch(NamedTuple):
    """What tells batches apart."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    producer_id: int
    base_sequence: int
    max_timestamp: int
    committed_in_epoch: int
    """The leader epoch of who showed it first."""


class LogRange(NamedTuple):
    """Where a replica's log begins and ends."""

    start: int
    end: int


class StoredBatch(NamedTuple):
    """A batch as it lies on a platter."""

    header: BatchHeader
    content: bytes


class BatchLocation(NamedTuple):
    """Where a batch lies."""

    segment: str
    file: FileNode
    position: int


class ReplicaOnDisk:
    """One partition on one node's disk, read along as it grows."""

    def __init__(self, node: SimNode, folder: str, *, on_platter: bool = True) -> None:
        """`on_platter`: False reads what processes of the machine see."""
        self._node = node
        self._path = f"{LOGS}/{folder}"
        self._on_platter = on_platter
        self._segment = ""
        self._position = 0
        """Where the batch after the last one that was asked for would be."""
        self._size = 0
        """Of the last one that was found."""

    def at(self, offset: int) -> StoredBatch | None:
        """The batch on the platter that starts there; None if there is none for certain."""
        files = self._files()
        content = self._content(files)
        # What is there now may be another batch, or the middle of one.
        header = _header(content, self._position)
        if header is not None and header.base_offset == offset:
            return self._read_at_position(content, header)
        found = self.covering(offset)
        return found if found is not None and found.header.base_offset == offset else None

    def covering(self, offset: int) -> StoredBatch | None:
        """The batch that holds this offset."""
        files = self._files()
        self._segment, self._position = _segment_of(files, offset), 0
        content = self._content(files)
        while (header := _header(content, self._position)) is not None and header.base_offset <= offset:
            if header.next_offset > offset:
                return self._read_at_position(content, header)
            self._position += header.size
        return None

    def location(self, offset: int) -> BatchLocation | None:
        """Where the batch that starts there lies."""
        file = self._files().get(self._segment) if self.at(offset) is not None else None
        if not isinstance(file, FileNode):
            return None
        return BatchLocation(self._segment, file, self._position - self._size)

    def recovery_point(self) -> int:
        """What lies below was safe when the newest snapshot was written: a start takes it for damage if it
        is not as it was. Above it a start truncates, because it takes that for a write that was torn."""
        names = [
            name.removesuffix(SNAPSHOT_SUFFIX) for name in self._files() if name.endswith(SNAPSHOT_SUFFIX)
        ]
        return max((int(name) for name in names if name.isdigit()), default=0)

    def _files(self) -> Mapping[str, Node]:
        folder = self._node.disk.durable(self._path) if self._on_platter else self._node.disk.seen(self._path)
        if not isinstance(folder, FolderNode):
            return {}
        return folder.stored if self._on_platter else folder.seen

    def _content(self, files: Mapping[str, Node]) -> bytearray:
        """Of the segment that was last asked for."""
        file = files.get(self._segment)
        if not isinstance(file, FileNode):
            return NO_CONTENT
        return file.stored if self._on_platter else file.seen

    def _read_at_position(self, content: bytearray, header: BatchHeader) -> StoredBatch | None:
        begin, self._position, self._size = self._position, self._position + header.size, header.size
        whole = len(content) >= self._position
        return StoredBatch(header, bytes(content[begin : self._position])) if whole else None


def _segment_of(files: Iterable[str], offset: int) -> str:
    """Empty: there is none."""
    names = [name for name in files if name.endswith(LOG_SUFFIX) and int(name[:20]) <= offset]
    return max(names, default="")


def _header(content: bytearray, position: int) -> BatchHeader | None:
    """None: no batch is there."""
    with suppress(CorruptData):
        return parse_header(content, position)
    return None


class Ledger:
    """Of one partition, over all its leaders."""

    def __init__(self, name: str, nodes: dict[int, SimNode], *, on_platter: bool = True) -> None:
        self.name = name
        self.batches: dict[int, CommittedBatch] = {}
        """By base offset; one after the other, without a hole."""
        self.end = 0
        self.start_max = 0
        """The furthest start that a leader's log had."""
        self.requested_start = 0
        """The furthest start that DeleteRecords was asked for."""
        self.deleted = 0
        """The furthest start that DeleteRecords has confirmed."""
        self._copies = {
            node_id: ReplicaOnDisk(node, name, on_platter=on_platter) for node_id, node in nodes.items()
        }
        self._nodes = nodes
        self._known: dict[int, tuple[int, int]] = {}
        """By producer id: its next sequence number, and where its last batch ends."""

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            raise InvariantViolation(f"{self.name}: {message}")

    def high_watermark_moved(self, leader: int, epoch: int, up_to: int, *, isr: frozenset[int]) -> None:
        """A leader's high watermark has moved there. `isr`: who may be in sync as the leader knows."""
        offset = self.end
        while offset < up_to:
            stored = self._copies[leader].at(offset)
            self.require(stored is not None, f"node-{leader} shows offset {offset}, which is not on its disk")
            assert stored is not None
            batch = _committed_batch(stored.header, epoch)
            for member in sorted(isr - {leader}):
                if not self._nodes[member].has_lost_data:
                    there = self._copies[member].at(offset)
                    message = (
                        f"node-{leader} shows offset {offset}; node-{member} is in sync and has not stored it"
                    )
                    self.require(there is not None and there.content == stored.content, message)
            self.batch_committed(stored)
            self._add(batch)
            offset = batch.next_offset

    def batch_committed(self, stored: StoredBatch) -> None:
        """Told of every batch before it is entered. Plain topics need no more than its header."""

    def _add(self, batch: CommittedBatch) -> None:
        producer, known = batch.producer_id, self._known
        if producer >= 0:
            expected, last_end = known.get(producer, (0, self.end))
            message = f"producer {producer}: sequence {batch.base_sequence} follows {expected - 1}"
            # A replica that began anew behind all records of a producer has never heard of it, as in Kafka:
            # what the producer sends again, because it was not answered, counts as new.
            is_repeated = batch.base_sequence < expected and last_end <= self.start_max
            self.require(batch.base_sequence == expected or is_repeated, message)
            count = batch.next_offset - batch.base_offset
            known[producer] = batch.base_sequence + count, batch.next_offset
        self.batches[batch.base_offset] = batch
        self.end = batch.next_offset

    def _last_committed_before(self, epoch: int) -> CommittedBatch | None:
        return next(
            (each for each in reversed(self.batches.values()) if each.committed_in_epoch < epoch), None
        )

    def leadership_began(self, leader: int, epoch: int, span: LogRange) -> None:
        """A leadership has begun: it has everything that leaders before it have shown and nobody has deleted.

        The last batch tells: logs that have it are the same before it, which `log_matching.py` sees to.
        """
        batch = self._last_committed_before(epoch)
        if batch is not None and batch.next_offset > span.start:
            stored, at = self._copies[leader].at(batch.base_offset), batch.base_offset
            message = f"node-{leader} leads in epoch {epoch} without what was committed at offset {at}"
            self.require(stored is not None and _is_same(batch, stored.header), message)

    def require_caught_up(self, node_id: int, span: LogRange | None) -> None:
        """It joins who is in sync. Its log has no holes and is the leader's, so the last batch tells.

        `span`: None if nobody knows, because its process does not serve yet.
        """
        if not self.end or self._nodes[node_id].has_lost_data:
            return
        last = next(reversed(self.batches.values()))
        if last.next_offset <= (self.start_max if span is None else span.start):
            return
        stored = self._copies[node_id].at(last.base_offset)
        message = f"node-{node_id} joins without what was committed at offset {last.base_offset}"
        self.require(stored is not None and _is_same(last, stored.header), message)

    # Where it starts

    def max_timestamp_below(self, offset: int) -> int:
        """The newest timestamp of what lies before."""
        return max((each.max_timestamp for at, each in self.batches.items() if at < offset), default=-1)

    def require_start(self, node_id: int, start: int) -> None:
        """Who leads, as the store has it, has deleted what was confirmed as deleted."""
        message = (
            f"node-{node_id} leads and starts at {start}; it was confirmed that {self.deleted} is the start"
        )
        self.require(start >= self.deleted, message)

    # What clients see

    def acknowledged(self, header: BatchHeader, base_offset: int) -> None:
        """`header`: of the batch as it was sent."""
        batch = self.batches.get(base_offset)
        what = (
            f"sequence {header.base_sequence} of producer {header.producer_id}, acknowledged at {base_offset}"
        )
        self.require(batch is not None, f"{what}, is not committed; that ends at {self.end}")
        assert batch is not None
        same = (batch.crc, batch.producer_id) == (header.crc, header.producer_id)
        self.require(same, f"{what}, is not there; {batch} is")

    def read(self, header: BatchHeader) -> None:
        batch = self.batches.get(header.base_offset)
        self.require(batch is not None, f"offset {header.base_offset} was read and is not committed")
        assert batch is not None
        self.require(_is_same(batch, header), f"{header} was read where {batch} is committed")

    # At the end

    def producers_from(self, start: int) -> set[int]:
        """Whose last batch ends behind it. Who began with a copy from there on knows nothing of others."""
        lasts = {batch.producer_id: batch.next_offset for batch in self.batches.values()}
        return {producer_id for producer_id, end in lasts.items() if producer_id >= 0 and end > start}

    def require_producers(self, node_id: int, known: Mapping[int, tuple[int, int, int]], start: int) -> None:
        """What a replica remembers of producers is what is in the log. `known`: with the last sequence
        second."""
        for producer_id in sorted(self.producers_from(start)):
            sequence, _ = self._known[producer_id]
            last = known[producer_id][1] if producer_id in known else -1
            message = (
                f"node-{node_id} takes {last} for the last of producer {producer_id}, not {sequence - 1}"
            )
            self.require(last == sequence - 1, message)

    def compare(self, replicas: tuple[int, ...], start: int) -> None:
        """These replicas have all of it that lies behind their start."""
        for offset, batch in self.batches.items():
            for node_id in replicas if batch.next_offset > start else ():
                stored = self._copies[node_id].at(offset)
                message = f"node-{node_id} has not what was committed at offset {offset}"
                self.require(stored is not None and _is_same(batch, stored.header), message)


def _is_same(batch: CommittedBatch, header: BatchHeader) -> bool:
    return batch == _committed_batch(header, batch.committed_in_epoch)


def _committed_batch(header: BatchHeader, committed_in_epoch: int) -> CommittedBatch:
    return CommittedBatch(
        header.base_offset,
        header.next_offset,
        header.leader_epoch,
        header.crc,
        header.producer_id,
        header.base_sequence,
        header.max_timestamp,
        committed_in_epoch,
    )
