"""A classic group with a clock that the test moves, and a log that it can be rebuilt from."""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.config.groups import ClassicConfig, ConsumerConfig, GroupConfig, OffsetsConfig
from penstock.coordinator.outcome import CommandOutcome, Now, Reply, StateRecord, WaitingRequest
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup, ClassicState
from penstock.groups.classic.classic_timers import expire, on_loaded
from penstock.groups.classic.heartbeat import heartbeat
from penstock.groups.classic.join import ClassicCaller, join
from penstock.groups.classic.leave import leave
from penstock.groups.classic.rebalance import CLASSIC_TIMERS, NEW_MEMBER_MS_MAX
from penstock.groups.classic.sync import sync
from penstock.groups.group_context import ClientInfo, GroupContext, TopicsImage
from penstock.groups.records import GroupMetadataKey, decode_key, decode_value
from penstock.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from penstock.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from penstock.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

GROUP = "orders"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
INITIAL_DELAY_MS = 3_000
RANGE = (("range", b"about range"),)

EVER_S = (NEW_MEMBER_MS_MAX + 10 * REBALANCE_MS) / 1000
"""Longer than anything in a group takes."""


def config(members_max: int = 100, initial_delay_ms: int = INITIAL_DELAY_MS) -> GroupConfig:
    return GroupConfig(
        classic=ClassicConfig(6_000, 1_800_000, initial_delay_ms, members_max),
        consumer=ConsumerConfig(45_000, 5_000, 200, 100, ("uniform",), True, True),
        offsets=OffsetsConfig(4_096, 60_000, 60_000),
        topic_partitions=1,
        topic_segment_bytes=1_000_000,
    )


class PendingRequest:
    """One request and, as soon as there is one, its answer."""

    def __init__(self, refused: Callable[[ErrorCode], Any], member_id: str = "") -> None:
        self.reply: Any = None
        self.member_id = member_id
        self.pending = WaitingRequest(self._finish, lambda code, detail: refused(code))

    def _finish(self, reply: Any) -> None:
        self.reply = reply

    @property
    def is_waiting(self) -> bool:
        return not self.pending.is_completed

    @property
    def code(self) -> ErrorCode:
        assert self.pending.is_completed, "there is no answer yet"
        return ErrorCode(self.reply.error_code)


