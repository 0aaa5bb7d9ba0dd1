"""ConsumerGroupDescribe: api key 69, versions 0 to 1.

Describes groups of the consumer protocol: epochs, members, current and target assignments.

Behaviour
    A group that does not exist, or is of another type, is GROUP_ID_NOT_FOUND: tools then send DescribeGroups.
Versions
    1  the protocol of each member
Differs from Kafka
    A group that is named twice is described once.
    Groups that would make the reply too large are POLICY_VIOLATION.
"""

from collections.abc import Coroutine
from typing import Any, Final

from penstock.broker.context import RequestContext
from penstock.broker.groups.group_coordinator import GroupCoordinator
from penstock.broker.groups.group_descriptions import Description, describe_groups
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import GROUP, ServedApi, names_at
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.protocol.messages.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from penstock.security.access import Operation, ResourceType

_ENTRY_BYTES: Final = 500
_TOPIC_BYTES: Final = 100
_PARTITION_BYTES: Final = 12
"""Size of a member, a topic and a partition, in addition to their names."""


class ConsumerGroupDescribe:
    api = ServedApi(CONSUMER_GROUP_DESCRIBE, Operation.DESCRIBE, GROUP, names_at("group_ids"))

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def __call__(
        self, request: ConsumerGroupDescribeRequest, context: RequestContext
    ) -> DeferredReply | Coroutine[Any, Any, ConsumerGroupDescribeResponse]:
        with_operations = request.include_authorized_operations
        return describe_groups(
            self._groups, request.group_ids, DESCRIPTION, context, with_operations=with_operations
        )


def _describe(group_id: str, state: GroupStateMachine, context: RequestContext) -> DescribedConsumerGroup:
    if group_id in context.denied:
        return _rejected(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not group_id:
        return _rejected(group_id, ErrorCode.INVALID_GROUP_ID)
    described = state.describe_consumer(group_id)
    if described is None:
        return _rejected(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if not _may_see_topics(described, context):
        return _rejected(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return described


def _size_bytes(described: DescribedConsumerGroup) -> int:
    size = _ENTRY_BYTES * (1 + len(described.members)) + len(described.group_id)
    for member in described.members:
        size += sum(_TOPIC_BYTES + len(name) for name in member.subscribed_topic_names)
        for assignment in (member.assignment, member.target_assignment):
            for topic in assignment.topic_partitions:
                size += _TOPIC_BYTES + len(topic.topic_name) + _PARTITION_BYTES * len(topic.partitions)
    return size


def _response(groups: list[DescribedConsumerGroup]) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=groups)


def _may_see_topics(described: DescribedConsumerGroup, context: RequestContext) -> bool:
    """Whether the client may describe every topic that the description names; otherwise the group is
    rejected.
    """
    names = {
        topic.topic_name
        for member in described.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
    return all(context.may(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in names)


def _rejected(group_id: str, code: ErrorCode, detail: str = "") -> DescribedConsumerGroup:
    return DescribedConsumerGroup(error_code=code, error_message=detail or None, group_id=group_id)


DESCRIPTION: Final = Description(_describe, _size_bytes, _rejected, _response)
