"""Bits that flip on one platter, and the required consequences.

A flipped bit lies in a committed record. It takes effect when a broker reads the record from the device:
for a consumer, a follower, a lookup by time, a coordinator that loads. From then on:

    the damaged replica    is offline and has left the ISR
    another replica        leads, within a bound, and without a restart of any broker

An operator restarts the damaged broker later. It must not join the ISR again with the flipped bit.

Rule 1: A bit never flips on all in-sync replicas of a partition: an undamaged one has every record, and no
        partition has two damaged replicas at once.
Rule 2: A partition that goes offline where no bit flipped is a violation. `is_damaged` checks that during
        the run, and `require_reason` after healing.
"""

from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import ErrorCode
from penstock.metadata.cluster_image import GROUP_TOPIC, NO_NODE, PartitionState, Topic
from penstock.protocol.batches import HEADER_BYTES, BatchHeader
from penstock.protocol.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchTopic
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.replication.partition import Partition
from penstock.sim.cluster.checks.ledger import ReplicaOnDisk, TopicIdPartition
from penstock.sim.cluster.clients.client import CONNECTION_ERRORS, NO_LEADER_EPOCH, KafkaClient
from penstock.sim.cluster.node import LOGS, SimNode
from penstock.sim.device import FileNode
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

OFFSETS_SHARE: Final = 0.3
BYTES_MAX: Final = 1_000


class FlippedByte(NamedTuple):
    path: str
    file: FileNode
    position: int
    value: int
    """The value of the byte after a bit of it flipped."""


class BitFlip(NamedTuple):
    node: SimNode
    partition_id: TopicIdPartition
    name: TopicPartition
    batch: BatchHeader
    byte: FlippedByte
    leader_epoch: int
    """The partition's leader epoch at that time."""

    def __str__(self) -> str:
        at = f"{self.batch.base_offset} of {self.name} on {self.node}"
        return f"the flipped bit at {at} ({'noticed' if self.is_noticed() else 'not noticed'})"

    def is_present(self) -> bool:
        """Whether the bit is still there.

        False: the copy was replaced, removed or truncated, or the record deleted.
        """
        path, file, position, value = self.byte
        is_same = self.node.disk.visible_node(path) is file
        partition = self._partition()
        is_deleted = partition is not None and self.batch.next_offset <= partition.log.log_start_offset
        return is_same and not is_deleted and file.seen[position : position + 1] == bytes([value])

    def is_noticed(self) -> bool:
        """Whether the broker has taken this replica offline."""
        partition = self._partition()
        offline = None if partition is None else partition.offline_error
        return offline is not None and offline.code is ErrorCode.KAFKA_STORAGE_ERROR

    def _partition(self) -> Partition | None:
        serving = self.node.serving
        return None if serving is None else serving.storage.partitions.find_by_id(*self.partition_id)


