"""DescribeTopicPartitions: api key 75, version 0.

Describes topics page by page, in the order of their names. A cursor marks where the next page begins.

Behaviour
    An empty list requests all topics that the client may describe, from the cursor on. A page holds as many
    partitions as the client requests, at least 1 and at most 2,000. The cursor's topic must be among the
    requested ones, and its partition not below 0: otherwise every topic is INVALID_REQUEST.
    An illegal topic name (the empty one) fails the request: every topic is UNKNOWN_SERVER_ERROR, as in Kafka.
    Authorised operations are always filled in. Denied topics come last. No topic is created.
Versions
    only one
Differs from Kafka
    nothing known
"""

from collections.abc import Iterable, Sequence

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.cluster.metadata_view import (
    BrokersById,
    is_legal_name,
    leader_of,
    may_describe,
    offline_replicas,
)
from penstock.broker.context import RequestContext
from penstock.broker.served_api import TOPIC, ServedApi, names_at, never_waits
from penstock.errors import ErrorCode
from penstock.metadata.cluster_image import INTERNAL_TOPICS, ClusterImage, PartitionState
from penstock.metadata.durability import eligible_leaders
from penstock.protocol.messages.describe_topic_partitions import (
    DESCRIBE_TOPIC_PARTITIONS,
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from penstock.security.access import TOPIC_OPERATIONS, Operation, Resource, ResourceType

PARTITIONS_PER_PAGE_MAX = 2_000
NO_CURSOR = Cursor()


class DescribeTopicPartitions:
    api = ServedApi(
        DESCRIBE_TOPIC_PARTITIONS, Operation.DESCRIBE, TOPIC, names_at("topics", "name"), weigh=never_waits
    )

    def __init__(self, cluster: MetadataService) -> None:
        self._cluster = cluster

    def __call__(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext
    ) -> DescribeTopicPartitionsResponse:
        image = self._cluster.image
        asked = {topic.name for topic in request.topics}
        problem = _whole_request_error(asked, request.cursor)
        if problem is not None:
            return DescribeTopicPartitionsResponse(
                topics=[_rejected(name, problem) for name in sorted(asked)]
            )
        cursor = request.cursor or NO_CURSOR
        names = sorted(name for name in asked or image.topics if name >= cursor.topic_name)
        allowed = [name for name in names if may_describe(context, name)]
        limit = max(1, min(request.response_partition_limit, PARTITIONS_PER_PAGE_MAX))
        page = _Page(image, context, limit)
        page.fill(allowed, cursor)
        denied = sorted(set(names).difference(allowed)) if asked else []
        rejected = [_rejected(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for name in denied]
        return DescribeTopicPartitionsResponse(topics=page.topics + rejected, next_cursor=page.next_cursor)


class _Page:
    def __init__(self, image: ClusterImage, context: RequestContext, limit: int) -> None:
        self._image = image
        self._context = context
        self._room = limit
        self.topics: list[DescribeTopicPartitionsResponseTopic] = []
        self.next_cursor: Cursor | None = None

    def fill(self, names: Sequence[str], cursor: Cursor) -> None:
        for name in names:
            if self._room == 0:
                self.next_cursor = Cursor(name, 0)
            else:
                self._add(name, cursor.partition_index if name == cursor.topic_name else 0)
            if self.next_cursor is not None:
                return

    def _add(self, name: str, first: int) -> None:
        resource = Resource(ResourceType.TOPIC, name)
        bits = self._context.operations_bits(TOPIC_OPERATIONS, resource)
        topic = self._image.topics.get(name)
        if topic is None:
            legal = is_legal_name(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC_EXCEPTION
            missing = _rejected(name, code)
            missing.is_internal = name in INTERNAL_TOPICS
            missing.topic_authorized_operations = bits
            self.topics.append(missing)
            return
        states = topic.partitions[first : first + self._room]
        self._room -= len(states)
        if first + len(states) < len(topic.partitions):
            self.next_cursor = Cursor(name, first + len(states))
        self.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.id,
                is_internal=topic.internal,
                partitions=[
                    _partition(state, self._image.brokers, eligible_leaders(self._image, topic, state))
                    for state in states
                ],
                topic_authorized_operations=bits,
            )
        )


def _whole_request_error(asked: Iterable[str], cursor: Cursor | None) -> ErrorCode | None:
    names = set(asked)
    if cursor is not None and (cursor.partition_index < 0 or (names and cursor.topic_name not in names)):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.UNKNOWN_SERVER_ERROR if "" in names else None


def _rejected(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(code, name)


def _partition(
    state: PartitionState, brokers: BrokersById, eligible_leaders: Sequence[int]
) -> DescribeTopicPartitionsResponsePartition:
    error_code, leader = leader_of(state, brokers)
    return DescribeTopicPartitionsResponsePartition(
        error_code=error_code,
        partition_index=state.index,
        leader_id=leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        # Without eligible leaders Kafka sends empty lists, not null.
        eligible_leader_replicas=list(eligible_leaders),
        last_known_elr=list(state.last_known_elr),
        offline_replicas=offline_replicas(state, brokers),
    )
