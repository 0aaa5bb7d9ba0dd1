"""ConsumerGroupDescribe: api key 69, versions 0 to 1.

Shows groups of the new protocol: epochs, members, what each holds and shall hold.

Behaviour
    A group that does not exist, or is of another type, is GROUP_ID_NOT_FOUND: tools then ask with
    DescribeGroups.
Versions
    1  which protocol a member speaks
Differs from Kafka
    A group that is named twice is answered once.
"""

from penstock.broker.context import RequestContext
from penstock.broker.group_coordinator import GroupCoordinator, asking
from penstock.broker.router import Later
from penstock.errors import ErrorCode
from penstock.groups.groups import Groups
from penstock.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from penstock.security.access import GROUP_OPERATIONS, Operation, Resource, ResourceType


class ConsumerGroupDescribe:
    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def __call__(self, request: ConsumerGroupDescribeRequest, context: RequestContext) -> Later:
        def describe(group_id: str, state: Groups) -> DescribedConsumerGroup:
            if group_id in context.denied:
                return _refused(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
            if not group_id:
                return _refused(group_id, ErrorCode.INVALID_GROUP_ID)
            described = state.describe_consumer(group_id)
            if described is None:
                return _refused(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
            if not _may_see_topics(described, context):
                return _refused(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if request.include_authorized_operations:
                resource = Resource(ResourceType.GROUP, group_id)
                described.authorized_operations = context.operations_bits(GROUP_OPERATIONS, resource)
            return described

        return self._groups.each(
            list(dict.fromkeys(request.group_ids)),
            lambda group_id: asking(lambda state, now: describe(group_id, state)),
            lambda group_id: lambda code, detail: _refused(group_id, code, detail),
            lambda groups: ConsumerGroupDescribeResponse(groups=groups),
        )


def _may_see_topics(described: DescribedConsumerGroup, context: RequestContext) -> bool:
    """A description names topics; whoever may not see one of them is not shown half of it."""
    names = {
        topic.topic_name
        for member in described.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
    return all(context.may(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in names)


def _refused(group_id: str, code: ErrorCode, detail: str = "") -> DescribedConsumerGroup:
    return DescribedConsumerGroup(error_code=code, error_message=detail or None, group_id=group_id)