class ClassicGroupHarness:
    """What `GroupStateMachine` and a `Shard` do around the group, without waiting for a disk."""

    def __init__(self, members_max: int = 100, initial_delay_ms: int = INITIAL_DELAY_MS) -> None:
        self.config = config(members_max, initial_delay_ms)
        self.monotonic = 1_000.0
        self.ids_drawn = 0
        self.log: list[StateRecord] = []
        self.replayed_group = ClassicGroup(GROUP)
        """What the log says, kept up to date: rebuilding it for each check would take long."""
        self.context = self._new_surroundings()
        self.group = ClassicGroup.new(GROUP, self.now)

    def _new_surroundings(self) -> GroupContext:
        return GroupContext(lambda: self.config, lambda: TopicsImage({}, {}), self._new_id)

    def _new_id(self) -> str:
        self.ids_drawn += 1
        return f"{self.ids_drawn:04}"

    @property
    def now(self) -> Now:
        return Now(1_700_000_000_000 + round(self.monotonic * 1000), self.monotonic)

    # Requests

    def join(
        self,
        client: str = "c",
        member_id: str = "",
        instance_id: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = RANGE,
        version: int = 9,
        **fields: Any,
    ) -> PendingRequest:
        request = JoinGroupRequest(
            group_id=fields.pop("group_id", GROUP),
            session_timeout_ms=fields.pop("session_ms", SESSION_MS),
            rebalance_timeout_ms=fields.pop("rebalance_ms", REBALANCE_MS),
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=fields.pop("protocol_type", "consumer"),
            protocols=[JoinGroupRequestProtocol(*each) for each in protocols],
            **fields,
        )
        asked = PendingRequest(
            lambda code: JoinGroupResponse(error_code=code, member_id=member_id), member_id
        )
        caller = ClassicCaller(version, ClientInfo(client, f"/{client}"), asked.pending)
        self.run(asked, lambda: join(self.context, self.group, request, caller, self.now))
        return asked

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        assignments: dict[str, bytes] | None = None,
        **fields: Any,
    ) -> PendingRequest:
        given = [SyncGroupRequestAssignment(*each) for each in (assignments or {}).items()]
        generation = self.group.generation if generation is None else generation
        request = SyncGroupRequest(GROUP, generation, member_id, assignments=given, **fields)
        asked = PendingRequest(lambda code: SyncGroupResponse(error_code=code), member_id)
        self.run(asked, lambda: sync(self.context, self.group, request, asked.pending, self.now))
        return asked

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance_id: str | None = None
    ) -> ErrorCode:
        generation = self.group.generation if generation is None else generation
        request = HeartbeatRequest(GROUP, generation, member_id, instance_id)
        asked = PendingRequest(lambda code: HeartbeatResponse(error_code=code), member_id)
        self.run(asked, lambda: heartbeat(self.context, self.group, request, asked.pending, self.now))
        return asked.code

    def leave(self, *members: str | MemberIdentity, version: int = 5) -> LeaveGroupResponse:
        identities = [MemberIdentity(each) if isinstance(each, str) else each for each in members]
        request = LeaveGroupRequest(GROUP, members=identities)
        if version < 3:
            request = LeaveGroupRequest(GROUP, identities[0].member_id)
        asked = PendingRequest(lambda code: LeaveGroupResponse(error_code=code))
        caller = ClassicCaller(version, ClientInfo("c", "/c"), asked.pending)
        self.run(asked, lambda: leave(self.context, self.group, request, caller, self.now))
        assert isinstance(asked.reply, LeaveGroupResponse)
        return asked.reply

    # What a shard does

    def run(self, asked: PendingRequest, command: Callable[[], CommandOutcome]) -> None:
        before = self.durable_and_volatile()
        try:
            outcome = command()
        except ApiError as rejection:
            assert self.durable_and_volatile() == before, "a refusal changes nothing"
            outcome = CommandOutcome(replies=(asked.pending.rejection(rejection.code, rejection.detail),))
        self.take(outcome)

    def take(self, outcome: CommandOutcome) -> None:
        for record in outcome.records:
            self.log.append(record)
            self.replay(self.replayed_group, record)
            self.replay(self.group, record)
        for pending, content in _once(outcome.replies):
            pending.complete(content)
        check(self)

    @staticmethod
    def replay(group: ClassicGroup, record: StateRecord) -> None:
        key = decode_key(record.key)
        assert isinstance(key, GroupMetadataKey)
        assert key.group == group.group_id
        value = decode_value(key, record.value)
        assert value is not None
        group.restore(value)

    def advance(self, seconds: float) -> None:
        """Time passes, and each timer goes off at its time."""
        end = self.monotonic + seconds
        timers = self.context.timers
        while (next_deadline := timers.next_deadline()) is not None and next_deadline <= end:
            self.monotonic = max(self.monotonic, next_deadline)
            self.expire()
        self.monotonic = end
        self.expire()

    def expire(self) -> None:
        """All that are due are taken together, and what they do is taken together, as a tick does."""
        outcome = CommandOutcome()
        for key in self.context.timers.pop_expired(self.monotonic):
            assert key.kind in CLASSIC_TIMERS
            outcome += expire(self.context, self.group, key, self.now)
        self.take(outcome)

    def rebuilt(self) -> ClassicGroup:
        group = ClassicGroup(GROUP)
        for record in self.log:
            self.replay(group, record)
        return group

    def crash(self) -> None:
        """All that is not in the log is gone; clients that wait get no answer."""
        self.context = self._new_surroundings()
        self.group = self.rebuilt()
        self.take(on_loaded(self.context, self.group, self.now))

    # Short cuts

    def admit(self, client: str, **fields: Any) -> PendingRequest:
        """Both steps of a newcomer's joining."""
        first = self.join(client, **fields)
        if first.is_waiting or first.code is not ErrorCode.MEMBER_ID_REQUIRED:
            return first
        return self.join(client, first.reply.member_id, **fields)

    def start_rebalance(self, *clients: str, **fields: Any) -> list[str]:
        """Members of a new generation that has no assignment yet; the first leads."""
        joined = [self.admit(client, **fields) for client in clients]
        while joined[0].is_waiting:
            self.advance(0.5)
        return [asked.reply.member_id for asked in joined]

    def stable(self, *clients: str) -> list[str]:
        """A group of these members at rest, each with its name as its assignment; the first leads."""
        ids = self.start_rebalance(*clients)
        self.settle(dict(zip(ids, (client.encode() for client in clients), strict=True)))
        return ids

    def settle(self, assignments: dict[str, bytes]) -> None:
        for member_id in assignments:
            self.sync(member_id, assignments=assignments)
        assert self.group.state is ClassicState.STABLE

    def durable_and_volatile(self) -> object:
        group = self.group
        return (
            group.snapshot(),
            group.state,
            dict(group.joining),
            dict(group.syncing),
            set(group.pending_members),
            set(group.pending_syncs),
            group.metadata_bytes,
            group.rebalances.count,
            self.timers(),
        )

    def timers(self) -> dict[Any, float]:
        return dict(self.context.timers.deadlines)


