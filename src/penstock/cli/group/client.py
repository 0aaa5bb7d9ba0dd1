"""Consumer group requests over the wire client, sent to each group's coordinator.

Rule: requests to a coordinator that is still loading are retried until --timeout; every other error becomes
CommandFailed with a readable sentence.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple, TypeVar

from penstock.cli.broker_connector import BrokerClient, BrokerConnector
from penstock.cli.topic_metadata import error_name, metadata_of
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
from penstock.protocol.messages.find_coordinator import FIND_COORDINATOR, FindCoordinatorRequest
from penstock.protocol.messages.leave_group import LEAVE_GROUP, LeaveGroupRequest, MemberIdentity
from penstock.protocol.messages.list_groups import LIST_GROUPS, ListedGroup, ListGroupsRequest
from penstock.protocol.messages.metadata import METADATA, MetadataRequest
from penstock.protocol.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
)
from penstock.types import TopicId, TopicPartition

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
_LEAVE_EPOCH: Final = -1
"""Member epoch that leaves the group in the protocol of KIP-848."""
_REASON: Final = "penstock group reset --force"
_RETRIABLE: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_RETRY_PAUSE_S: Final = 0.05
_ALREADY_REMOVED: Final = (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)

T = TypeVar("T")


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
    with broker.client() as client:
        brokers = metadata_of(client, []).brokers
    groups: list[ListedGroup] = []
    for node in brokers:
        with broker.client(Address(node.host, node.port)) as client:
            groups += _until_ready(broker, "the groups cannot be listed", partial(_listed, client))
    return sorted(groups, key=lambda group: group.group_id)


def _listed(client: BrokerClient) -> tuple[int, list[ListedGroup]]:
    answer = client.ask(LIST_GROUPS, ListGroupsRequest())
    return answer.error_code, answer.groups


@contextmanager
def coordinator_of(broker: BrokerConnector, group_id: str) -> Iterator["Coordinator"]:
    """Connect to the group's coordinator, whether or not the group exists yet."""
    with broker.client() as client:
        address = _until_ready(
            broker, f"no coordinator of {group_id} can be found", lambda: _found(client, group_id)
        )
        # Not `in broker.addresses`: the connection is to one of them, and only a coordinator serves a group.
        if address == client.address:
            yield Coordinator(broker, client, group_id)
            return
    with broker.client(address) as client:
        yield Coordinator(broker, client, group_id)


def _found(client: BrokerClient, group_id: str) -> tuple[int, Address]:
    request = FindCoordinatorRequest(key=group_id, coordinator_keys=[group_id])
    answer = client.ask(FIND_COORDINATOR, request)
    for coordinator in answer.coordinators:
        return coordinator.error_code, Address(coordinator.host, coordinator.port)
    return answer.error_code, Address(answer.host, answer.port)


