"""OffsetDelete: api key 47, version 0.

Deletes committed offsets of a group. The reply is sent when the deletion is on disk.

Behaviour
    A group that does not exist is GROUP_ID_NOT_FOUND. A topic that the group subscribes to is
    GROUP_SUBSCRIBED_TO_TOPIC; a live group whose subscriptions cannot be determined is NON_EMPTY_GROUP.
    Deleting an offset that was never committed succeeds.
    Very many offsets are deleted in several batches, and other requests are processed between them.
Differs from Kafka
    nothing known
"""

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.groups.chunked_commands import CommandChunk
from penstock.broker.groups.group_coordinator import GroupCoordinator
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import GROUP, ServedApi, names_at
from penstock.coordinator.outcome import Now
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.limits import TOMBSTONES_AT_ONCE
from penstock.protocol.messages.offset_delete import (
    OFFSET_DELETE,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from penstock.security.access import Operation, ResourceType
from penstock.types import TopicPartition


class OffsetDelete:
    api = ServedApi(OFFSET_DELETE, Operation.DELETE, GROUP, names_at("group_id"))

    def __init__(self, groups: GroupCoordinator, cluster: MetadataService) -> None:
        self._groups = groups
        self._cluster = cluster

    def __call__(
        self, request: OffsetDeleteRequest, context: RequestContext
    ) -> OffsetDeleteResponse | DeferredReply:
        if request.group_id in context.denied:
            return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not request.group_id:
            return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        codes = {
            TopicPartition(topic.name, partition.partition_index): self._check(
                topic.name, partition.partition_index, context
            )
            for topic in request.topics
            for partition in topic.partitions
        }

        deletable = [partition for partition, code in codes.items() if code is ErrorCode.NONE]
        done = 0

        def delete(state: GroupStateMachine, now: Now) -> CommandChunk:
            nonlocal done
            some = deletable[done : done + TOMBSTONES_AT_ONCE]
            deletion = state.delete_offsets(request.group_id, some)
            codes.update(deletion.rejected)
            done += len(some)
            is_done = done == len(deletable)
            return (
                CommandChunk(deletion.records, _response(request, codes))
                if is_done
                else CommandChunk(deletion.records)
            )

        return self._groups.execute_chunked(
            request.group_id, delete, lambda code, _: OffsetDeleteResponse(error_code=code)
        )

    def _check(self, name: str, index: int, context: RequestContext) -> ErrorCode:
        if not context.may(Operation.READ, ResourceType.TOPIC, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if self._cluster.image.partition(name, index) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE


def _response(request: OffsetDeleteRequest, codes: dict[TopicPartition, ErrorCode]) -> OffsetDeleteResponse:
    response = OffsetDeleteResponse()
    for topic in request.topics:
        indexes = [partition.partition_index for partition in topic.partitions]
        answers = [
            OffsetDeleteResponsePartition(index, codes[TopicPartition(topic.name, index)])
            for index in indexes
        ]
        response.topics.append(OffsetDeleteResponseTopic(topic.name, answers))
    return response
