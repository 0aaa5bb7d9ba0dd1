"""Which partitions live here.

Follows the cluster's image: a partition appears when its topic does, obeys its topic's settings as
they change, and goes when the topic goes. Two topics of one name, one after the other, are told
apart by their ids: what is left of the first is never taken for the second.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.errors import CorruptData, ErrorCode, StorageFailed
from penstock.host.disk import Disk, Stored
from penstock.host.turns import Turns
from penstock.log.data_directory import DataDirectory
from penstock.log.partition_log import METADATA_FILE, PartitionLog
from penstock.log.recovery import Recovered, open_log
from penstock.log.shared_bounds import SharedBounds
from penstock.metadata.image import ClusterImage, PartitionState, Topic, changed_topics
from penstock.metadata.keys import topic_id_text
from penstock.replication.partition import Partition, log_settings
from penstock.types import LeaderEpoch, TopicId, TopicPartition

_PARTITION_METADATA: Final = re.compile(rb"version: 0\ntopic_id: [a-zA-Z0-9_-]{22}\n")


class Gone(NamedTuple):
    """A partition whose topic was deleted."""

    name: TopicPartition
    topic_id: str


class Partitions:
    def __init__(
        self,
        directory: DataDirectory,
        config: BrokerConfig,
        on_dirty: Callable[[Partition], None],
        turns: Turns | None = None,
    ) -> None:
        self._directory = directory
        self._disk: Disk = directory.disk
        self._config = config
        self._on_dirty = on_dirty
        self._turns = turns
        self._by_name: dict[str, list[Partition]] = {}
        self._by_id: dict[TopicId, list[Partition]] = {}
        self._shared = SharedBounds.on(directory.disk)
        self._failure: str | None = None

    @property
    def failure(self) -> str | None:
        """Why nothing more can be written here; None while all is well."""
        return self._failure

    def stop_writes(self, reason: str) -> None:
        """The disk no longer keeps its promises, for every partition there is and will be."""
        self._failure = reason
        for partition in self:
            partition.stop_writes(reason)

    # Finding

    def find(self, topic: str, index: int) -> Partition | None:
        found = self._by_name.get(topic)
        return found[index] if found is not None and 0 <= index < len(found) else None

    def find_by_id(self, topic_id: TopicId, index: int) -> Partition | None:
        found = self._by_id.get(topic_id)
        return found[index] if found is not None and 0 <= index < len(found) else None

    def knows(self, topic_id: TopicId) -> bool:
        return topic_id in self._by_id

    def of_topic(self, topic: str) -> list[Partition]:
        return self._by_name.get(topic, [])

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._by_name.values():
            yield from partitions

    # Opening

    def open_all(self, image: ClusterImage) -> Iterator[tuple[Partition, Recovered | None]]:
        """Open every partition of the image, before anything is served. Blocks.

        Yields each with what recovery found; None if it is damaged and stays offline.
        """
        on_disk = set(self._directory.partitions_on_disk())
        for topic in image.topics.values():
            config = TopicConfig.effective(topic.overrides, self._config)
            for state in topic.partitions:
                name = TopicPartition(topic.name, state.index)
                if name not in on_disk:
                    self._add(topic, state, self._new_log(name, config), config)
                    continue
                yield self._open(topic, state, config)

    def strays(self, image: ClusterImage) -> list[TopicPartition]:
        """Folders on disk of partitions that no longer exist, or whose topic was made anew."""
        return [name for name in self._directory.partitions_on_disk() if self._is_stray(name, image)]

    def _is_stray(self, name: TopicPartition, image: ClusterImage) -> bool:
        state = image.partition(name.topic, name.partition)
        if state is None:
            return True
        path = f"{self._directory.folder_of(name)}/{METADATA_FILE}"
        if not self._disk.exists(path):
            return False
        content = self._disk.read_file(path)
        # What a crash or a flipped bit left of the file is no proof that the records are another's.
        is_sound = _PARTITION_METADATA.fullmatch(content) is not None
        return is_sound and content != _partition_metadata(image.topics[name.topic].id)

    def _open(
        self, topic: Topic, state: PartitionState, config: TopicConfig
    ) -> tuple[Partition, Recovered | None]:
        name = TopicPartition(topic.name, state.index)
        try:
            recovered = open_log(self._disk, self._directory.folder_of(name), log_settings(config))
        except (CorruptData, StorageFailed) as damage:
            partition = self._add(topic, state, self._new_log(name, config), config)
            partition.go_offline(str(damage))
            return partition, None
        partition = self._add(topic, state, recovered.log, config)
        recovered.log.claim_folder()
        return partition, recovered

    def _new_log(self, name: TopicPartition, config: TopicConfig) -> PartitionLog:
        return PartitionLog(self._disk, self._directory.folder_of(name), log_settings(config))

    def _add(self, topic: Topic, state: PartitionState, log: PartitionLog, config: TopicConfig) -> Partition:
        name = TopicPartition(topic.name, state.index)
        epoch = LeaderEpoch(state.leader_epoch)
        log.share(self._shared)
        log.birth = Stored(f"{log.folder}/{METADATA_FILE}", _partition_metadata(topic.id))
        partition = Partition(name, topic.id, epoch, log, config, self._on_dirty)
        partition.partition_count = len(topic.partitions)
        partition.turns = self._turns
        if self._failure is not None:
            partition.stop_writes(self._failure)
        siblings = self._by_name.setdefault(topic.name, [])
        assert state.index == len(siblings), f"partitions of {topic.name} are opened in order"
        siblings.append(partition)
        self._by_id[topic.id] = siblings
        return partition

    # Following the image

    def follow(self, before: ClusterImage, after: ClusterImage, config: BrokerConfig) -> list[Gone]:
        """Apply a change. Returns the partitions that are gone: their folders are still there."""
        self._config = config
        changes = changed_topics(before, after)
        gone = [partition for topic in changes.deleted for partition in self._remove(topic)]
        for topic in changes.created:
            self._create(topic, topic.partitions)
        for grown in changes.grown:
            self._create(grown.topic, grown.topic.partitions[grown.partitions_before :])
        defaults_changed = before.broker_overrides != after.broker_overrides
        self._reconfigure(after.topics.values() if defaults_changed else changes.reconfigured)
        return gone

    def _create(self, topic: Topic, states: Iterable[PartitionState]) -> None:
        config = TopicConfig.effective(topic.overrides, self._config)
        for state in states:
            log = self._new_log(TopicPartition(topic.name, state.index), config)
            self._add(topic, state, log, config)
        for partition in self._by_name[topic.name]:
            partition.partition_count = len(topic.partitions)

    def _remove(self, topic: Topic) -> list[Gone]:
        del self._by_id[topic.id]
        removed = self._by_name.pop(topic.name)
        for partition in removed:
            partition.go_offline(f"topic {topic.name} was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            partition.log.close()
        return [Gone(partition.name, topic_id_text(topic.id)) for partition in removed]

    def _reconfigure(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            config = TopicConfig.effective(topic.overrides, self._config)
            for partition in self._by_name[topic.name]:
                partition.reconfigure(config)


def _partition_metadata(topic_id: TopicId) -> bytes:
    """Kafka's partition.metadata file."""
    return f"version: 0\ntopic_id: {topic_id_text(topic_id)}\n".encode()