class Coordinator:
    """Coordinator of one group."""

    def __init__(self, broker: BrokerConnector, client: BrokerClient, group_id: str) -> None:
        self._broker = broker
        self._client = client
        self._group_id = group_id

    # Reading

    def state(self) -> GroupState | None:
        """Return the group's state; None if the group does not exist."""
        (described,) = self._client.ask(
            DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[self._group_id])
        ).groups
        if described.error_code == ErrorCode.NONE and described.group_state != "Dead":
            members = [
                GroupMember(member.member_id, member.group_instance_id, member.client_id, member.client_host)
                for member in described.members
            ]
            return GroupState(CLASSIC, members)
        self._require_code(described.error_code, ErrorCode.GROUP_ID_NOT_FOUND)
        listed = self._ready("the groups cannot be listed", lambda: _listed(self._client))
        types = [group.group_type for group in listed if group.group_id == self._group_id]
        return self._state_of_type(types[0].lower()) if types else None

    def _state_of_type(self, group_type: str) -> GroupState | None:
        if group_type != CONSUMER:
            raise CommandFailed(
                f"{self._group_id} is a group of type {group_type}, which has no offsets to reset."
            )
        request = ConsumerGroupDescribeRequest(group_ids=[self._group_id])
        (described,) = self._client.ask(CONSUMER_GROUP_DESCRIBE, request).groups
        if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        self._require_code(described.error_code)
        members = [
            GroupMember(member.member_id, member.instance_id, member.client_id, member.client_host)
            for member in described.members
        ]
        return GroupState(CONSUMER, members)

    def committed(self) -> dict[TopicPartition, int]:
        """Return the group's committed offsets for topics that exist."""
        group = OffsetFetchRequestGroup(group_id=self._group_id, topics=None)
        request = OffsetFetchRequest(group_id=self._group_id, topics=None, groups=[group])

        def ask() -> tuple[int, list[OffsetFetchResponseTopic]]:
            return _offsets_in(self._client.ask(OFFSET_FETCH, request))

        topics = self._ready(f"the offsets of {self._group_id} cannot be read", ask)
        # From version 10 on, replies have topic ids instead of names.
        names = self._names() if any(not topic.name for topic in topics) else {}
        return {
            TopicPartition(name, partition.partition_index): partition.committed_offset
            for topic in topics
            if (name := topic.name or names.get(topic.topic_id, ""))
            for partition in topic.partitions
            if partition.committed_offset >= 0
        }

    def _names(self) -> dict[TopicId, str]:
        answer = self._client.ask(METADATA, MetadataRequest(topics=None, allow_auto_topic_creation=False))
        return {topic.topic_id: topic.name or "" for topic in answer.topics}

    # Changing

    def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Commit all offsets in one request without a member id; False if the group has members.

        A coordinator accepts commits without a member id only for an empty group.
        """
        answer = metadata_of(self._client, sorted({topic for topic, _ in offsets}))
        ids = {topic.name: topic.topic_id for topic in answer.topics}
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for (name, index), offset in sorted(offsets.items()):
            topic = topics.setdefault(name, OffsetCommitRequestTopic(name=name, topic_id=ids[name]))
            topic.partitions.append(OffsetCommitRequestPartition(index, offset))
        request = OffsetCommitRequest(group_id=self._group_id, topics=list(topics.values()))

        def ask() -> tuple[int, set[int]]:
            reply = self._client.ask(OFFSET_COMMIT, request)
            codes = {partition.error_code for topic in reply.topics for partition in topic.partitions}
            return next((code for code in codes if code in _RETRIABLE), ErrorCode.NONE), codes

        # UNKNOWN_MEMBER_ID means that members have joined: the caller removes them and retries.
        codes = self._ready(f"the offsets of {self._group_id} were not changed", ask) - {ErrorCode.NONE}
        if ErrorCode.UNKNOWN_MEMBER_ID in codes:
            return False
        if codes:
            reasons = ", ".join(sorted(map(error_name, codes)))
            raise CommandFailed(f"not every offset of {self._group_id} was changed: {reasons}.")
        return True

    def remove(self, group_type: str, members: Sequence[GroupMember]) -> None:
        """Remove members as if they had left. They notice it at their next heartbeat."""
        if group_type == CONSUMER:
            codes = [self._remove_consumer(member) for member in members]
        else:
            identities = [MemberIdentity(member.member_id, member.instance_id, _REASON) for member in members]
            request = LeaveGroupRequest(group_id=self._group_id, members=identities)
            answer = self._client.ask(LEAVE_GROUP, request)
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
        return self._client.ask(CONSUMER_GROUP_HEARTBEAT, request).error_code

    def delete(self) -> None:
        def ask() -> tuple[int, None]:
            (result,) = self._client.ask(DELETE_GROUPS, DeleteGroupsRequest([self._group_id])).results
            if result.error_code == ErrorCode.NON_EMPTY_GROUP:
                raise CommandFailed(
                    f"group {self._group_id} has members: stop its consumers first. "
                    f"`penstock group describe {self._group_id}` names them."
                )
            self._require_code(result.error_code, ErrorCode.NONE, *_RETRIABLE)
            return result.error_code, None

        self._ready(f"group {self._group_id} was not deleted", ask)

    # Errors

    def _ready(self, failure: str, ask: Callable[[], tuple[int, T]]) -> T:
        return _until_ready(self._broker, failure, ask)

    def _require_code(self, code: int, *allowed: ErrorCode) -> None:
        if code == ErrorCode.NONE or code in allowed:
            return
        if code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise CommandFailed(f"there is no group {self._group_id}. See `penstock group list`.")
        if code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
            raise CommandFailed(f"you may not use group {self._group_id}.")
        raise CommandFailed(f"group {self._group_id} cannot be used: {error_name(code)}.")


def _offsets_in(answer: OffsetFetchResponse) -> tuple[int, list[OffsetFetchResponseTopic]]:
    """Return the offsets; a group that does not exist has none."""
    code, topics = answer.error_code, answer.topics
    for group in answer.groups:
        code, topics = group.error_code, group.topics
    return (ErrorCode.NONE, []) if code == ErrorCode.GROUP_ID_NOT_FOUND else (code, topics)


def _until_ready(broker: BrokerConnector, failure: str, ask: Callable[[], tuple[int, T]]) -> T:
    deadline = time.monotonic() + broker.timeout_s
    while True:
        code, answer = ask()
        if code == ErrorCode.NONE:
            return answer
        # These errors are transient, for example while the coordinator loads its groups.
        if code not in _RETRIABLE or time.monotonic() > deadline:
            raise CommandFailed(f"{failure}: {error_name(code)}.")
        time.sleep(_RETRY_PAUSE_S)
