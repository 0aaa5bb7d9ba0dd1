"""An administrator that creates, grows and deletes topics, deletes records, changes leaders and settings.

A request may fail, or take effect although its reply was lost. A confirmed change has taken effect.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import ErrorCode
from penstock.metadata.cluster_image import GROUP_TOPIC
from penstock.protocol.messages.alter_partition_reassignments import (
    ALTER_PARTITION_REASSIGNMENTS,
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.messages.create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from penstock.protocol.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from penstock.protocol.messages.delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from penstock.protocol.messages.delete_topics import DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicState
from penstock.protocol.messages.elect_leaders import ELECT_LEADERS, ElectLeadersRequest, TopicPartitions
from penstock.protocol.messages.incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.sim.cluster.checks.ledger import Ledger
from penstock.sim.cluster.clients.client import CONNECTION_ERRORS, KafkaClient
from penstock.sim.cluster.extras import NO_LIMIT
from penstock.sim.cluster.plan import DELETE_RETENTION_MS

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

TIMEOUT_MS: Final = 5_000
REPLICAS: Final = 3
TIMESTAMP_AFTER: Final = "message.timestamp.after.max.ms"
DAY_MS: Final = 24 * 3_600_000
MINIMUM: Final = "min.insync.replicas"
TOPIC_RESOURCE: Final = 2
SET_OPERATION: Final = 0
PARTITIONS_MAX: Final = 4
TEMPORARY_PREFIX: Final = "passing-"
"""The name prefix of topics that are created and deleted during the run."""
# These settings give the cleaner work all the time. Tombstones stay for the whole run: a follower that
# misses one is not checked here.
COMPACTS_QUICKLY: Final = {
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
}
UP_TO_HIGH_WATERMARK: Final = -1
OFFSET_MAX: Final = 2**62
RECORDS_MIN: Final = 10


class ConfirmedDeletion(NamedTuple):
    """A partition whose records below `start` are deleted, as a client was told."""

    topic: str
    partition: int
    start: int


class Administrator:
    def __init__(self, cluster: "SimCluster") -> None:
        self._cluster = cluster
        self._client = KafkaClient(cluster, "administrator")
        self._topics_created = 0
        self._partitions: dict[str, int] = {}
        self._deleter = DeleteRecordsClient(cluster) if cluster.plan.extras.deletes_records else None

    def start(self) -> None:
        self._client.run(self._run())
        if self._cluster.plan.extras.compacts and self._cluster.plan.log is None:
            self._client.run(self._compact_quickly())
        if self._deleter is not None:
            self._deleter.start()

    async def _run(self) -> None:
        plan, random = self._cluster.plan, self._client.random
        operations = [self._create_topic, self._add_partition, self._delete] if plan.changes_topics else []
        operations += [self._change_minimum] if plan.changes_minimum else []
        operations += [self._change_leader] if plan.changes_leaders else []
        while operations and self._cluster.is_producing:
            await self._client.pause(random.choice((0.4, 1.0, 4.0)))
            await random.choice(operations)()

    async def retry(self, operation: Callable[[], Awaitable[bool]]) -> None:
        """Repeat the operation until it is confirmed."""
        while not await operation():
            await self._client.pause()

    async def complete_deletion(self, name: str, index: int) -> None:
        """Return when every replica has deleted what one of them has deleted."""
        if self._deleter is not None:
            await self.retry(partial(self._deleter.complete, name, index))

    async def next_deletion(self) -> ConfirmedDeletion:
        """Return at the moment when a deletion is confirmed to its client."""
        assert self._deleter is not None, "only a seed that deletes records waits for it"
        return await self._deleter.next_confirmed()

    async def create_topic(self, name: str, partitions: int) -> bool:
        """Whether a broker confirmed that the topic exists."""
        plan, extras = self._cluster.plan, self._cluster.plan.extras
        settings: dict[str, object] = {
            "segment.ms": plan.segment_ms,
            # A broker whose clock is an hour slow would reject records with timestamps ahead of it.
            TIMESTAMP_AFTER: DAY_MS,
        }
        if extras.has_retention:
            settings |= {"retention.ms": extras.retention_ms, "retention.bytes": extras.retention_bytes}
        if plan.log is not None and name in plan.compacted_topics:
            settings |= {
                "cleanup.policy": "compact,delete" if extras.retention_bytes != NO_LIMIT else "compact",
                "delete.retention.ms": plan.log.delete_retention_ms,
                "max.compaction.lag.ms": plan.log.max_compaction_lag_ms,
                "min.cleanable.dirty.ratio": 0.1,
            }
        configs = [CreatableTopicConfig(setting, str(value)) for setting, value in settings.items()]
        wanted = CreatableTopic(name, partitions, min(REPLICAS, plan.brokers), configs=configs)
        try:
            answer = await self._client.ask(
                self._client.any_broker(), CREATE_TOPICS, CreateTopicsRequest([wanted], TIMEOUT_MS), seconds=6
            )
        except CONNECTION_ERRORS:
            return False
        code = ErrorCode(answer.topics[0].error_code)
        if code is ErrorCode.NONE:
            self._partitions[name] = partitions
        if code is ErrorCode.INVALID_CONFIG:
            self._cluster.violate(f"{name} is refused: {answer.topics[0].error_message}")
        return code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

    async def _create_topic(self) -> None:
        self._topics_created += 1
        await self.create_topic(
            f"{TEMPORARY_PREFIX}{self._topics_created}", self._client.random.choice((1, 2))
        )

    async def _delete(self) -> None:
        names = [name for name in self._partitions if name.startswith(TEMPORARY_PREFIX)]
        if not names:
            return
        name = self._client.random.choice(names)
        del self._partitions[name]
        request = DeleteTopicsRequest([DeleteTopicState(name)], [name], TIMEOUT_MS)
        try:
            await self._client.ask(self._client.any_broker(), DELETE_TOPICS, request, seconds=6)
        except CONNECTION_ERRORS:
            return

    async def _add_partition(self) -> None:
        name = self._client.random.choice(sorted(self._partitions))
        count = self._partitions[name] + 1
        if count > PARTITIONS_MAX:
            return
        request = CreatePartitionsRequest([CreatePartitionsTopic(name, count, None)], TIMEOUT_MS)
        try:
            answer = await self._client.ask(self._client.any_broker(), CREATE_PARTITIONS, request, seconds=6)
        except CONNECTION_ERRORS:
            return
        if answer.results[0].error_code == ErrorCode.NONE:
            self._partitions[name] = count

    async def _change_leader(self) -> None:
        """Make another replica the preferred leader, and elect it if it is in the ISR. It may have to
        become a replica first.
        """
        random, image = self._client.random, self._cluster.truth.image
        name = random.choice(sorted(self._cluster.topics))
        state = random.choice(image.topics[name].partitions)
        nodes = random.choice((state.replicas, state.replicas, self._cluster.plan.nodes))
        replicas = random.sample(nodes, REPLICAS)
        wanted = ReassignableTopic(name, [ReassignablePartition(state.index, replicas)])
        reassigns = AlterPartitionReassignmentsRequest(TIMEOUT_MS, topics=[wanted])
        elects = ElectLeadersRequest(0, [TopicPartitions(name, [state.index])], TIMEOUT_MS)
        try:
            await self._client.ask(
                self._client.any_broker(), ALTER_PARTITION_REASSIGNMENTS, reassigns, seconds=6
            )
            await self._client.ask(self._client.any_broker(), ELECT_LEADERS, elects, seconds=6)
        except CONNECTION_ERRORS:
            return

    async def _change_minimum(self) -> None:
        name = self._client.random.choice(sorted(self._cluster.topics))
        await self.set_minimum(name, self._client.random.choice((1, 2, 2, 3)))

    async def set_minimum(self, name: str, minimum: int) -> bool:
        return await self._set(name, {MINIMUM: str(minimum)})

    async def _compact_quickly(self) -> None:
        """Set the compaction settings as soon as the compacted topic exists."""
        while GROUP_TOPIC not in self._cluster.truth.image.topics:
            await self._client.pause()
        await self.retry(partial(self._set, GROUP_TOPIC, COMPACTS_QUICKLY))

    async def _set(self, name: str, settings: Mapping[str, str]) -> bool:
        """Whether the change was confirmed."""
        wanted = [AlterableConfig(setting, SET_OPERATION, value) for setting, value in settings.items()]
        resource = AlterConfigsResource(TOPIC_RESOURCE, name, wanted)
        request = IncrementalAlterConfigsRequest([resource])
        try:
            answer = await self._client.ask(
                self._client.any_broker(), INCREMENTAL_ALTER_CONFIGS, request, seconds=6
            )
        except CONNECTION_ERRORS:
            return False
        return answer.responses[0].error_code == ErrorCode.NONE


class DeleteRecordsClient:
    """Sends DeleteRecords repeatedly. A confirmed deletion stays, whichever broker leads next."""

    def __init__(self, cluster: "SimCluster") -> None:
        self._cluster = cluster
        self._client = KafkaClient(cluster, "record-deleter")
        self._confirmed: asyncio.Future[ConfirmedDeletion] = cluster.loop.create_future()
        """The next deletion that is confirmed."""

    def start(self) -> None:
        self._client.run(self._run())

    async def _run(self) -> None:
        while self._cluster.is_producing:
            await self._client.pause(self._client.random.choice((0.1, 0.4, 1.0)))
            await self._delete()

    async def _delete(self) -> None:
        random, cluster = self._client.random, self._cluster
        name = random.choice(sorted(cluster.topics))
        topic = cluster.truth.image.topics[name]
        state = random.choice(topic.partitions)
        ledger = self._ledger(name, state.index)
        if state.leader < 0 or ledger.end - ledger.start_max < RECORDS_MIN:
            return
        offset = random.choice((random.randrange(ledger.start_max, ledger.end), UP_TO_HIGH_WATERMARK))
        if offset == UP_TO_HIGH_WATERMARK:
            # The high watermark at the time the request arrives is not known here.
            ledger.requested_start = OFFSET_MAX
        ledger.requested_start = max(ledger.requested_start, offset)
        await self._delete_records(name, state.index, offset)

    async def next_confirmed(self) -> ConfirmedDeletion:
        return await asyncio.shield(self._confirmed)

    async def complete(self, name: str, index: int) -> bool:
        """Repeat a deletion that one replica has made and others may not have. Whether it was confirmed.

        That replica was the leader when it received the request, and no longer led when it had stored the
        new start.
        """
        ledger = self._ledger(name, index)
        return ledger.deleted >= ledger.start_max or await self._delete_records(name, index, ledger.start_max)

    def _ledger(self, name: str, index: int) -> Ledger:
        return self._cluster.ledger(self._cluster.truth.image.topics[name].id, name, index)

    async def _delete_records(self, name: str, index: int, offset: int) -> bool:
        cluster, ledger = self._cluster, self._ledger(name, index)
        leader = cluster.truth.image.topics[name].partitions[index].leader
        wanted = DeleteRecordsTopic(name, [DeleteRecordsPartition(index, offset)])
        request = DeleteRecordsRequest([wanted], TIMEOUT_MS)
        try:
            answer = await self._client.ask(leader, DELETE_RECORDS, request, seconds=6)
        except CONNECTION_ERRORS:
            return False
        found = answer.topics[0].partitions[0]
        if found.error_code == ErrorCode.NONE:
            ledger.deleted = max(ledger.deleted, found.low_watermark)
            cluster.fault_counts["deleted-records"] += 1
            cluster.trace_and_hash(f"{ledger.name} starts at {found.low_watermark}")
            self._confirmed.set_result(ConfirmedDeletion(name, index, found.low_watermark))
            self._confirmed = cluster.loop.create_future()
        return found.error_code == ErrorCode.NONE