class BitRot:
    def __init__(self, cluster: "SimCluster") -> None:
        self._cluster = cluster
        self._flips: list[BitFlip] = []

    def present(self) -> list[BitFlip]:
        return [flip for flip in self._flips if flip.is_present()]

    def is_damaged(self, node_id: int, name: str) -> bool:
        """Whether a bit of this partition ever flipped on this node."""
        return any(flip.node.id == node_id and str(flip.name) == name for flip in self._flips)

    def require_reason(self, node: SimNode) -> None:
        """Check that every offline partition on this node has a flipped bit.

        After a failed sync a process may take one partition offline and continue with the others, for
        example after a truncation that could not be made durable. That partition is copied again from its
        leader.
        """
        serving = node.serving
        if serving is None or node.mount.has_failed_sync or serving.storage.partitions.failure is not None:
            return
        for partition in serving.storage.partitions:
            offline = partition.offline_error
            is_offline = offline is not None and offline.code is ErrorCode.KAFKA_STORAGE_ERROR
            if is_offline and not self.is_damaged(node.id, str(partition.name)):
                self._cluster.violate(f"{partition.name} is offline on {node} for no reason: {offline}")

    def has_no_flipped_bit(self, node_id: int, partition_id: TopicIdPartition) -> bool:
        return not any(
            flip.node.id == node_id and flip.partition_id == partition_id for flip in self.present()
        )

    # Flipping

    def flip(self, node: SimNode, random: Random) -> BitFlip | None:
        """Flip a bit of a record that this node and others have. None: there is no such record."""
        candidates = [
            (topic, state)
            for topic in self._cluster.truth.image.topics.values()
            if topic.name in self._cluster.topics or topic.name == GROUP_TOPIC
            for state in topic.partitions
            if self._may_flip(node, topic, state)
        ]
        of_offsets = [each for each in candidates if each[0].name == GROUP_TOPIC]
        if of_offsets and random.random() < OFFSETS_SHARE:
            candidates = of_offsets
        random.shuffle(candidates)
        for topic, state in candidates:
            flip = self._flip_bit(node, topic, state, random)
            if flip is not None:
                self._flips.append(flip)
                return flip
        return None

    def _may_flip(self, node: SimNode, topic: Topic, state: PartitionState) -> bool:
        if node.id not in state.isr or state.leader == NO_NODE:
            return False
        partition_id = (topic.id, state.index)
        others = [self._cluster.nodes[number] for number in state.isr if number != node.id]
        is_first = all(flip.partition_id != partition_id for flip in self.present())
        return is_first and any(other.is_up and not other.has_lost_data for other in others)

    def _flip_bit(self, node: SimNode, topic: Topic, state: PartitionState, random: Random) -> BitFlip | None:
        name, partition_id = TopicPartition(topic.name, state.index), (topic.id, state.index)
        offsets = sorted(self._cluster.ledger(topic.id, topic.name, state.index).batches)
        copy = ReplicaOnDisk(node, str(name))
        safe_end = copy.recovery_point()
        for offset in random.sample(offsets, min(5, len(offsets))):
            stored, location = copy.batch_at(offset), copy.location(offset)
            if stored is None or location is None or stored.header.size <= HEADER_BYTES:
                continue
            # Above the recovery point a start would treat the damage as a torn write and truncate it.
            if stored.header.next_offset > safe_end:
                continue
            position = location.position + random.randrange(HEADER_BYTES, stored.header.size)
            value = location.file.flip(position, random.randrange(8))
            byte = FlippedByte(f"{LOGS}/{name}/{location.segment}", location.file, position, value)
            return BitFlip(node, partition_id, name, stored.header, byte, state.leader_epoch)
        return None

    # After healing

    def is_handled(self, flip: BitFlip) -> bool:
        if not flip.is_present():
            return True
        topic = self._cluster.truth.image.topics_by_id[flip.partition_id[0]]
        state = topic.partitions[flip.partition_id[1]]
        has_left = flip.node.id not in state.isr and state.leader != NO_NODE
        return flip.is_noticed() and has_left

    def must_be_noticed(self, flip: BitFlip) -> bool:
        """Whether the broker must detect the bit without a read: a coordinator that began since has loaded
        its whole log.
        """
        topic = self._cluster.truth.image.topics_by_id[flip.partition_id[0]]
        state = topic.partitions[flip.partition_id[1]]
        is_new = state.leader == flip.node.id and state.leader_epoch > flip.leader_epoch
        return topic.name == GROUP_TOPIC and is_new

    async def read(self, client: KafkaClient, flip: BitFlip) -> None:
        """Fetch the damaged record as a consumer, from this very broker, whether it leads or not."""
        partition_request = FetchPartition(
            flip.partition_id[1], NO_LEADER_EPOCH, flip.batch.base_offset, partition_max_bytes=BYTES_MAX
        )
        topic_request = FetchTopic(flip.name.topic, flip.partition_id[0], [partition_request])
        request = FetchRequest(max_wait_ms=0, topics=[topic_request], session_epoch=-1)
        try:
            await client.ask(flip.node.id, FETCH, request)
        except CONNECTION_ERRORS:
            await client.pause()

    async def look_up(self, client: KafkaClient, flip: BitFlip) -> None:
        """Send ListOffsets by time, for which the broker decodes records."""
        partition_request = ListOffsetsPartition(
            flip.partition_id[1], NO_LEADER_EPOCH, flip.batch.max_timestamp
        )
        request = ListOffsetsRequest(-1, topics=[ListOffsetsTopic(flip.name.topic, [partition_request])])
        try:
            await client.ask(flip.node.id, LIST_OFFSETS, request)
        except CONNECTION_ERRORS:
            await client.pause()
