"""AlterPartitionReassignments: api key 45, versions 0 to 1.

Moves replicas of partitions to other brokers. The reply is sent when the reassignment has begun;
ListPartitionReassignments shows when it is complete.

Behaviour
    Brokers of the target must be registered, each named once: INVALID_REPLICA_ASSIGNMENT. So is a target that
    would leave no in-sync replica. The brokers may be down: the reassignment then waits for them.
    Null replicas cancel the reassignment under way and return to the replicas before it; if there is none:
    NO_REASSIGNMENT_IN_PROGRESS. A target that only reorders the replicas changes the preferred leader.
    Rejected partitions do not affect the others. A partition that occurs twice gets one reply,
    INVALID_REQUEST. More than 10,000 in one request: POLICY_VIOLATION. A timeout of zero or less moves
    nothing: REQUEST_TIMED_OUT. An error of the whole request is repeated for each partition.
Versions
    1  a change of the replication factor can be forbidden: INVALID_REPLICATION_FACTOR
Differs from Kafka
    Any broker carries out the request.
"""

from collections import Counter
from collections.abc import Mapping

from penstock.broker.cluster.metadata_changes import MetadataChange, no_controller_error
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.served_api import ON_CLUSTER, ServedApi, cluster_name
from penstock.controller.decision import Decide
from penstock.controller.reassignment import Reassignment, cancel, reassign
from penstock.errors import ApiError, ErrorCode
from penstock.limits import PARTITION_CHANGES_AT_ONCE, PARTITIONS_CHANGED_MAX
from penstock.protocol.messages.alter_partition_reassignments import (
    ALTER_PARTITION_REASSIGNMENTS,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from penstock.security.access import Operation
from penstock.types import TopicPartition

_TWICE = ApiError(ErrorCode.INVALID_REQUEST, "The partition is named twice in one request.")


class AlterPartitionReassignments:
    api = ServedApi(ALTER_PARTITION_REASSIGNMENTS, Operation.ALTER, ON_CLUSTER, cluster_name)

    def __init__(self, cluster: MetadataService) -> None:
        self._cluster = cluster

    async def __call__(
        self, request: AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> AlterPartitionReassignmentsResponse:
        named = Counter(
            TopicPartition(topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        )
        rejection = self._rejection(request, context)
        if rejection is not None:
            return _response(request, dict.fromkeys(named, rejection), rejection)
        decides = {name: decide for name, decide in _decides(request).items() if named[name] == 1}
        outcomes = await MetadataChange(self._cluster).commit_each(
            list(decides.values()), independent=True, at_once=PARTITION_CHANGES_AT_ONCE
        )
        problems: dict[TopicPartition, ApiError | None] = {
            name: outcome if isinstance(outcome, ApiError) else None
            for name, outcome in zip(decides, outcomes, strict=True)
        }
        problems = {name: problems.get(name, _TWICE) for name in named}
        return _response(request, problems, no_controller_error(outcomes))

    def _rejection(
        self, request: AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> ApiError | None:
        if context.cluster_denied:
            return ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if sum(len(topic.partitions) for topic in request.topics) > PARTITIONS_CHANGED_MAX:
            detail = f"One request names at most {PARTITIONS_CHANGED_MAX} partitions."
            return ApiError(ErrorCode.POLICY_VIOLATION, detail)
        if request.timeout_ms <= 0:
            return ApiError(ErrorCode.REQUEST_TIMED_OUT)
        return None


def _decides(request: AlterPartitionReassignmentsRequest) -> dict[TopicPartition, Decide]:
    allows = request.allow_replication_factor_change
    return {
        TopicPartition(topic.name, partition.partition_index): _decide(
            topic.name, partition.partition_index, partition.replicas, allows=allows
        )
        for topic in request.topics
        for partition in topic.partitions
    }


def _decide(name: str, index: int, replicas: list[int] | None, *, allows: bool) -> Decide:
    if replicas is None:
        return lambda image: cancel(image, name, index)
    wanted = Reassignment(name, index, tuple(replicas))
    return lambda image: reassign(image, wanted, allow_factor_change=allows)


def _response(
    request: AlterPartitionReassignmentsRequest,
    problems: Mapping[TopicPartition, ApiError | None],
    rejection: ApiError | None = None,
) -> AlterPartitionReassignmentsResponse:
    topics: dict[str, ReassignableTopicResponse] = {}
    for name, problem in problems.items():
        answer = _answer(name.partition, problem)
        topics.setdefault(name.topic, ReassignableTopicResponse(name.topic)).partitions.append(answer)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE if rejection is None else rejection.code,
        error_message=None if rejection is None else rejection.detail or None,
        responses=list(topics.values()),
    )


def _answer(index: int, problem: ApiError | None) -> ReassignablePartitionResponse:
    if problem is None:
        return ReassignablePartitionResponse(index)
    return ReassignablePartitionResponse(index, problem.code, problem.detail or None)
