"""What DescribeGroups and ConsumerGroupDescribe have in common.

Many groups are described a few at a time, and other requests run in between. All descriptions of a reply
share its byte limit, and a group that is named twice is described once.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from penstock.broker.context import RequestContext
from penstock.broker.groups.group_coordinator import Finish, GroupCoordinator, GroupLookup
from penstock.broker.groups.reply_budget import ReplyBudget
from penstock.broker.router import DeferredReply
from penstock.coordinator.outcome import Now
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.limits import GROUPS_REPORTED_PER_CHUNK
from penstock.protocol.messages.consumer_group_describe import DescribedConsumerGroup
from penstock.protocol.messages.describe_groups import DescribedGroup
from penstock.security.access import GROUP_OPERATIONS, Resource, ResourceType

Described = DescribedGroup | DescribedConsumerGroup


class Description(NamedTuple):
    """One kind of description."""

    describe: Callable[[str, GroupStateMachine, RequestContext], Described]
    size_bytes: Callable[[Any], int]
    """The approximate size of a description in memory and in the reply."""
    rejected: Callable[[str, ErrorCode, str], Described]
    response: Finish


def describe_groups(
    groups: GroupCoordinator,
    group_ids: Sequence[str],
    kind: Description,
    context: RequestContext,
    *,
    with_operations: bool,
) -> DeferredReply | Coroutine[Any, Any, Any]:
    budget = ReplyBudget()

    def lookup(group_id: str) -> GroupLookup:
        def describe(state: GroupStateMachine, now: Now) -> Described:
            described = kind.describe(group_id, state, context)
            if with_operations and not described.error_code:
                resource = Resource(ResourceType.GROUP, group_id)
                described.authorized_operations = context.operations_bits(GROUP_OPERATIONS, resource)
            budget.take(kind.size_bytes(described))
            return described

        return GroupLookup(group_id, describe, lambda code, detail: kind.rejected(group_id, code, detail))

    async def describe_many() -> Any:
        # The lookups take much more memory than the request: only those of a few requests exist at once.
        async with groups.long_replies:
            lookups = list(map(lookup, dict.fromkeys(group_ids)))
            return kind.response([described async for described in groups.query_in_chunks(lookups)])

    if len(group_ids) > GROUPS_REPORTED_PER_CHUNK:
        return describe_many()
    return groups.query_each(list(map(lookup, dict.fromkeys(group_ids))), kind.response)
