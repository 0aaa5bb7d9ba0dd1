"""Builders of requests about groups.

A scenario chooses a name for each member. Until the broker has assigned a member id, requests carry the name
itself: that is how scenarios send requests of unknown members.
"""

from struct import pack
from typing import Any, TypeVar

from penstock.protocol.messages.describe_groups import DESCRIBE_GROUPS, DescribeGroupsRequest
from penstock.protocol.messages.heartbeat import HEARTBEAT, HeartbeatRequest
from penstock.protocol.messages.join_group import JOIN_GROUP, JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.leave_group import LEAVE_GROUP, LeaveGroupRequest, MemberIdentity
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
    OffsetFetchRequestTopic,
)
from penstock.protocol.messages.sync_group import SYNC_GROUP, SyncGroupRequest, SyncGroupRequestAssignment
from penstock.protocol.schema import Api, Struct
from penstock.types import NO_TOPIC_ID
from tools.differential.steps import NO_REPLY_S, REPLY_S_MAX, RequestStep, ScenarioState

SESSION_MS = 600_000
"""Long enough that no session times out during a scenario, even on a slow machine."""

NEW_MEMBER_ID = ""

Request = TypeVar("Request", bound=Struct)
Protocols = dict[str, bytes]


def newest(api: Api[Any, Any], version: int | None) -> int:
    return api.versions[1] if version is None else min(version, api.versions[1])


def subscription(*topics: str, note: bytes = b"") -> bytes:
    """Member metadata of a consumer, in its oldest version. Kafka never replies to a consumer whose metadata
    claims more topics than fit into memory."""
    names = b"".join(_string(topic) for topic in topics)
    return pack(">hi", 0, len(topics)) + names + pack(">i", len(note)) + note


def _string(text: str) -> bytes:
    return pack(">h", len(text)) + text.encode()


RANGE: Protocols = {"range": subscription("read")}


def join(
    name: str, group: str, member: str, protocols: Protocols | None = None, **fields: Any
) -> RequestStep:
    """`saves_as`: name for the member id of the response. `silent`: no response comes until others join."""
    version = fields.pop("version", JOIN_GROUP.versions[1])
    saves_as = fields.pop("saves_as", None)
    timeout_s = NO_REPLY_S if fields.pop("silent", False) else REPLY_S_MAX
    offered = [
        JoinGroupRequestProtocol(*each) for each in (RANGE if protocols is None else protocols).items()
    ]

    def message(memory: ScenarioState) -> JoinGroupRequest:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=memory.actual_name(member),
            protocol_type="consumer",
            protocols=offered,
        )
        return _with(request, fields)

    saves = None if saves_as is None else "member_id"
    return RequestStep(
        name, JOIN_GROUP, version, message, saves=saves, saves_as=saves_as, timeout_s=timeout_s
    )


def sync(name: str, group: str, member: str, generation: int, **fields: Any) -> RequestStep:
    """`given`: assignments by member."""
    version = fields.pop("version", SYNC_GROUP.versions[1])
    given: dict[str, bytes] = fields.pop("given", {})
    timeout_s = NO_REPLY_S if fields.pop("silent", False) else REPLY_S_MAX

    def message(memory: ScenarioState) -> SyncGroupRequest:
        assignments = [
            SyncGroupRequestAssignment(memory.actual_name(who), assignment)
            for who, assignment in given.items()
        ]
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=memory.actual_name(member),
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        return _with(request, fields)

    return RequestStep(name, SYNC_GROUP, version, message, timeout_s=timeout_s)


def heartbeat(name: str, group: str, member: str, generation: int, **fields: Any) -> RequestStep:
    version = fields.pop("version", HEARTBEAT.versions[1])

    def message(memory: ScenarioState) -> HeartbeatRequest:
        return _with(HeartbeatRequest(group, generation, memory.actual_name(member)), fields)

    return RequestStep(name, HEARTBEAT, version, message)


def leave(name: str, group: str, *members: tuple[str, str | None], version: int | None = None) -> RequestStep:
    """Members with their instance ids. Before version 3: one member, without an instance id."""
    asked = newest(LEAVE_GROUP, version)

    def message(memory: ScenarioState) -> LeaveGroupRequest:
        identities = [
            MemberIdentity(memory.actual_name(member), instance, "a reason") for member, instance in members
        ]
        if asked < 3:
            return LeaveGroupRequest(group, identities[0].member_id)
        return LeaveGroupRequest(group, members=identities)

    return RequestStep(name, LEAVE_GROUP, asked, message)


def commit(name: str, group: str, topic: str, offsets: dict[int, int], **fields: Any) -> RequestStep:
    """OffsetCommit, by topic id in versions that have ids. `member` and `generation` are optional."""
    version = fields.pop("version", 9)
    member, generation = fields.pop("member", ""), fields.pop("generation", -1)
    note, epoch = fields.pop("note", "a note"), fields.pop("epoch", -1)

    def message(memory: ScenarioState) -> OffsetCommitRequest:
        partitions = [
            OffsetCommitRequestPartition(index, offset, epoch, note) for index, offset in offsets.items()
        ]
        topic_id = memory.topic_ids.get(topic, NO_TOPIC_ID)
        asked = OffsetCommitRequestTopic(topic, topic_id, partitions)
        request = OffsetCommitRequest(group, generation, memory.actual_name(member), topics=[asked])
        return _with(request, fields)

    return RequestStep(name, OFFSET_COMMIT, version, message)


def committed(
    name: str, group: str, topics: dict[str, list[int]] | None, *, version: int = 9, **fields: Any
) -> RequestStep:
    """OffsetFetch; None: all topics of the group. `member`, `epoch` and `eventually` are optional."""
    member, epoch = fields.pop("member", None), fields.pop("epoch", -1)
    eventually = fields.pop("eventually", False)

    def message(memory: ScenarioState) -> OffsetFetchRequest:
        asked = None
        if topics is not None:
            asked = [
                OffsetFetchRequestTopic(topic, memory.topic_ids.get(topic, NO_TOPIC_ID), partitions)
                for topic, partitions in topics.items()
            ]
        if version < 8:
            return _with(OffsetFetchRequest(group, asked), fields)
        who = None if member is None else memory.actual_name(member)
        return _with(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, who, epoch, asked)]), fields)

    return RequestStep(name, OFFSET_FETCH, version, message, eventually=eventually)


def describe(name: str, *groups: str, version: int = 6, operations: bool = False) -> RequestStep:
    return RequestStep(name, DESCRIBE_GROUPS, version, DescribeGroupsRequest(list(groups), operations))


def _with(request: Request, fields: dict[str, Any]) -> Request:
    for name, value in fields.items():
        setattr(request, name, value)
    return request
