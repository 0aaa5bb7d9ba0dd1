"""What this broker serves: every API with its handler and what that works with."""

from collections.abc import Callable
from typing import NamedTuple

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
from penstock.broker.cluster.metadata_service import Cluster
from penstock.broker.cluster.topic_creation import TopicCreation
from penstock.broker.data.append import Appending
from penstock.broker.data.fetch_reader import NO_FOLLOWERS, FetchReads, Followers
from penstock.broker.data.fetch_sessions import FetchSessions, RecalledFetch
from penstock.broker.data.pending_produce import ACKS_NONE, PRODUCE_LIMITS, ProduceLimits
from penstock.broker.data.timestamp_lookup import TimeLookups
from penstock.broker.groups.group_coordinator import GroupCoordinator
from penstock.broker.groups.group_lag import GroupReports as Reports
from penstock.broker.groups.log_positions import LogPositions as Positions
from penstock.broker.router import Route, Router, never_waits
from penstock.broker.storage.cold_reads import ColdReads
from penstock.broker.storage.storage import Storage
from penstock.host.clock import Clock
from penstock.host.randomness import Randomness
from penstock.host.tasks import Tasks
from penstock.host.worker import WorkerPool
from penstock.limits import DECODED_PARTITION_BYTES, DECODED_REQUEST_BYTES
from penstock.log.data_directory import DataDirectory
from penstock.protocol.messages.alter_configs import ALTER_CONFIGS
from penstock.protocol.messages.alter_partition_reassignments import ALTER_PARTITION_REASSIGNMENTS
from penstock.protocol.messages.alter_replica_log_dirs import ALTER_REPLICA_LOG_DIRS
from penstock.protocol.messages.api_versions import API_VERSIONS
from penstock.protocol.messages.consumer_group_describe import CONSUMER_GROUP_DESCRIBE
from penstock.protocol.messages.consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from penstock.protocol.messages.create_partitions import CREATE_PARTITIONS
from penstock.protocol.messages.create_topics import CREATE_TOPICS
from penstock.protocol.messages.delete_groups import DELETE_GROUPS
from penstock.protocol.messages.delete_records import DELETE_RECORDS
from penstock.protocol.messages.delete_topics import DELETE_TOPICS
from penstock.protocol.messages.describe_acls import DESCRIBE_ACLS
from penstock.protocol.messages.describe_cluster import DESCRIBE_CLUSTER
from penstock.protocol.messages.describe_configs import DESCRIBE_CONFIGS
from penstock.protocol.messages.describe_groups import DESCRIBE_GROUPS
from penstock.protocol.messages.describe_log_dirs import DESCRIBE_LOG_DIRS
from penstock.protocol.messages.describe_producers import DESCRIBE_PRODUCERS
from penstock.protocol.messages.describe_topic_partitions import DESCRIBE_TOPIC_PARTITIONS
from penstock.protocol.messages.elect_leaders import ELECT_LEADERS
from penstock.protocol.messages.fetch import FETCH, FetchRequest
from penstock.protocol.messages.find_coordinator import FIND_COORDINATOR
from penstock.protocol.messages.group_reports import GROUP_REPORTS
from penstock.protocol.messages.heartbeat import HEARTBEAT
from penstock.protocol.messages.incremental_alter_configs import INCREMENTAL_ALTER_CONFIGS
from penstock.protocol.messages.init_producer_id import INIT_PRODUCER_ID
from penstock.protocol.messages.join_group import JOIN_GROUP
from penstock.protocol.messages.leave_group import LEAVE_GROUP
from penstock.protocol.messages.list_config_resources import LIST_CONFIG_RESOURCES
from penstock.protocol.messages.list_groups import LIST_GROUPS
from penstock.protocol.messages.list_offsets import LIST_OFFSETS
from penstock.protocol.messages.list_partition_reassignments import LIST_PARTITION_REASSIGNMENTS
from penstock.protocol.messages.log_positions import LOG_POSITIONS
from penstock.protocol.messages.metadata import METADATA
from penstock.protocol.messages.offset_commit import OFFSET_COMMIT
from penstock.protocol.messages.offset_delete import OFFSET_DELETE
from penstock.protocol.messages.offset_fetch import OFFSET_FETCH
from penstock.protocol.messages.offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from penstock.protocol.messages.produce import PRODUCE, ProduceRequest
from penstock.protocol.messages.sync_group import SYNC_GROUP
from penstock.protocol.messages.unregister_broker import UNREGISTER_BROKER
from penstock.protocol.messages.update_features import UPDATE_FEATURES
from penstock.protocol.schema import Struct


class Parts(NamedTuple):
    """The parts of a running broker that handlers work with."""

    cluster: Cluster
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
    """Absolute, for people."""
    reply_room: Callable[[], int]
    group_reports: Reports
    log_positions: Positions
    followers: Followers = NO_FOLLOWERS
    produce_limits: ProduceLimits = PRODUCE_LIMITS


def add_routes(router: Router, parts: Parts) -> None:
    for routes in (
        _data_routes(parts),
        _metadata_routes(router, parts),
        _cluster_routes(parts),
        _group_routes(parts),
        _config_routes(parts),
        _routes_between_brokers(parts),
    ):
        for route in routes:
            router.add(route)


def weigh_produce(request: ProduceRequest, frame_bytes: int) -> int:
    """Its bytes are records, which are in the log by now; what waits is an answer for each batch.

    Without acks there are no answers. Batches that wait to be looked into are counted where they wait.
    """
    if request.acks == ACKS_NONE:
        return DECODED_REQUEST_BYTES
    count = sum([len(topic.partition_data) for topic in request.topic_data])
    return DECODED_REQUEST_BYTES + DECODED_PARTITION_BYTES * count


