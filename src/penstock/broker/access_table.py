"""One row per API: what it does, to which kind of resource, and which ones a request names.

The router asks the authoriser about every name before the handler runs and hands the refused ones
to it. An API without a row cannot be routed.

Rule 1: a row names what the request itself names. What only the handler can know (a topic that is
        created on the way, every topic there is) it asks about itself, through its context.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from penstock.metadata.image import ClusterImage
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
from penstock.protocol.messages.fetch import FETCH
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
from penstock.protocol.messages.produce import PRODUCE
from penstock.protocol.messages.sync_group import SYNC_GROUP
from penstock.protocol.messages.unregister_broker import UNREGISTER_BROKER
from penstock.protocol.messages.update_features import UPDATE_FEATURES
from penstock.security.access import CLUSTER, Authorizer, Operation, Principal, Resource, ResourceType
from penstock.types import TopicId

Names = Callable[[Any, ClusterImage], Iterable[str]]


class AccessRow(NamedTuple):
    operation: Operation
    resource_type: ResourceType
    names: Names


def _nothing(request: Any, image: ClusterImage) -> Iterable[str]:
    return ()


def _cluster(request: Any, image: ClusterImage) -> Iterable[str]:
    return (CLUSTER.name,)


def _named(*path: str) -> Names:
    """The names found by following attributes, through lists on the way."""

    def names(request: Any, image: ClusterImage) -> Iterator[str]:
        found = [request]
        for step in path:
            values = [getattr(value, step) for value in found]
            found = [item for value in values for item in (value if isinstance(value, list) else [value])]
        return (name for name in found if name)

    return names


def _topics(list_field: str, name_field: str) -> Names:
    """Topics given by name or, where a version has only those, by id."""

    def names(request: Any, image: ClusterImage) -> Iterator[str]:
        for topic in getattr(request, list_field) or ():
            name = getattr(topic, name_field) or _name_of(image, topic.topic_id)
            if name:
                yield name

    return names


def _name_of(image: ClusterImage, topic_id: TopicId) -> str | None:
    topic = image.topics_by_id.get(topic_id)
    return topic.name if topic else None


def _deleted_topics(request: Any, image: ClusterImage) -> Iterable[str]:
    return [*request.topic_names, *_topics("topics", "name")(request, image)]


def _fetched_groups(request: Any, image: ClusterImage) -> Iterable[str]:
    return [request.group_id, *(group.group_id for group in request.groups)]


TOPIC, GROUP, ON_CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER

ACCESS: dict[int, AccessRow] = {
    PRODUCE.key: AccessRow(Operation.WRITE, TOPIC, _topics("topic_data", "name")),
    FETCH.key: AccessRow(Operation.READ, TOPIC, _topics("topics", "topic")),
    LIST_OFFSETS.key: AccessRow(Operation.DESCRIBE, TOPIC, _named("topics", "name")),
    METADATA.key: AccessRow(Operation.DESCRIBE, TOPIC, _topics("topics", "name")),
    FIND_COORDINATOR.key: AccessRow(Operation.DESCRIBE, GROUP, lambda r, _: [r.key, *r.coordinator_keys]),
    API_VERSIONS.key: AccessRow(Operation.DESCRIBE, ON_CLUSTER, _nothing),
    CREATE_TOPICS.key: AccessRow(Operation.CREATE, TOPIC, _named("topics", "name")),
    DELETE_TOPICS.key: AccessRow(Operation.DELETE, TOPIC, _deleted_topics),
    DELETE_RECORDS.key: AccessRow(Operation.DELETE, TOPIC, _named("topics", "name")),
    INIT_PRODUCER_ID.key: AccessRow(Operation.IDEMPOTENT_WRITE, ON_CLUSTER, _cluster),
    OFFSET_FOR_LEADER_EPOCH.key: AccessRow(Operation.DESCRIBE, TOPIC, _named("topics", "topic")),
    DESCRIBE_CONFIGS.key: AccessRow(Operation.DESCRIBE_CONFIGS, TOPIC, _named("resources", "resource_name")),
    ALTER_CONFIGS.key: AccessRow(Operation.ALTER_CONFIGS, TOPIC, _named("resources", "resource_name")),
    DESCRIBE_ACLS.key: AccessRow(Operation.DESCRIBE, ON_CLUSTER, _cluster),
    ALTER_REPLICA_LOG_DIRS.key: AccessRow(Operation.ALTER, ON_CLUSTER, _cluster),
    DESCRIBE_LOG_DIRS.key: AccessRow(Operation.DESCRIBE, ON_CLUSTER, _cluster),
    CREATE_PARTITIONS.key: AccessRow(Operation.ALTER, TOPIC, _named("topics", "name")),
    INCREMENTAL_ALTER_CONFIGS.key: AccessRow(
        Operation.ALTER_CONFIGS, TOPIC, _named("resources", "resource_name")
    ),
    DESCRIBE_CLUSTER.key: AccessRow(Operation.DESCRIBE, ON_CLUSTER, _nothing),
    DESCRIBE_PRODUCERS.key: AccessRow(Operation.READ, TOPIC, _named("topics", "name")),
    LIST_CONFIG_RESOURCES.key: AccessRow(Operation.DESCRIBE_CONFIGS, ON_CLUSTER, _cluster),
    DESCRIBE_TOPIC_PARTITIONS.key: AccessRow(Operation.DESCRIBE, TOPIC, _named("topics", "name")),
    ELECT_LEADERS.key: AccessRow(Operation.ALTER, ON_CLUSTER, _cluster),
    ALTER_PARTITION_REASSIGNMENTS.key: AccessRow(Operation.ALTER, ON_CLUSTER, _cluster),
    LIST_PARTITION_REASSIGNMENTS.key: AccessRow(Operation.DESCRIBE, ON_CLUSTER, _cluster),
    UNREGISTER_BROKER.key: AccessRow(Operation.ALTER, ON_CLUSTER, _cluster),
    UPDATE_FEATURES.key: AccessRow(Operation.ALTER, ON_CLUSTER, _cluster),
    OFFSET_COMMIT.key: AccessRow(Operation.READ, GROUP, _named("group_id")),
    OFFSET_FETCH.key: AccessRow(Operation.DESCRIBE, GROUP, _fetched_groups),
    OFFSET_DELETE.key: AccessRow(Operation.DELETE, GROUP, _named("group_id")),
    JOIN_GROUP.key: AccessRow(Operation.READ, GROUP, _named("group_id")),
    SYNC_GROUP.key: AccessRow(Operation.READ, GROUP, _named("group_id")),
    HEARTBEAT.key: AccessRow(Operation.READ, GROUP, _named("group_id")),
    LEAVE_GROUP.key: AccessRow(Operation.READ, GROUP, _named("group_id")),
    CONSUMER_GROUP_HEARTBEAT.key: AccessRow(Operation.READ, GROUP, _named("group_id")),
    LIST_GROUPS.key: AccessRow(Operation.DESCRIBE, ON_CLUSTER, _nothing),
    DESCRIBE_GROUPS.key: AccessRow(Operation.DESCRIBE, GROUP, _named("groups")),
    CONSUMER_GROUP_DESCRIBE.key: AccessRow(Operation.DESCRIBE, GROUP, _named("group_ids")),
    DELETE_GROUPS.key: AccessRow(Operation.DELETE, GROUP, _named("groups_names")),
    GROUP_REPORTS.key: AccessRow(Operation.CLUSTER_ACTION, ON_CLUSTER, _cluster),
    LOG_POSITIONS.key: AccessRow(Operation.CLUSTER_ACTION, ON_CLUSTER, _cluster),
}


def denied_names(
    row: AccessRow, request: Any, image: ClusterImage, principal: Principal, authorizer: Authorizer
) -> frozenset[str]:
    """The names in `request` that the principal may not touch."""
    return frozenset(
        name
        for name in row.names(request, image)
        if not authorizer.authorise(principal, row.operation, Resource(row.resource_type, name))
    )
