"""ElectLeaders: api key 43, versions 0 to 2.

Elects leaders of partitions: the preferred leader, which is the first replica, or, where no replica with all
acknowledged records is left, any replica that is up. The reply is sent when the new leaders are elected.

Behaviour
    Preferred: ELECTION_NOT_NEEDED if the preferred leader leads already, PREFERRED_LEADER_NOT_AVAILABLE if it
    is down, is being drained, or is not in sync.
    Unclean: ELECTION_NOT_NEEDED if the partition has a leader, ELIGIBLE_LEADERS_NOT_AVAILABLE if no replica
    is up. Records that the elected leader lacks are lost, whatever unclean.leader.election.enable is: the
    operator requests it.
    Null elects for all partitions that need it, and the reply lists only those. A partition that occurs twice
    gets one reply. More than 10,000 in one request: POLICY_VIOLATION. A timeout of zero or less elects no
    leader: REQUEST_TIMED_OUT.
Versions
    1  election type, top-level error: INVALID_REQUEST if the type does not exist
Differs from Kafka
    Any broker carries out the request.
"""

from collections.abc import Iterable

from penstock.broker.cluster.metadata_changes import MetadataChange, no_controller_error
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.served_api import ON_CLUSTER, ServedApi, cluster_name
from penstock.controller.decision import Decide
from penstock.controller.elections import ElectionType, elect, is_election_needed
from penstock.controller.partitions import every_partition
from penstock.errors import ApiError, ErrorCode
from penstock.limits import PARTITION_CHANGES_AT_ONCE, PARTITIONS_CHANGED_MAX
from penstock.metadata.cluster_image import ClusterImage
from penstock.protocol.messages.elect_leaders import (
    ELECT_LEADERS,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from penstock.security.access import Operation
from penstock.types import TopicPartition

_KINDS = {kind.value: kind for kind in ElectionType}


class ElectLeaders:
    api = ServedApi(ELECT_LEADERS, Operation.ALTER, ON_CLUSTER, cluster_name)

    def __init__(self, cluster: MetadataService) -> None:
        self._cluster = cluster

    async def __call__(self, request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
        kind = _KINDS.get(request.election_type)
        rejection = self._rejection(request, context)
        if kind is None or rejection is not None:
            problem = rejection or ApiError(
                ErrorCode.INVALID_REQUEST, f"There is no election of type {request.election_type}."
            )
            # Version 0 has no top-level error, so every partition gets it.
            return _response(dict.fromkeys(_named(request), problem), problem.code)
        metadata_change = MetadataChange(self._cluster)
        names = _named(request)
        if request.topic_partitions is None:
            try:
                names = _in_need(await metadata_change.image(), kind)
            except ApiError as problem:
                return _response(dict.fromkeys(_in_need(self._cluster.image, kind), problem), problem.code)
        outcomes = await metadata_change.commit_each(
            [_election(name, kind) for name in names], independent=True, at_once=PARTITION_CHANGES_AT_ONCE
        )
        problems = {
            name: outcome if isinstance(outcome, ApiError) else None
            for name, outcome in zip(names, outcomes, strict=True)
        }
        # These partitions were elected by another broker between reading the image and committing.
        if request.topic_partitions is None:
            problems = {name: problem for name, problem in problems.items() if not _is_needless(problem)}
        rejection = no_controller_error(outcomes)
        return _response(problems, ErrorCode.NONE if rejection is None else rejection.code)

    def _rejection(self, request: ElectLeadersRequest, context: RequestContext) -> ApiError | None:
        if context.cluster_denied:
            return ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if sum(len(topic.partitions) for topic in request.topic_partitions or ()) > PARTITIONS_CHANGED_MAX:
            detail = f"One request names at most {PARTITIONS_CHANGED_MAX} partitions."
            return ApiError(ErrorCode.POLICY_VIOLATION, detail)
        if request.timeout_ms <= 0:
            return ApiError(ErrorCode.REQUEST_TIMED_OUT)
        return None


def _in_need(image: ClusterImage, kind: ElectionType) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, state.index)
        for topic, state in every_partition(image)
        if is_election_needed(image, state, kind)
    ]


def _named(request: ElectLeadersRequest) -> list[TopicPartition]:
    topics = request.topic_partitions or ()
    return list(
        dict.fromkeys(TopicPartition(topic.topic, index) for topic in topics for index in topic.partitions)
    )


def _election(name: TopicPartition, kind: ElectionType) -> Decide:
    return lambda image: elect(image, name.topic, name.partition, kind)


def _is_needless(problem: ApiError | None) -> bool:
    return problem is not None and problem.code == ErrorCode.ELECTION_NOT_NEEDED


def _response(
    problems: dict[TopicPartition, ApiError] | dict[TopicPartition, ApiError | None],
    code: ErrorCode = ErrorCode.NONE,
) -> ElectLeadersResponse:
    topics: dict[str, ReplicaElectionResult] = {}
    results: Iterable[tuple[TopicPartition, ApiError | None]] = problems.items()
    for name, problem in results:
        result = PartitionResult(name.partition)
        if problem is not None:
            result = PartitionResult(name.partition, problem.code, problem.detail or None)
        topics.setdefault(name.topic, ReplicaElectionResult(name.topic)).partition_result.append(result)
    return ElectLeadersResponse(error_code=code, replica_election_results=list(topics.values()))