def weigh_fetch(request: FetchRequest, frame_bytes: int) -> int:
    """What waits are its partitions. Those that a session adds are counted there."""
    if isinstance(request, RecalledFetch):
        return DECODED_REQUEST_BYTES + DECODED_PARTITION_BYTES * len(request.wanted)
    count = sum([len(topic.partitions) for topic in request.topics])
    return DECODED_REQUEST_BYTES + DECODED_PARTITION_BYTES * count


def weigh_parked(request: Struct, frame_bytes: int) -> int:
    """A member that waits for others. What it said is the group's by now, and is bounded there."""
    return DECODED_REQUEST_BYTES


def _data_routes(parts: Parts) -> list[Route]:
    storage, partitions = parts.storage, parts.storage.partitions
    fetch_config = parts.cluster.config.fetch
    followers = parts.followers
    reads = FetchReads(partitions, parts.cold_reads, followers)
    sessions = FetchSessions(fetch_config.sessions_max, parts.clock, parts.randomness)
    fetch = Fetch(reads, sessions, parts.tasks, fetch_config.fetch_bytes_max, parts.reply_room)
    produce = Produce(
        partitions,
        Appending(storage.note_full, storage.fail, followers.is_certain),
        parts.clock,
        lambda: parts.cluster.store_away_since is not None,
        parts.produce_limits,
    )
    return [
        # Kafka serves Produce from version 3 and says 0: old librdkafka takes a higher minimum to
        # mean that the broker knows no compression.
        Route(
            PRODUCE,
            produce,
            oldest_advertised=0,
            weigh=weigh_produce,
            check=produce.require_few_batches,
        ),
        Route(FETCH, fetch, weigh=weigh_fetch),
        Route(LIST_OFFSETS, ListOffsets(partitions, parts.lookups)),
        Route(OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpoch(partitions), weigh=never_waits),
        Route(DELETE_RECORDS, DeleteRecords(parts.cluster, partitions, storage)),
        Route(DESCRIBE_PRODUCERS, DescribeProducers(partitions), weigh=never_waits),
        Route(
            DESCRIBE_LOG_DIRS,
            DescribeLogDirs(
                parts.directory, partitions, parts.pool, parts.data_path, lambda: partitions.failure
            ),
        ),
        Route(
            ALTER_REPLICA_LOG_DIRS,
            AlterReplicaLogDirs(parts.cluster, partitions, parts.data_path, lambda: partitions.failure),
            weigh=never_waits,
        ),
    ]


def _metadata_routes(router: Router, parts: Parts) -> list[Route]:
    cluster, creation = parts.cluster, parts.creation
    return [
        Route(API_VERSIONS, ApiVersions(router.supported, lambda: cluster.image), weigh=never_waits),
        Route(METADATA, Metadata(cluster, creation)),
        Route(FIND_COORDINATOR, FindCoordinator(cluster, parts.groups.ensure_topic)),
        Route(CREATE_TOPICS, CreateTopics(cluster, creation)),
        Route(DELETE_TOPICS, DeleteTopics(cluster)),
        Route(CREATE_PARTITIONS, CreatePartitions(cluster)),
        Route(INIT_PRODUCER_ID, InitProducerId(cluster)),
        Route(DESCRIBE_CLUSTER, DescribeCluster(cluster), weigh=never_waits),
        Route(DESCRIBE_TOPIC_PARTITIONS, DescribeTopicPartitions(cluster), weigh=never_waits),
    ]


def _cluster_routes(parts: Parts) -> list[Route]:
    cluster = parts.cluster
    return [
        Route(ELECT_LEADERS, ElectLeaders(cluster)),
        Route(ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignments(cluster)),
        Route(LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignments(cluster), weigh=never_waits),
        Route(UNREGISTER_BROKER, UnregisterBroker(cluster)),
        Route(UPDATE_FEATURES, UpdateFeatures(cluster)),
        Route(DESCRIBE_ACLS, DescribeAcls(), weigh=never_waits),
    ]


def _group_routes(parts: Parts) -> list[Route]:
    groups, cluster = parts.groups, parts.cluster
    return [
        Route(JOIN_GROUP, JoinGroup(groups), weigh=weigh_parked),
        Route(SYNC_GROUP, SyncGroup(groups), weigh=weigh_parked),
        Route(HEARTBEAT, Heartbeat(groups)),
        Route(LEAVE_GROUP, LeaveGroup(groups)),
        Route(OFFSET_COMMIT, OffsetCommit(groups, cluster, parts.clock)),
        Route(OFFSET_FETCH, OffsetFetch(groups, cluster)),
        Route(OFFSET_DELETE, OffsetDelete(groups, cluster)),
        Route(CONSUMER_GROUP_HEARTBEAT, ConsumerGroupHeartbeat(groups)),
        Route(CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribe(groups)),
        Route(LIST_GROUPS, ListGroups(groups)),
        Route(DESCRIBE_GROUPS, DescribeGroups(groups)),
        Route(DELETE_GROUPS, DeleteGroups(groups)),
    ]


def _config_routes(parts: Parts) -> list[Route]:
    cluster = parts.cluster
    return [
        Route(DESCRIBE_CONFIGS, DescribeConfigs(cluster), weigh=never_waits),
        Route(ALTER_CONFIGS, AlterConfigs(cluster)),
        Route(INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigs(cluster)),
        Route(LIST_CONFIG_RESOURCES, ListConfigResources(cluster), weigh=never_waits),
    ]


def _routes_between_brokers(parts: Parts) -> list[Route]:
    return [
        Route(GROUP_REPORTS, GroupReports(parts.group_reports), is_listed=False),
        Route(LOG_POSITIONS, LogPositions(parts.log_positions), is_listed=False),
    ]
