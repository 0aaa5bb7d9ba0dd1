"""ConsumerGroupHeartbeat: api key 68, versions 0 to 1.

Handles a member of the consumer protocol: it joins, reports its partitions, receives its target assignment,
and leaves. The broker computes the assignment.

Behaviour
    A partition is reassigned only when its old owner has released it or has left the group.
    The reply contains the next heartbeat interval: shorter while partitions are being reassigned.
    A topic that the client may not describe is TOPIC_AUTHORIZATION_FAILED when it is named, and is matched by
    no regular expression.
Versions
    1  regular expressions; the member chooses its own id
Differs from Kafka
    docs/protocol-gaps.md: heartbeat intervals
"""

from penstock.broker.context import RequestContext
from penstock.broker.groups.group_coordinator import GroupCoordinator, client_info
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import GROUP, ServedApi, names_at
from penstock.errors import ErrorCode
from penstock.groups.consumer.consumer_heartbeat import ConsumerCaller
from penstock.protocol.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.security.access import Operation, ResourceType


class ConsumerGroupHeartbeat:
    api = ServedApi(CONSUMER_GROUP_HEARTBEAT, Operation.READ, GROUP, names_at("group_id"))

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def __call__(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> ConsumerGroupHeartbeatResponse | DeferredReply:
        if request.group_id in context.denied:
            return _rejected(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        for name in request.subscribed_topic_names or ():
            if not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
                return _rejected(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        version, client = context.version, client_info(context)

        def can_describe(topic: str) -> bool:
            return context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic)

        return self._groups.execute(
            request.group_id,
            lambda state, pending, now: state.consumer_heartbeat(
                request, ConsumerCaller(version, client, pending, can_describe), now
            ),
            _rejected,
        )


def _rejected(code: ErrorCode, detail: str = "") -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=detail or None)
