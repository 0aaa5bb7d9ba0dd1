"""ListPartitionReassignments: api key 46, version 0.

Lists the partitions that are being reassigned, with the replicas to be added and removed.

Behaviour
    Null requests all of them. Partitions that are not being reassigned, or do not exist, are left out.
    `replicas` are the current ones: the target replicas and those to be removed.
Differs from Kafka
    nothing known
"""

from collections.abc import Iterable

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.served_api import ON_CLUSTER, ServedApi, cluster_name, never_waits
from penstock.controller.reassignment import reassigning_partitions
from penstock.errors import ErrorCode
from penstock.metadata.cluster_image import ClusterImage, PartitionState
from penstock.protocol.messages.list_partition_reassignments import (
    LIST_PARTITION_REASSIGNMENTS,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from penstock.security.access import Operation


class ListPartitionReassignments:
    api = ServedApi(
        LIST_PARTITION_REASSIGNMENTS, Operation.DESCRIBE, ON_CLUSTER, cluster_name, weigh=never_waits
    )

    def __init__(self, cluster: MetadataService) -> None:
        self._cluster = cluster

    def __call__(
        self, request: ListPartitionReassignmentsRequest, context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        if context.cluster_denied:
            return ListPartitionReassignmentsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        image = self._cluster.image
        if request.topics is None:
            found = [(topic.name, state) for topic, state in reassigning_partitions(image)]
        else:
            found = list(_asked_for(image, request.topics))
        topics: dict[str, OngoingTopicReassignment] = {}
        for name, state in found:
            topics.setdefault(name, OngoingTopicReassignment(name)).partitions.append(_ongoing(state))
        return ListPartitionReassignmentsResponse(topics=list(topics.values()))


def _asked_for(
    image: ClusterImage, topics: Iterable[ListPartitionReassignmentsTopics]
) -> Iterable[tuple[str, PartitionState]]:
    for name, index in dict.fromkeys(
        (topic.name, index) for topic in topics for index in topic.partition_indexes
    ):
        state = image.partition(name, index)
        if state is not None and state.is_reassigning:
            yield name, state


def _ongoing(state: PartitionState) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        state.index, list(state.replicas), list(state.adding), list(state.removing)
    )
