"""The partitions of this broker.

The replica manager follows the cluster image. It adds a partition when its topic is created or when this
broker becomes one of its replicas, applies changed topic settings, and removes the partition with the topic
or the replica. Topic ids distinguish a topic from a later one of the same name: the files of the first are
never used for the second.

Rule 1: a new leader epoch gets a new `Partition` over the same log, and the old one answers no request any
        more. If the log is being truncated at that time, the new one is made afterwards (`truncation_ended`).
Rule 2: in a cluster, a replica whose files are gone restarts empty. The broker reports the loss to the
        cluster before it may lead the partition or join its ISR (`lost`).
Rule 3: a start moves no damaged replica away: other replicas that the image names as in sync may be missing
        or damaged too, so this one may be the last. It is offline and keeps its files. In a cluster the
        broker gives it up later, when other live replicas have everything
        (`broker/replication/damaged_replicas.py`). A replica that an earlier process recorded as damaged is
        not even opened: recovery might mistake the damage for a torn write at the end and truncate the
        records behind it, which an operator may still need.
Rule 4: an I/O error is not damage: a broker of a cluster then fails to start, and reports no replica as lost.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, CorruptData, ErrorCode, StorageFailed
from penstock.host.disk import Disk, SmallFile
from penstock.host.keyed_jobs import KeyedJobQueue
from penstock.log.data_directory import DataDirectory, Inventory
from penstock.log.partition_log import METADATA_FILE, PartitionLog
from penstock.log.producer_state import PRODUCER_LIMITS, ProducerLimits, ProducerRegistry
from penstock.log.recovery import Recovered, open_log
from penstock.log.segment import LOG_SUFFIX
from penstock.log.shared_resources import SharedLogResources
from penstock.metadata.cluster_image import ClusterImage, PartitionState, Topic
from penstock.metadata.durability import eligible_leaders
from penstock.metadata.image_changes import PartitionChange, changed_partitions, changed_topics
from penstock.metadata.keys import topic_id_text
from penstock.replication.partition import Partition, log_settings
from penstock.replication.roles import Leaderships, Roles, committed_state, may_always_lead
from penstock.types import LeaderEpoch, Offset, TopicId, TopicPartition

_PARTITION_METADATA: Final = re.compile(rb"version: 0\ntopic_id: [a-zA-Z0-9_-]{22}\n")


class RemovedPartition(NamedTuple):
    """A partition whose topic was deleted, or that is no longer assigned to this broker."""

    name: TopicPartition
    topic_id: str


class LostPartition(NamedTuple):
    """A partition that this broker had and that cannot be used now. Its folder is unchanged or missing."""

    reason: str


class ReplicaManager:
    """All partitions of one broker, by topic name and by topic id."""

    def __init__(
        self,
        directory: DataDirectory,
        config: BrokerConfig,
        on_dirty: Callable[[Partition], None],
        job_queue: KeyedJobQueue | None = None,
        monotonic: Callable[[], float] = lambda: 0.0,
        producers: ProducerLimits = PRODUCER_LIMITS,
    ) -> None:
        self._directory = directory
        self._disk: Disk = directory.disk
        self._config = config
        self._on_dirty = on_dirty
        self._job_queue = job_queue
        self._monotonic = monotonic
        self._by_name: dict[str, list[Partition | None]] = {}
        """None: this broker has no replica."""
        self._by_id: dict[TopicId, list[Partition | None]] = {}
        self._waiting: set[PartitionLog] = set()
        """Logs that are being truncated and get a new `Partition` afterwards. Leader, replicas and settings
        may change during the truncation, so they are looked up when it ends."""
        self.may_lead: Callable[[ClusterImage], bool] = may_always_lead
        """Called with every new image."""
        self.is_in_cluster = False
        """Whether this broker is a member of a cluster."""
        self.lost: Inventory = {}
        """Partitions of an earlier process whose files were missing when they were opened."""
        self._image: ClusterImage | None = None
        self._could_lead = False
        """Last result of `may_lead`."""
        self._leaderships = Leaderships()
        self._shared = SharedLogResources.on(directory.disk, producers)
        self._failure: str | None = None

    @property
    def failure(self) -> str | None:
        """Reason why nothing can be written any more; None while the disk works."""
        return self._failure

    def stop_writes(self, reason: str) -> None:
        """Stop writes to every present and future partition: the disk failed."""
        self._failure = reason
        for partition in self:
            partition.stop_writes(reason)

    # Finding

    def find(self, topic: str, index: int) -> Partition | None:
        return _partition_at(self._by_name.get(topic), index)

    def find_by_id(self, topic_id: TopicId, index: int) -> Partition | None:
        return _partition_at(self._by_id.get(topic_id), index)

    def missing_partition_error(self, topic: str, topic_id: TopicId, index: int) -> ApiError:
        """Error for a partition that this broker does not have. Looked up by id if `topic` is empty."""
        known = self._by_name.get(topic) if topic else self._by_id.get(topic_id)
        if known is None and not topic:
            return ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        if known is None or not 0 <= index < len(known):
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker has no replica of it")

    def of_topic(self, topic: str) -> list[Partition]:
        """Partitions of the topic that this broker has."""
        return [partition for partition in self._by_name.get(topic, []) if partition is not None]

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._by_name.values():
            for partition in partitions:
                if partition is not None:
                    yield partition

    # Opening

    def open_all(self, image: ClusterImage) -> Iterator[tuple[Partition, Recovered | LostPartition]]:
        """Open every partition of the image, before the broker serves requests. Blocks.

        Yields every partition that had files here, with the result of its recovery.
        """
        on_disk = set(self._directory.partitions_on_disk())
        had = self._directory.inventory() if self.is_in_cluster else {}
        roles = self._roles(image)
        for topic in image.topics.values():
            for state in topic.partitions:
                name = TopicPartition(topic.name, state.index)
                if not roles.is_replica(state):
                    self._place(topic, state, None)
                elif state.index in had.get(topic_id_text(topic.id), ()) and self._is_missing(name):
                    self.lost.setdefault(topic_id_text(topic.id), []).append(state.index)
                    partition = self._add_empty(topic, state, roles)
                    # If this broker cannot be elected, the replica was unassigned (with its folder) and
                    # assigned again meanwhile: nothing was lost.
                    if self._may_be_elected(topic, state, roles):
                        yield (
                            partition,
                            LostPartition(f"{self._directory.folder_of(name)} was there, and is gone"),
                        )
                elif name not in on_disk:
                    self._add_empty(topic, state, roles)
                else:
                    yield self._open(topic, state, roles)

    def strays(self, image: ClusterImage) -> list[TopicPartition]:
        """Folders on disk of partitions that no longer exist, or whose topic was recreated."""
        return [name for name in self._directory.partitions_on_disk() if self._is_stray(name, image)]

    def _is_stray(self, name: TopicPartition, image: ClusterImage) -> bool:
        state = image.partition(name.topic, name.partition)
        if state is None or self._config.node.node_id not in state.replicas:
            return True
        path = f"{self._directory.folder_of(name)}/{METADATA_FILE}"
        if not self._disk.exists(path):
            return False
        content = self._disk.read_file(path)
        # An unreadable file is no proof that the records belong to another topic.
        is_sound = _PARTITION_METADATA.fullmatch(content) is not None
        return is_sound and content != _partition_metadata(image.topics[name.topic].id)

    def _is_missing(self, name: TopicPartition) -> bool:
        """Whether the folder is missing or empty."""
        folder = self._directory.folder_of(name)
        found = self._disk.list_folder(folder) if self._disk.exists(folder) else ()
        return not any(file == METADATA_FILE or file.endswith(LOG_SUFFIX) for file in found)

    def _open(
        self, topic: Topic, state: PartitionState, roles: Roles
    ) -> tuple[Partition, Recovered | LostPartition]:
        name = TopicPartition(topic.name, state.index)
        try:
            # Before the log is opened: recovery would truncate at the damage (rule 3).
            noted = self._directory.recorded_damage(name)
            if noted is not None:
                note = self._directory.damage_file(name)
                help_text = f"when the files are mended, remove {note} and start again"
                return self._unopened(topic, state, roles, f"{noted} (found before this start; {help_text})")
            settings = log_settings(self._config_of(topic))
            recovered = open_log(self._disk, self._directory.folder_of(name), settings)
        except CorruptData as damage:
            return self._unopened(topic, state, roles, str(damage))
        except StorageFailed as problem:
            reason = self._unreadable(name, problem)
            if self.is_in_cluster:
                raise StorageFailed(reason) from problem
            return self._unopened(topic, state, roles, reason)
        partition = self._add(topic, state, recovered.log, roles)
        # After `_add`, which sets the metadata file that this call writes again.
        recovered.log.resync_folder()
        return partition, recovered

    def _unopened(
        self, topic: Topic, state: PartitionState, roles: Roles, reason: str
    ) -> tuple[Partition, LostPartition]:
        """Add an offline partition with an empty log, which writes nothing beside the damaged files."""
        partition = self._add_empty(topic, state, roles)
        partition.mark_damaged(reason)
        return partition, LostPartition(reason)

    def _may_be_elected(self, topic: Topic, state: PartitionState, roles: Roles) -> bool:
        """Whether this broker could be elected on the strength of the records it has."""
        return self._config.node.node_id in (*state.isr, *eligible_leaders(roles.image, topic, state))

    def has_other_eligible_leader(self, partition: Partition) -> bool:
        """Whether another live broker has every committed record."""
        if not self.is_in_cluster:
            return False
        image, (topic, state) = self._image_now(), self._topic_and_state(partition)
        others = image.admitted - {self._config.node.node_id}
        return any(node in others for node in (*state.isr, *eligible_leaders(image, topic, state)))

    def others_in_sync(self, partition: Partition) -> int:
        """Number of other live brokers that are in sync."""
        _, state = self._topic_and_state(partition)
        return len((self._image_now().admitted - {self._config.node.node_id}).intersection(state.isr))

    def _unreadable(self, name: TopicPartition, problem: StorageFailed) -> str:
        """Describe an I/O error, which proves nothing about the records: the next attempt may succeed."""
        folder = self._directory.folder_of(name)
        last_resort = (
            f"move {folder} away, and the broker copies the partition from the others"
            if self.is_in_cluster
            else f"restore {folder} from a backup"
        )
        return (
            f"{problem}. Mend the disk, or the permissions of {folder}, and start the broker again; "
            f"if its files can no longer be read, {last_resort}"
        )

    def inventory(self) -> Inventory:
        """Partitions whose folders are there after a crash, too.

        A damaged replica that was given up is still listed for a moment. A start that then misses its folder
        reports it as lost, which is true: it was removed from the ISR before.
        """
        found: Inventory = {}
        for topic_id, partitions in self._by_id.items():
            # A damaged replica was not opened: its log object is empty, its folder is not.
            here = [each for each in partitions if each is not None]
            kept = [p.name.partition for p in here if p.is_damaged or p.log.flushed_end_offset > 0]
            if kept:
                found[topic_id_text(topic_id)] = kept
        return found

    @property
    def new_partition_files(self) -> int:
        """Counter that changes whenever a partition folder has become durable."""
        return self._shared.files.synced_new_files

    @property
    def producer_registry(self) -> ProducerRegistry:
        """The idempotent producers of all partitions together."""
        return self._shared.producers

    def _config_of(self, topic: Topic) -> TopicConfig:
        return TopicConfig.effective(topic.overrides, self._config)

    def _add_empty(self, topic: Topic, state: PartitionState, roles: Roles) -> Partition:
        folder = self._directory.folder_of(TopicPartition(topic.name, state.index))
        log = PartitionLog(self._disk, folder, log_settings(self._config_of(topic)))
        return self._add(topic, state, log, roles)

    def _add(self, topic: Topic, state: PartitionState, log: PartitionLog, roles: Roles) -> Partition:
        log.share(self._shared)
        metadata = _partition_metadata(topic.id)
        log.partition_folder.metadata_file = SmallFile(f"{log.folder}/{METADATA_FILE}", metadata)
        return self._make(topic, state, log, None, roles)

    def _make(
        self,
        topic: Topic,
        state: PartitionState,
        log: PartitionLog,
        high_watermark_before: Offset | None,
        roles: Roles,
    ) -> Partition:
        """Make a `Partition` over a log and put it in the position of the previous one."""
        name, epoch = TopicPartition(topic.name, state.index), LeaderEpoch(state.leader_epoch)
        role = roles.role(topic, state, log, high_watermark_before)
        partition = Partition(name, topic.id, epoch, log, self._config_of(topic), self._on_dirty, role)
        partition.partition_count = len(topic.partitions)
        partition.job_queue = self._job_queue
        if self._failure is not None:
            partition.stop_writes(self._failure)
        self._place(topic, state, partition)
        return partition

    def _place(self, topic: Topic, state: PartitionState, partition: Partition | None) -> None:
        siblings = self._by_name.setdefault(topic.name, [])
        self._by_id[topic.id] = siblings
        assert state.index <= len(siblings), f"partitions of {topic.name} come in order"
        siblings[state.index : state.index + 1] = [partition]

    # Following the image

    def follow(
        self, before: ClusterImage, after: ClusterImage, config: BrokerConfig
    ) -> list[RemovedPartition]:
        """Apply a change of the image. Returns the removed partitions, whose folders are still there."""
        self._config = config
        could_lead, roles = self._could_lead, self._roles(after)
        # Removals before additions: a new topic may have the name of a deleted one.
        changes = changed_topics(before, after)
        gone = [partition for topic in changes.deleted for partition in self._remove(topic)]
        for change in changed_partitions(before, after):
            gone += self._change(change, roles)
        defaults_changed = before.broker_overrides != after.broker_overrides
        for grown in changes.grown:
            for partition in self.of_topic(grown.topic.name):
                partition.partition_count = len(grown.topic.partitions)
        self._reconfigure(after.topics.values() if defaults_changed else changes.reconfigured, roles)
        if roles.may_lead and not could_lead:
            self.recheck_leadership()
        return gone

    def recheck_leadership(self) -> None:
        """Apply a change of `may_lead` that came without a new image."""
        roles = self._roles(self._image_now())
        for topic in roles.image.topics.values():
            for state in topic.partitions:
                partition = self.find_by_id(topic.id, state.index) if roles.is_leader(state) else None
                # A partition with a single replica cannot be led by another broker.
                if partition is None or len(state.replicas) == 1:
                    continue
                if partition.is_leader != roles.may_lead:
                    self._begin_leader_epoch(topic, state, partition, roles)

    def _roles(self, image: ClusterImage) -> Roles:
        self._image = image
        self._could_lead = self.may_lead(image)
        node_id, now = self._config.node.node_id, self._monotonic()
        return Roles(node_id, image, now, self._leaderships, may_lead=self._could_lead)

    def _change(self, change: PartitionChange, roles: Roles) -> list[RemovedPartition]:
        """Apply the change of one partition. Returns it if it is no longer assigned to this broker."""
        topic, _, state = change
        if state is None:
            return []  # removed with its topic
        partition = self.find_by_id(topic.id, state.index)
        if partition is None and roles.is_replica(state):
            self._add_empty(topic, state, roles)
        elif partition is None:
            self._place(topic, state, None)
        elif not roles.is_replica(state):
            self._place(topic, state, None)
            return [
                self._close_replica(
                    partition, ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker keeps it no longer"
                )
            ]
        elif state.leader_epoch != partition.leader_epoch:
            self._begin_leader_epoch(topic, state, partition, roles)
        elif partition.leading is not None:
            partition.committed_state_changed(committed_state(roles.image, topic, state), roles.now)
        elif partition.is_only_replica and len(state.replicas) > 1:  # no longer: replicas were added
            partition.lead(roles.grown(topic, state, partition.log, partition.high_watermark))
            partition.advance()
        elif (leading := self._leaderships.find(partition.log, state.leader_epoch)) is not None:
            # This broker is deposed and may be reinstated. The new state decides its pending proposal all the
            # same.
            leading.changed(committed_state(roles.image, topic, state), roles.now)
        return []

    def _begin_leader_epoch(
        self, topic: Topic, state: PartitionState, partition: Partition, roles: Roles
    ) -> None:
        """Replace the `Partition` for another leader epoch."""
        log = partition.log
        if partition.is_damaged:
            assert partition.offline_error is not None
            successor = self._make(topic, state, log, partition.high_watermark, roles)
            successor.mark_damaged(partition.offline_error.detail)
            return
        if partition.offline_error is None:
            partition.resign()
        if log.is_truncating:
            # A role reads the end of the log, which the truncation is about to change.
            self._waiting.add(log)
        else:
            self._make(topic, state, log, partition.high_watermark, roles)

    def truncation_ended(self, partition: Partition) -> None:
        """Continue after the end of the partition's log was truncated."""
        if partition.log.is_closed or partition.is_damaged:
            return
        partition.truncated()
        if partition.log in self._waiting:
            self._waiting.discard(partition.log)
            topic, state = self._topic_and_state(partition)
            roles = self._roles(self._image_now())
            self._make(topic, state, partition.log, partition.high_watermark, roles)

    # Damage

    def damage(self, partition: Partition, reason: str) -> Partition | None:
        """Take a damaged replica offline. Returns its current `Partition`; None: it was removed, or is known
        to be damaged. The caller may hold a `Partition` of an earlier leader epoch.
        """
        found = self.find_by_id(partition.topic_id, partition.name.partition)
        if found is None or found.log is not partition.log or found.is_damaged:
            return None
        found.mark_damaged(reason)
        if found.log in self._waiting:
            # The leader epoch of the image waits for a truncation whose end no longer matters. The repair of
            # the copy waits for the storage to have that epoch (broker/replication/damaged_replicas.py).
            self._waiting.discard(found.log)
            topic, state = self._topic_and_state(found)
            self._begin_leader_epoch(topic, state, found, self._roles(self._image_now()))
        return self.find_by_id(partition.topic_id, partition.name.partition)

    def release_damaged(self, partition: Partition) -> Partition:
        """Close the files of a damaged replica so that its folder can be moved. Returns the `Partition` that
        replaces it: empty, and damaged as well until it is copied again.
        """
        assert partition.is_damaged, "others are in use"
        assert partition.offline_error is not None
        topic, state = self._topic_and_state(partition)
        self._close_replica(partition, partition.offline_error.code, partition.offline_error.detail)
        empty = self._add_empty(topic, state, self._roles(self._image_now()))
        empty.mark_damaged(partition.offline_error.detail)
        return empty

    def begin_replacement(self, empty: Partition) -> bool:
        """Follow the leader with an empty copy, in place of a damaged one whose folder was moved.

        False: the replica is no longer assigned, or the image names this broker as leader of records that it
        does not have.
        """
        found = self.find_by_id(empty.topic_id, empty.name.partition)
        if found is None or found.log is not empty.log:
            return False
        topic, state = self._topic_and_state(empty)
        roles = self._roles(self._image_now())
        if roles.is_leader(state):
            return False
        self._make(topic, state, empty.log, None, roles)
        return True

    def _topic_and_state(self, partition: Partition) -> tuple[Topic, PartitionState]:
        topic = self._image_now().topics_by_id[partition.topic_id]
        return topic, topic.partitions[partition.name.partition]

    def _image_now(self) -> ClusterImage:
        assert self._image is not None, "after all were opened"
        return self._image

    def _remove(self, topic: Topic) -> list[RemovedPartition]:
        del self._by_id[topic.id]
        removed = [partition for partition in self._by_name.pop(topic.name) if partition is not None]
        reason = f"topic {topic.name} was deleted"
        return [
            self._close_replica(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, reason)
            for partition in removed
        ]

    def _close_replica(self, partition: Partition, code: ErrorCode, reason: str) -> RemovedPartition:
        self._waiting.discard(partition.log)
        self._leaderships.end(partition.log)
        partition.go_offline(reason, code)
        partition.log.close()
        return RemovedPartition(partition.name, topic_id_text(partition.topic_id))

    def _reconfigure(self, topics: Iterable[Topic], roles: Roles) -> None:
        for topic in topics:
            config = self._config_of(topic)
            for partition in self.of_topic(topic.name):
                partition.reconfigure(config)
                if partition.leading is not None and partition.offline_error is None:
                    state = topic.partitions[partition.name.partition]
                    partition.committed_state_changed(committed_state(roles.image, topic, state), roles.now)


def _partition_at(partitions: list[Partition | None] | None, index: int) -> Partition | None:
    return partitions[index] if partitions is not None and 0 <= index < len(partitions) else None


def _partition_metadata(topic_id: TopicId) -> bytes:
    """Content of Kafka's partition.metadata file."""
    return f"version: 0\ntopic_id: {topic_id_text(topic_id)}\n".encode()
