"""Requests about a consumer group, sent to the group's coordinator."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from penstock.cli.broker_connector import BrokerClient, BrokerConnector, failures_explained
from penstock.cli.topic_metadata import list_topics
from penstock.config.listeners import Address
from penstock.errors import CommandFailed, ErrorCode
from penstock.protocol.messages.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
)
from penstock.protocol.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
)
from penstock.protocol.messages.delete_groups import DELETE_GROUPS, DeleteGroupsRequest
from penstock.protocol.messages.describe_groups import DESCRIBE_GROUPS, DescribeGroupsRequest
from penstock.protocol.messages.leave_group import LEAVE_GROUP, LeaveGroupRequest, MemberIdentity
from penstock.protocol.messages.list_groups import LIST_GROUPS, ListedGroup, ListGroupsRequest
from penstock.protocol.schema import Api, Request, Response
from penstock.types import Offset, TopicPartition
from penstock.wire import group_offsets
from penstock.wire.connection_pool import AttemptFailed
from penstock.wire.errors import WireError
from penstock.wire.retry_policy import error_name, failure_of

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
_LEAVE_EPOCH: Final = -1
"""Member epoch that leaves the group in the protocol of KIP-848."""
_REASON: Final = "penstock group reset --force"
_ALREADY_REMOVED: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)


class GroupMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str

    def __str__(self) -> str:
        return f"{self.member_id} ({self.client_id} at {self.host.lstrip('/')})"


class GroupState(NamedTuple):
    type: str
    members: list[GroupMember]


def list_groups(broker: BrokerConnector) -> list[ListedGroup]:
    """List the groups of every broker in the cluster: a coordinator lists only its own groups."""
    groups: list[ListedGroup] = []
    with broker.client() as client:
        for address in client.brokers().values():
            groups += client.retry(partial(_listed, client, address), "the groups cannot be listed")
    return sorted(groups, key=lambda group: group.group_id)


def _listed(client: BrokerClient, address: Address) -> list[ListedGroup]:
    answer = client.ask(LIST_GROUPS, ListGroupsRequest(), at=address)
    if answer.error_code:
        raise AttemptFailed(failure_of(answer.error_code))
    return answer.groups


class GroupClient:
    """A consumer group, as its coordinator knows it."""

    def __init__(self, client: BrokerClient, group_id: str) -> None:
        self._client = client
        self._group_id = group_id

    # Reading

    def state(self) -> GroupState | None:
        """Return the group's state; None if the group does not exist."""
        request = DescribeGroupsRequest(groups=[self._group_id])
        (described,) = self._ask(DESCRIBE_GROUPS, request, lambda reply: reply.groups[0].error_code).groups
        if described.error_code == ErrorCode.NONE and described.group_state != "Dead":
            members = [
                GroupMember(member.member_id, member.group_instance_id, member.client_id, member.client_host)
                for member in described.members
            ]
            return GroupState(CLASSIC, members)
        self._require_code(described.error_code, ErrorCode.GROUP_ID_NOT_FOUND)
        listed = self._ask(LIST_GROUPS, ListGroupsRequest(), lambda reply: reply.error_code)
        types = [group.group_type for group in listed.groups if group.group_id == self._group_id]
        return self._state_of_type(types[0].lower()) if types else None

    def _state_of_type(self, group_type: str) -> GroupState | None:
        if group_type != CONSUMER:
            raise CommandFailed(
                f"{self._group_id} is a group of type {group_type}, which has no offsets to reset."
            )
        request = ConsumerGroupDescribeRequest(group_ids=[self._group_id])
        (described,) = self._ask(
            CONSUMER_GROUP_DESCRIBE, request, lambda reply: reply.groups[0].error_code
        ).groups
        if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        self._require_code(described.error_code)
        members = [
            GroupMember(member.member_id, member.instance_id, member.client_id, member.client_host)
            for member in described.members
        ]
        return GroupState(CONSUMER, members)

    def committed(self) -> dict[TopicPartition, Offset]:
        """Return the group's committed offsets for topics that exist."""
        with failures_explained(f"the offsets of {self._group_id} cannot be read"):
            found = group_offsets.committed(self._client.session, self._group_id, None)
        existing = {topic.name for topic in list_topics(self._client)}
        return {partition: offset for partition, offset in found.items() if partition.topic in existing}

    # Changing

    def commit(self, offsets: Mapping[TopicPartition, Offset]) -> bool:
        """Commit all offsets in one request without a member id; False if the group has members.

        A coordinator accepts commits without a member id only for an empty group.
        """
        with failures_explained(f"the offsets of {self._group_id} were not changed"):
            try:
                group_offsets.commit(self._client.session, self._group_id, offsets, "")
            except WireError as error:
                # Members have joined: the caller removes them and retries.
                if error.failure is not None and error.failure.code == ErrorCode.UNKNOWN_MEMBER_ID:
                    return False
                raise
        return True

    def remove(self, group_type: str, members: Sequence[GroupMember]) -> None:
        """Remove members as if they had left. They notice it at their next heartbeat."""
        if group_type == CONSUMER:
            codes = [self._remove_consumer(member) for member in members]
        else:
            identities = [MemberIdentity(member.member_id, member.instance_id, _REASON) for member in members]
            request = LeaveGroupRequest(group_id=self._group_id, members=identities)
            answer = self._ask(LEAVE_GROUP, request, lambda reply: reply.error_code)
            codes = [answer.error_code, *(member.error_code for member in answer.members)]
        for code in codes:
            self._require_code(code, *_ALREADY_REMOVED)

    def _remove_consumer(self, member: GroupMember) -> int:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=member.member_id,
            member_epoch=_LEAVE_EPOCH,
            instance_id=member.instance_id,
        )
        return self._ask(CONSUMER_GROUP_HEARTBEAT, request, lambda reply: reply.error_code).error_code

    def delete(self) -> None:
        request = DeleteGroupsRequest([self._group_id])
        (result,) = self._ask(DELETE_GROUPS, request, lambda reply: reply.results[0].error_code).results
        if result.error_code == ErrorCode.NON_EMPTY_GROUP:
            raise CommandFailed(
                f"group {self._group_id} has members: stop its consumers first. "
                f"`penstock group describe {self._group_id}` names them."
            )
        self._require_code(result.error_code)

    # Errors

    def _ask(
        self, api: Api[Request, Response], message: Request, code_of: Callable[[Response], int]
    ) -> Response:
        what = f"group {self._group_id} cannot be used"
        return self._client.ask_coordinator(self._group_id, api, message, code_of, what)

    def _require_code(self, code: int, *allowed: ErrorCode) -> None:
        if code == ErrorCode.NONE or code in allowed:
            return
        if code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise CommandFailed(f"there is no group {self._group_id}. See `penstock group list`.")
        if code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
            raise CommandFailed(f"you may not use group {self._group_id}.")
        raise CommandFailed(f"group {self._group_id} cannot be used: {error_name(code)}.")
