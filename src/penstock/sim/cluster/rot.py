"""Bits that flip on one platter, and what must come of it.

A flipped bit lies in a record that was committed. It shows when somebody reads the record from the device: a
consumer, a follower, a lookup by time, a coordinator that loads. From then on

    the damaged copy    is offline, and has left the in-sync replicas
    another replica     leads, within a bound, and without a restart of anybody

An operator restarts the damaged broker later. It must not be in sync again with the flipped bit.

Rule 1: never on all in-sync replicas of a partition: one that is sound has everything, and no partition has
        two copies with a flipped bit at once.
Rule 2: a partition that goes offline where no bit was flipped is a violation (`is_damaged`, and when
        everything else is put right `require_reason`).
"""

from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import ErrorCode
from penstock.metadata.facts import GROUP_TOPIC
from penstock.metadata.image import NO_NODE, PartitionState, Topic
from penstock.protocol.batches import HEADER_BYTES, BatchHeader
from penstock.protocol.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchTopic
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.replication.partition import Partition
from penstock.sim.cluster.client import NO_LEADER_EPOCH, TROUBLE, Client
from penstock.sim.cluster.ledger import Copy, Place
from penstock.sim.cluster.node import LOGS, SimNode
from penstock.sim.device import FileNode
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

OFFSETS_SHARE: Final = 0.3
BYTES_MAX: Final = 1_000


class Byte(NamedTuple):
    path: str
    file: FileNode
    position: int
    value: int
    """Since a bit of it was flipped."""


class Flip(NamedTuple):
    node: SimNode
    place: Place
    name: TopicPartition
    batch: BatchHeader
    byte: Byte
    leader_epoch: int
    """Of the partition, at that time."""

    def __str__(self) -> str:
        at = f"{self.batch.base_offset} of {self.name} on {self.node}"
        return f"the flipped bit at {at} ({'noticed' if self.is_noticed() else 'not noticed'})"

    def is_there(self) -> bool:
        """False: the copy was replaced, removed or truncated, or the record deleted."""
        path, file, position, value = self.byte
        is_same = self.node.disk.seen(path) is file
        partition = self._partition()
        is_deleted = partition is not None and self.batch.next_offset <= partition.log.log_start_offset
        return is_same and not is_deleted and file.seen[position : position + 1] == bytes([value])

    def is_noticed(self) -> bool:
        """Whether the broker has taken this copy offline."""
        partition = self._partition()
        offline = None if partition is None else partition.offline
        return offline is not None and offline.code is ErrorCode.KAFKA_STORAGE_ERROR

    def _partition(self) -> Partition | None:
        serving = self.node.serving
        return None if serving is None else serving.storage.partitions.find_by_id(*self.place)


class Rot:
    def __init__(self, cluster: "SimCluster") -> None:
        self._cluster = cluster
        self._flips: list[Flip] = []

    def present(self) -> list[Flip]:
        return [flip for flip in self._flips if flip.is_there()]

    def is_damaged(self, node_id: int, name: str) -> bool:
        """Whether a bit of this partition was ever flipped on this node."""
        return any(flip.node.id == node_id and str(flip.name) == name for flip in self._flips)

    def require_reason(self, node: SimNode) -> None:
        """Whatever is offline on this node has a flipped bit.

        After a failed sync a process may give one partition up and go on with the others: a truncation that
        could not be made durable, for example. That partition is copied anew from its leader.
        """
        serving = node.serving
        if serving is None or node.mount.has_failed_sync or serving.storage.partitions.failure is not None:
            return
        for partition in serving.storage.partitions:
            offline = partition.offline
            is_offline = offline is not None and offline.code is ErrorCode.KAFKA_STORAGE_ERROR
            if is_offline and not self.is_damaged(node.id, str(partition.name)):
                self._cluster.violate(f"{partition.name} is offline on {node} for no reason: {offline}")

    def is_sound(self, node_id: int, place: Place) -> bool:
        return not any(flip.node.id == node_id and flip.place == place for flip in self.present())

    # Flipping

    def flip(self, node: SimNode, random: Random) -> Flip | None:
        """A bit of something that this node has and others have, too; None: there is nothing."""
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
            flip = self._flipped(node, topic, state, random)
            if flip is not None:
                self._flips.append(flip)
                return flip
        return None

    def _may_flip(self, node: SimNode, topic: Topic, state: PartitionState) -> bool:
        if node.id not in state.isr or state.leader == NO_NODE:
            return False
        place = (topic.id, state.index)
        others = [self._cluster.nodes[number] for number in state.isr if number != node.id]
        is_first = all(flip.place != place for flip in self.present())
        return is_first and any(other.is_up and not other.has_lost_disk for other in others)

    def _flipped(self, node: SimNode, topic: Topic, state: PartitionState, random: Random) -> Flip | None:
        name, place = TopicPartition(topic.name, state.index), (topic.id, state.index)
        offsets = sorted(self._cluster.ledger(topic.id, topic.name, state.index).batches)
        copy = Copy(node, str(name))
        safe_end = copy.recovery_point()
        for offset in random.sample(offsets, min(5, len(offsets))):
            stored, spot = copy.at(offset), copy.spot(offset)
            if stored is None or spot is None or stored.header.size <= HEADER_BYTES:
                continue
            if stored.header.next_offset > safe_end:
                continue
            position = spot.position + random.randrange(HEADER_BYTES, stored.header.size)
            value = spot.file.flip(position, random.randrange(8))
            byte = Byte(f"{LOGS}/{name}/{spot.segment}", spot.file, position, value)
            return Flip(node, place, name, stored.header, byte, state.leader_epoch)
        return None

    # After healing

    def is_handled(self, flip: Flip) -> bool:
        if not flip.is_there():
            return True
        topic = self._cluster.truth.image.topics_by_id[flip.place[0]]
        state = topic.partitions[flip.place[1]]
        has_left = flip.node.id not in state.isr and state.leader != NO_NODE
        return flip.is_noticed() and has_left

    def must_be_noticed(self, flip: Flip) -> bool:
        """A coordinator that has begun since then has read all of its log: nobody has to look for it."""
        topic = self._cluster.truth.image.topics_by_id[flip.place[0]]
        state = topic.partitions[flip.place[1]]
        is_new = state.leader == flip.node.id and state.leader_epoch > flip.leader_epoch
        return topic.name == GROUP_TOPIC and is_new

    async def read(self, client: Client, flip: Flip) -> None:
        """As a consumer that asks this very broker, whether it leads or not."""
        asked = FetchPartition(
            flip.place[1], NO_LEADER_EPOCH, flip.batch.base_offset, partition_max_bytes=BYTES_MAX
        )
        wanted = FetchTopic(flip.name.topic, flip.place[0], [asked])
        request = FetchRequest(max_wait_ms=0, topics=[wanted], session_epoch=-1)
        try:
            await client.ask(flip.node.id, FETCH, request)
        except TROUBLE:
            await client.rest()

    async def look_up(self, client: Client, flip: Flip) -> None:
        """ListOffsets by time, for which records are decoded."""
        asked = ListOffsetsPartition(flip.place[1], NO_LEADER_EPOCH, flip.batch.max_timestamp)
        request = ListOffsetsRequest(-1, topics=[ListOffsetsTopic(flip.name.topic, [asked])])
        try:
            await client.ask(flip.node.id, LIST_OFFSETS, request)
        except TROUBLE:
            await client.rest()
