"""Log matching: logs of one partition that share a batch of one leader epoch are equal up to that batch.

Two more checks: what a broker reports as flushed is on its platter, and epochs never fall from batch to
batch.

Strategy: each replica is read as it is flushed. For each batch, the batch before it is recorded once for
all replicas. So a batch that two replicas have at the same offset under the same epoch is compared once for
each, and everything before it has been compared already.
"""

from typing import NamedTuple

from penstock.log.partition_log import PartitionLog
from penstock.sim.cluster.checks.ledger import ReplicaOnDisk
from penstock.sim.cluster.node import SimNode
from penstock.sim.violation import InvariantViolation


class BatchLink(NamedTuple):
    base_offset: int
    next_offset: int
    epoch: int
    crc: int
    before: tuple[int, int]
    """The base offset and epoch of the batch before it."""


NO_BATCH_BEFORE = (-1, -1)


class LogMatcher:
    """The batches of one partition, on all nodes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[tuple[int, int], BatchLink] = {}
        """Batches by base offset and epoch."""
        self._chains: dict[int, list[BatchLink]] = {}
        self._copies: dict[int, ReplicaOnDisk] = {}

    def truncated(self, node_id: int, end: int) -> None:
        """The node's log was replaced, or ends earlier than before."""
        chain = self._chains.setdefault(node_id, [])
        while chain and chain[-1].next_offset > end:
            chain.pop()

    def flushed(self, node: SimNode, log: PartitionLog) -> None:
        node_id = node.id
        chain, copy = self._chains.setdefault(node_id, []), self._copies.get(node_id)
        if copy is None:
            copy = self._copies[node_id] = ReplicaOnDisk(node, self._name)
        if chain and chain[-1].next_offset <= log.log_start_offset:
            # The log was replaced from its start on, or nothing before its start can be read. A follower
            # may keep a batch of another epoch before the start: its leader no longer has the batch that
            # was there.
            chain.clear()
        end = chain[-1].next_offset if chain else log.log_start_offset
        while end < log.flushed_end_offset:
            # The log start offset may lie within a batch.
            stored = copy.batch_at(end) if chain else copy.covering(end)
            if stored is None:
                raise InvariantViolation(
                    f"{self._name}: node-{node_id} says {log.flushed_end_offset} is flushed; {end} is not"
                )
            header = stored.header
            before = (chain[-1].base_offset, chain[-1].epoch) if chain else NO_BATCH_BEFORE
            link = BatchLink(header.base_offset, header.next_offset, header.leader_epoch, header.crc, before)
            self._require(node_id, link)
            chain.append(link)
            end = link.next_offset

    def _require(self, node_id: int, link: BatchLink) -> None:
        if link.epoch < link.before[1]:
            raise InvariantViolation(f"{self._name}: on node-{node_id} the epoch falls: {link}")
        key = link.base_offset, link.epoch
        known = self._known.setdefault(key, link)
        if NO_BATCH_BEFORE in (known.before, link.before):
            # The first batch of a log has no predecessor to compare.
            self._known[key] = link if known.before == NO_BATCH_BEFORE else known
            known, link = known._replace(before=NO_BATCH_BEFORE), link._replace(before=NO_BATCH_BEFORE)
        if known != link:
            raise InvariantViolation(f"{self._name}: node-{node_id} has {link} where another has {known}")
