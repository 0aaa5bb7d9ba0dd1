"""The routes of this broker: one handler for each API, built from the parts of a running broker."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from penstock.broker.apis.alter_configs import AlterConfigs
from penstock.broker.apis.alter_partition_reassignments import AlterPartitionReassignments
from penstock.broker.apis.alter_replica_log_dirs import AlterReplicaLogDirs
from penstock.broker.apis.api_versions import ApiVersions
from penstock.broker.apis.consumer_group_describe import ConsumerGroupDescribe
from penstock.broker.apis.consumer_group_heartbeat import ConsumerGroupHeartbeat
from penstock.broker.apis.create_partitions import CreatePartitions
from penstock.broker.apis.create_topics import CreateTopics
from penstock.broker.apis.delete_groups import DeleteGroups
from penstock.broker.apis.delete_records import DeleteRecords
from penstock.broker.apis.delete_topics import DeleteTopics
from penstock.broker.apis.describe_acls import DescribeAcls
from penstock.broker.apis.describe_cluster import DescribeCluster
from penstock.broker.apis.describe_configs import DescribeConfigs
from penstock.broker.apis.describe_groups import DescribeGroups
from penstock.broker.apis.describe_log_dirs import DescribeLogDirs
from penstock.broker.apis.describe_producers import DescribeProducers
from penstock.broker.apis.describe_topic_partitions import DescribeTopicPartitions
from penstock.broker.apis.elect_leaders import ElectLeaders
from penstock.broker.apis.fetch import Fetch
from penstock.broker.apis.find_coordinator import FindCoordinator
from penstock.broker.apis.group_reports import GroupReports
from penstock.broker.apis.heartbeat import Heartbeat
from penstock.broker.apis.incremental_alter_configs import IncrementalAlterConfigs
from penstock.broker.apis.init_producer_id import InitProducerId
from penstock.broker.apis.join_group import JoinGroup
from penstock.broker.apis.leave_group import LeaveGroup
from penstock.broker.apis.list_config_resources import ListConfigResources
from penstock.broker.apis.list_groups import ListGroups
from penstock.broker.apis.list_offsets import ListOffsets
from penstock.broker.apis.list_partition_reassignments import ListPartitionReassignments
from penstock.broker.apis.log_positions import LogPositions
from penstock.broker.apis.metadata import Metadata
from penstock.broker.apis.offset_commit import OffsetCommit
from penstock.broker.apis.offset_delete import OffsetDelete
from penstock.broker.apis.offset_fetch import OffsetFetch
from penstock.broker.apis.offset_for_leader_epoch import OffsetForLeaderEpoch
from penstock.broker.apis.produce import Produce
from penstock.broker.apis.sync_group import SyncGroup
from penstock.broker.apis.unregister_broker import UnregisterBroker
from penstock.broker.apis.update_features import UpdateFeatures
from penstock.broker.apis.write_txn_markers import WriteTxnMarkers
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.cluster.topic_creation import TopicCreation
from penstock.broker.context import RequestContext
from penstock.broker.data.append import BatchAppender
from penstock.broker.data.fetch_reader import NO_FOLLOWERS, FetchReader, Followers
from penstock.broker.data.fetch_sessions import FetchSessions
from penstock.broker.data.pending_fetch import FetchCapacity
from penstock.broker.data.pending_produce import PRODUCE_LIMITS, ProduceLimits
from penstock.broker.data.timestamp_lookups import TimeLookups
from penstock.broker.groups.group_coordinator import GroupCoordinator
from penstock.broker.groups.group_lag import GroupLagReporter
from penstock.broker.groups.log_positions import LogPositionLookup
from penstock.broker.router import Route, Router
from penstock.broker.served_api import ServedApi
from penstock.broker.storage.cold_reads import ColdReads
from penstock.broker.storage.partition_storage import Storage
from penstock.host.clock import Clock
from penstock.host.randomness import Randomness
from penstock.host.tasks import Tasks
from penstock.host.worker import WorkerPool
from penstock.log.data_directory import DataDirectory


class ServingHandler(Protocol):
    """A handler from `apis/`, whose class declares the API that it serves."""

    @property
    def api(self) -> ServedApi: ...

    def __call__(self, request: Any, context: RequestContext) -> Any: ...


class HandlerDependencies(NamedTuple):
    """The parts of a running broker that handlers use."""

    cluster: MetadataService
    storage: Storage
    groups: GroupCoordinator
    creation: TopicCreation
    directory: DataDirectory
    pool: WorkerPool
    cold_reads: ColdReads
    lookups: TimeLookups
    tasks: Tasks
    clock: Clock
    randomness: Randomness
    data_path: str
    """The absolute path of the data directory, for operators."""
    free_reply_bytes: Callable[[], int]
    group_reports: GroupLagReporter
    log_positions: LogPositionLookup
    followers: Followers = NO_FOLLOWERS
    produce_limits: ProduceLimits = PRODUCE_LIMITS


def add_routes(router: Router, parts: HandlerDependencies) -> None:
    produce = _produce(parts)
    router.add(Route(produce.api, produce, check=produce.require_few_batches))
    markers = WriteTxnMarkers(parts.storage.partitions, _appender(parts), parts.clock)
    router.add(Route(markers.api, markers, check=markers.require_few_markers))
    for handler in (
        *_log_handlers(parts),
        *_metadata_handlers(router, parts),
        *_cluster_handlers(parts),
        *_group_handlers(parts),
        *_config_handlers(parts),
        GroupReports(parts.group_reports),
        LogPositions(parts.log_positions),
    ):
        router.add(Route(handler.api, handler))


def _produce(parts: HandlerDependencies) -> Produce:
    storage = parts.storage
    return Produce(
        storage.partitions,
        _appender(parts),
        parts.clock,
        lambda: parts.cluster.store_unavailable_since is not None,
        parts.produce_limits,
    )


def _appender(parts: HandlerDependencies) -> BatchAppender:
    return BatchAppender(
        parts.storage.note_full,
        parts.storage.fail,
        parts.followers.leadership_confirmed,
        allows_transactions=parts.produce_limits.allows_transactions,
    )


def _log_handlers(parts: HandlerDependencies) -> list[ServingHandler]:
    storage, partitions = parts.storage, parts.storage.partitions
    fetch_config = parts.cluster.config.fetch
    reader = FetchReader(partitions, parts.cold_reads, parts.followers)
    sessions = FetchSessions(fetch_config.sessions_max, parts.clock, parts.randomness)
    capacity = FetchCapacity(parts.free_reply_bytes, fetch_config.fetch_bytes_max)
    return [
        Fetch(reader, parts.followers, sessions, capacity, parts.tasks),
        ListOffsets(partitions, parts.lookups),
        OffsetForLeaderEpoch(partitions),
        DeleteRecords(parts.cluster, partitions, storage),
        DescribeProducers(partitions),
        DescribeLogDirs(parts.directory, partitions, parts.pool, parts.data_path, lambda: partitions.failure),
        AlterReplicaLogDirs(parts.cluster, partitions, parts.data_path, lambda: partitions.failure),
    ]


def _metadata_handlers(router: Router, parts: HandlerDependencies) -> list[ServingHandler]:
    cluster, creation = parts.cluster, parts.creation
    return [
        ApiVersions(router.supported, lambda: cluster.image),
        Metadata(cluster, creation),
        FindCoordinator(cluster, parts.groups.ensure_topic),
        CreateTopics(cluster, creation),
        DeleteTopics(cluster),
        CreatePartitions(cluster),
        InitProducerId(cluster),
        DescribeCluster(cluster),
        DescribeTopicPartitions(cluster),
    ]


def _cluster_handlers(parts: HandlerDependencies) -> list[ServingHandler]:
    cluster = parts.cluster
    return [
        ElectLeaders(cluster),
        AlterPartitionReassignments(cluster),
        ListPartitionReassignments(cluster),
        UnregisterBroker(cluster),
        UpdateFeatures(cluster),
        DescribeAcls(),
    ]


def _group_handlers(parts: HandlerDependencies) -> list[ServingHandler]:
    groups, cluster = parts.groups, parts.cluster
    return [
        JoinGroup(groups),
        SyncGroup(groups),
        Heartbeat(groups),
        LeaveGroup(groups),
        OffsetCommit(groups, cluster, parts.clock),
        OffsetFetch(groups, cluster),
        OffsetDelete(groups, cluster),
        ConsumerGroupHeartbeat(groups),
        ConsumerGroupDescribe(groups),
        ListGroups(groups),
        DescribeGroups(groups),
        DeleteGroups(groups),
    ]


def _config_handlers(parts: HandlerDependencies) -> list[ServingHandler]:
    cluster = parts.cluster
    return [
        DescribeConfigs(cluster),
        AlterConfigs(cluster),
        IncrementalAlterConfigs(cluster),
        ListConfigResources(cluster),
    ]