def _once(replies: Sequence[Reply]) -> Sequence[Reply]:
    assert len({id(reply.pending) for reply in replies}) == len(replies), "nobody is answered twice"
    return replies


def check(harness: ClassicGroupHarness) -> None:
    """What holds of a group at any time."""
    group = harness.group
    members = group.members
    if group.state is ClassicState.DEAD:
        assert (list(group.parked()), harness.timers()) == ([], {})
        return
    assert set(group.joining) <= set(members)
    assert set(group.syncing) <= set(members)
    assert group.pending_syncs <= set(members)
    assert not group.pending_members & set(members)
    assert group.static_members == {m.instance_id: i for i, m in members.items() if m.instance_id is not None}
    assert all(member_id == member.member_id for member_id, member in members.items())
    assert (group.leader in members) == bool(members)
    weight = sum(member.metadata_bytes for member in members.values()) + sum(map(len, group.pending_members))
    assert group.metadata_bytes == weight
    assert group.member_bytes == sum(member.memory_bytes for member in members.values())
    supported_protocols: dict[str, int] = {}
    for member in members.values():
        for name in member.names():
            supported_protocols[name] = supported_protocols.get(name, 0) + 1
    assert group.supported_protocols == supported_protocols
    assert not any(pending.is_completed for pending in group.parked())
    _check_state(group)
    _check_timers(harness)
    if group.state in (ClassicState.STABLE, ClassicState.EMPTY) and group.generation:
        assert harness.replayed_group.snapshot() == group.snapshot()
        assert harness.replayed_group.state is group.state


def _check_state(group: ClassicGroup) -> None:
    assert not group.joining or group.state is ClassicState.PREPARING
    assert not group.syncing or group.state is ClassicState.COMPLETING
    assert not group.pending_syncs or group.state in (ClassicState.COMPLETING, ClassicState.STABLE)
    if group.state in (ClassicState.STABLE, ClassicState.COMPLETING):
        assert group.members
        assert all(group.protocol_name in member.names() for member in group.members.values())
    if group.state is ClassicState.EMPTY:
        assert not group.members
    assert group.is_initial <= (group.state is ClassicState.PREPARING)
    assert group.rebalances.is_under_way == (group.state in (ClassicState.PREPARING, ClassicState.COMPLETING))


def _check_timers(harness: ClassicGroupHarness) -> None:
    group, timers = harness.group, harness.timers()
    timed = {key.member_id for key in timers if key.kind == "classic session"}
    parked = set(group.joining) | set(group.syncing)
    assert timed <= set(group.members) | group.pending_members, "no timer is left of who is gone"
    assert set(group.members) - parked <= timed, "who does not wait is timed"
    assert group.pending_members <= timed
    kinds = {key.kind for key in timers}
    assert ("classic join" in kinds) == (group.state is ClassicState.PREPARING)
    assert ("classic sync" in kinds) == bool(group.pending_syncs)
