"""Group members that use the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

They may be alone in their group, or share it with members of the consumer protocol (KIP-848); then the
coordinator assigns partitions. The invariants on offsets and ownership are the same (`group_member.py`).

Rule: The protocol is eager, as the `range` assignor is: a member revokes all partitions before it rejoins.
"""

from collections.abc import Sequence
from struct import Struct as Layout
from typing import Final, cast

from penstock.errors import ErrorCode
from penstock.groups.embedded_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
    decode_assignment,
    encode_assignment,
)
from penstock.protocol.compiler import encoder
from penstock.protocol.messages.heartbeat import HEARTBEAT, HeartbeatRequest
from penstock.protocol.messages.join_group import (
    JOIN_GROUP,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from penstock.protocol.messages.leave_group import LEAVE_GROUP, LeaveGroupRequest, MemberIdentity
from penstock.protocol.messages.sync_group import SYNC_GROUP, SyncGroupRequest, SyncGroupRequestAssignment
from penstock.sim.cluster.clients.client import CONNECTION_ERRORS
from penstock.sim.cluster.clients.group_member import (
    GROUP,
    LEAVES_SHARE,
    REBALANCE_MS,
    OwnedPartition,
    SimGroupMember,
)

PROTOCOL: Final = "range"
SUBSCRIPTION_VERSION: Final = 1
SESSION_MS: Final = 4_000
JOIN_SECONDS: Final = 9.0
"""JoinGroup may wait for as long as a rebalance may take."""
NOT_JOINED: Final = -1
REVOKING_ERRORS: Final = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})


class SimClassicMember(SimGroupMember):
    def _rejoin_as_new(self) -> None:
        super()._rejoin_as_new()
        self._id, self._epoch = "", NOT_JOINED

    def _revoke_all(self) -> None:
        """Revoke all partitions, before the member rejoins under the same id."""
        self._progress.release(self._client.name)
        self._epoch = NOT_JOINED
        self._readers, self._committed, self._assignment = {}, {}, ()

    def _failed(self, code: ErrorCode | None) -> None:
        if code in REVOKING_ERRORS:
            self._revoke_all()
        else:
            super()._failed(code)

    async def _stay_member(self) -> None:
        if self._epoch == NOT_JOINED:
            await self._join()
        elif self._client.random.random() < LEAVES_SHARE:
            await self._leave()
        else:
            await self._heartbeat()

    async def _heartbeat(self) -> None:
        assert self._coordinator is not None
        coordinator, requested_at = self._coordinator, self._cluster.loop.now
        request = HeartbeatRequest(GROUP, self._epoch, self._id)
        try:
            answer = await self._client.ask(coordinator, HEARTBEAT, request)
        except CONNECTION_ERRORS:
            self._coordinator = None
            return
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE:
            self._failed(code)
        elif self._is_current_coordinator(coordinator):
            self._reconciled_at = requested_at
            self._confirm_ownership(requested_at)

    async def _leave(self) -> None:
        assert self._coordinator is not None
        self._progress.release(self._client.name)
        request = LeaveGroupRequest(GROUP, self._id, [MemberIdentity(self._id)])
        has_left = False
        try:
            answer = await self._client.ask(self._coordinator, LEAVE_GROUP, request)
            has_left = answer.error_code == ErrorCode.NONE
        except CONNECTION_ERRORS:
            self._coordinator = None
        if not has_left:
            # The coordinator may still have the old member id, and its late commit may count.
            self._old_commit = None
        self._rejoin_as_new()

    async def _join(self) -> None:
        assert self._coordinator is not None
        coordinator = self._coordinator
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self._id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(PROTOCOL, _subscription(list(self._cluster.topics)))],
        )
        try:
            answer = await self._client.ask(coordinator, JOIN_GROUP, request, seconds=JOIN_SECONDS)
        except CONNECTION_ERRORS:
            self._coordinator = None
            return
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self._id = answer.member_id
        elif code is not ErrorCode.NONE:
            self._failed(code)
        else:
            self._id = answer.member_id
            await self._sync(coordinator, answer)

    async def _sync(self, coordinator: int, joined: JoinGroupResponse) -> None:
        assignments = await self._assign(joined) if joined.leader == self._id else []
        if assignments is None:
            return
        requested_at = self._cluster.loop.now
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=self._id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        try:
            answer = await self._client.ask(coordinator, SYNC_GROUP, request, seconds=JOIN_SECONDS)
        except CONNECTION_ERRORS:
            self._coordinator = None
            return
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE:
            self._failed(code)
            return
        self._epoch = joined.generation_id
        self._resend_old_commit()
        self._assignment = self._decode_partitions(bytes(answer.assignment))
        if self._is_current_coordinator(coordinator):
            self._reconciled_at = requested_at
            self._confirm_ownership(requested_at)

    def _decode_partitions(self, assignment: bytes) -> tuple[OwnedPartition, ...]:
        """The partitions of an assignment, by topic id."""
        decoded = decode_assignment(assignment) if assignment else ConsumerProtocolAssignment()
        if decoded is None:
            self._cluster.violate(f"{self._client.name} is given an assignment that cannot be decoded")
        assert decoded is not None
        topics = self._cluster.truth.image.topics
        return tuple(
            (topics[each.topic].id, index)
            for each in decoded.assigned_partitions
            for index in each.partitions
        )

    async def _assign(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment] | None:
        """The assignments that the group leader makes for all members.

        None: a topic's partitions are unknown.
        """
        if joined.skip_assignment:
            return []
        members = sorted(member.member_id for member in joined.members)
        parts: dict[str, list[ConsumerTopicPartitions]] = {member: [] for member in members}
        for name in self._cluster.topics:
            topic = await self._client.topic(name)
            if topic is None:
                return None
            for number, member in enumerate(members):
                indexes = list(range(number, len(topic.leaders), len(members)))
                parts[member].append(ConsumerTopicPartitions(name, indexes))
        return [
            SyncGroupRequestAssignment(member, encode_assignment(ConsumerProtocolAssignment(topics)))
            for member, topics in parts.items()
        ]


def _subscription(topics: Sequence[str]) -> bytes:
    encode = encoder(ConsumerProtocolSubscription, SUBSCRIPTION_VERSION, False)
    (body,) = encode(ConsumerProtocolSubscription(list(topics)))
    return Layout(">h").pack(SUBSCRIPTION_VERSION) + cast(bytes, body)
