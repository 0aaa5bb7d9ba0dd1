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
from penstock.broker.groups.group_coordinator import GroupCoordinator, GroupLookup
from penstock.broker.groups.reply_budget import ReplyBudget
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import GROUP, ServedApi, names_at
from penstock.coordinator.outcome import Now
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.limits import GROUPS_REPORTED_PER_TURN
from penstock.protocol.messages.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from penstock.security.access import GROUP_OPERATIONS, Operation, Resource, ResourceType

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
        if len(request.group_ids) > GROUPS_REPORTED_PER_TURN:
            return self._many(request, context)
        return self._groups.query_each(self._questions(request, context), _response)

    async def _many(
        self, request: ConsumerGroupDescribeRequest, context: RequestContext
    ) -> ConsumerGroupDescribeResponse:
        async with self._groups.long_replies:
            questions = self._questions(request, context)
            return _response([group async for group in self._groups.query_in_chunks(questions)])

    def _questions(self, request: ConsumerGroupDescribeRequest, context: RequestContext) -> list[GroupLookup]:
        budget = ReplyBudget()

        def question(group_id: str) -> GroupLookup:
            def describe(state: GroupStateMachine, now: Now) -> DescribedConsumerGroup:
                described = _describe(group_id, state, context)
                if request.include_authorized_operations and not described.error_code:
                    resource = Resource(ResourceType.GROUP, group_id)
                    described.authorized_operations = context.operations_bits(GROUP_OPERATIONS, resource)
                budget.take(_weigh(described))
                return described

            return GroupLookup(group_id, describe, lambda code, detail: _rejected(group_id, code, detail))

        return [question(group_id) for group_id in dict.fromkeys(request.group_ids)]


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


def _weigh(described: DescribedConsumerGroup) -> int:
    """The approximate size of the description in memory and in the reply."""
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
