"""A consumer group with a clock that the test moves, and a log that it can be rebuilt from."""

from collections.abc import Callable, Iterable
from typing import Any

from penstock.config.groups import ClassicConfig, ConsumerConfig, GroupConfig, OffsetsConfig
from penstock.coordinator.outcome import CommandOutcome, Now, StateRecord, WaitingRequest
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic import classic_timers
from penstock.groups.classic import heartbeat as classic_heartbeat
from penstock.groups.classic import join as classic_join
from penstock.groups.classic import sync as classic_sync
from penstock.groups.classic.classic_group import ClassicGroup
from penstock.groups.classic.join import ClassicCaller
from penstock.groups.classic.rebalance import CLASSIC_TIMERS
from penstock.groups.consumer import classic_requests
from penstock.groups.consumer.assignment import EMPTY, Assignment, is_subset, parse_assignment, union
from penstock.groups.consumer.consumer_group import CONSUMER_KEYS, ConsumerGroup
from penstock.groups.consumer.consumer_heartbeat import ConsumerCaller, heartbeat
from penstock.groups.consumer.consumer_leave import expire
from penstock.groups.consumer.consumer_timers import CONSUMER_TIMERS, SESSION, on_loaded, topics_changed
from penstock.groups.group_context import ClientInfo, GroupContext, TimerKey, TopicsImage
from penstock.groups.migration import Group, GroupTransition
from penstock.groups.records import GroupMetadataKey, UnknownKey, decode_key, decode_value
from penstock.metadata.cluster_image import PartitionState, Topic
from penstock.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
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
from penstock.types import TopicId

GROUP = "orders"
SESSION_MS = 45_000
HEARTBEAT_MS = 1_000
REBALANCING_MS = 200
REBALANCE_MS = 60_000
CLASSIC_SESSION_MS = 10_000


def config(**consumer: Any) -> GroupConfig:
    settings = ConsumerConfig(SESSION_MS, HEARTBEAT_MS, REBALANCING_MS, 100, ("uniform", "range"), True, True)
    return GroupConfig(
        classic=ClassicConfig(6_000, 1_800_000, 0, 100),
        consumer=settings._replace(**consumer),
        offsets=OffsetsConfig(4_096, 60_000, 60_000),
        topic_partitions=1,
        topic_segment_bytes=1_000_000,
    )


def topic_id(name: str, version: int = 0) -> TopicId:
    return TopicId(f"{name}/{version}".encode()[:16].ljust(16, b"."))


def topic(name: str, partitions: int, version: int = 0) -> Topic:
    states = tuple(
        PartitionState((0,), 0, 0, (0,), 0, index=index, revision=0) for index in range(partitions)
    )
    return Topic(name, topic_id(name, version), False, 0, {}, states, 0)


class GroupSlot:
    """Where the group of this id stands, as in the books of a shard."""

    def __init__(self, is_active: bool) -> None:
        self.group: Group | None = None
        self.is_active = is_active

    def replay(self, record: StateRecord, timestamp_ms: int) -> None:
        key = decode_key(record.key)
        assert not isinstance(key, UnknownKey)
        value = decode_value(key, record.value)
        if isinstance(key, GroupMetadataKey):
            self._replay_classic(value)
            return
        assert isinstance(key, CONSUMER_KEYS)
        if not isinstance(self.group, ConsumerGroup):
            if value is None:
                return
            self.group = ConsumerGroup(GROUP)
        self.group.replay(key, value, timestamp_ms)
        if self.group.is_deleted:
            self.group = None

    def _replay_classic(self, value: Any) -> None:
        if value is None:
            if isinstance(self.group, ClassicGroup):
                self.group = None
            return
        if not isinstance(self.group, ClassicGroup):
            self.group = ClassicGroup(GROUP)
            self.group.is_active = self.is_active
        self.group.restore(value)


class ConsumerGroupHarness:
    """What `GroupStateMachine` and a `Shard` do around the group, without waiting for a disk."""

    def __init__(self, *topics: Topic, **consumer: Any) -> None:
        self.config = config(**consumer)
        self.topics = TopicsImage({each.name: each for each in topics}, {each.id: each for each in topics})
        self.overrides: dict[str, str] = {}
        """The settings of the group."""
        self.monotonic = 1_000.0
        self.ids_drawn = 0
        self.log: list[tuple[StateRecord, int]] = []
        self.place = GroupSlot(True)
        self.replayed_group = GroupSlot(False)
        """What the log says, kept up to date: rebuilding it for each check would take long."""
        self.context = self._new_surroundings()

    def _new_surroundings(self) -> GroupContext:
        context = GroupContext(lambda: self.config, lambda: self.topics, self._new_id)
        context.group_overrides = lambda group_id: self.overrides if group_id == GROUP else {}
        return context

    def _new_id(self) -> str:
        self.ids_drawn += 1
        return f"drawn-{self.ids_drawn:04}"

    @property
    def now(self) -> Now:
        return Now(1_700_000_000_000 + round(self.monotonic * 1000), self.monotonic)

    @property
    def group(self) -> ConsumerGroup:
        assert isinstance(self.place.group, ConsumerGroup)
        return self.place.group

    @property
    def classic(self) -> ClassicGroup:
        assert isinstance(self.place.group, ClassicGroup)
        return self.place.group

    def set_topics(self, *topics: Topic) -> None:
        self.topics = TopicsImage({each.name: each for each in topics}, {each.id: each for each in topics})
        if isinstance(self.place.group, ConsumerGroup):
            topics_changed(self.place.group)

    # Requests

    def ask(self, request: ConsumerGroupHeartbeatRequest, version: int = 1, **caller: Any) -> Any:
        def command(pending: WaitingRequest) -> GroupTransition:
            who = ConsumerCaller(version, ClientInfo("c", "/c"), pending, **caller)
            return heartbeat(self.context, self.place.group, request, who, self.now)

        return self.run(command, lambda code: ConsumerGroupHeartbeatResponse(error_code=code))

    def join_classic(
        self, name: str, member_id: str = "", version: int = 9, **fields: Any
    ) -> "PendingRequest":
        protocols = fields.pop("protocols", None) or [JoinGroupRequestProtocol("range", b"")]
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=fields.pop("session_ms", CLASSIC_SESSION_MS),
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=member_id,
            protocol_type=fields.pop("protocol_type", "consumer"),
            protocols=protocols,
            **fields,
        )
        asked = PendingRequest(lambda code: JoinGroupResponse(error_code=code))
        caller = ClassicCaller(version, ClientInfo(name, f"/{name}"), asked.pending)

        def command(pending: WaitingRequest) -> GroupTransition:
            group = self.place.group or ClassicGroup.new(GROUP, self.now)
            if isinstance(group, ConsumerGroup):
                return classic_requests.join(self.context, group, request, caller, self.now)
            return GroupTransition(group, classic_join.join(self.context, group, request, caller, self.now))

        return self.run_parked(asked, command)

    def sync_classic(
        self, member_id: str, generation: int, given: dict[str, bytes] | None = None
    ) -> "PendingRequest":
        assignments = [SyncGroupRequestAssignment(*each) for each in (given or {}).items()]
        request = SyncGroupRequest(GROUP, generation, member_id, assignments=assignments)
        asked = PendingRequest(lambda code: SyncGroupResponse(error_code=code))
        caller = ClassicCaller(5, ClientInfo("c", "/c"), asked.pending)

        def command(pending: WaitingRequest) -> GroupTransition:
            group = self.place.group
            if isinstance(group, ConsumerGroup):
                return classic_requests.sync(self.context, group, request, caller, self.now)
            assert group is not None
            return GroupTransition(group, classic_sync.sync(self.context, group, request, pending, self.now))

        return self.run_parked(asked, command)

    def beat_classic(self, member_id: str, generation: int) -> ErrorCode:
        request = HeartbeatRequest(GROUP, generation, member_id)

        def command(pending: WaitingRequest) -> GroupTransition:
            group = self.place.group
            caller = ClassicCaller(4, ClientInfo("c", "/c"), pending)
            if isinstance(group, ConsumerGroup):
                return classic_requests.heartbeat(self.context, group, request, caller, self.now)
            assert group is not None
            outcome = classic_heartbeat.heartbeat(self.context, group, request, pending, self.now)
            return GroupTransition(group, outcome)

        return ErrorCode(self.run(command, lambda code: HeartbeatResponse(error_code=code)).error_code)

    def leave_classic(self, *identities: MemberIdentity, version: int = 5) -> LeaveGroupResponse:
        request = LeaveGroupRequest(GROUP, members=list(identities))
        if version < 3:
            request = LeaveGroupRequest(GROUP, identities[0].member_id)

        def command(pending: WaitingRequest) -> GroupTransition:
            caller = ClassicCaller(version, ClientInfo("c", "/c"), pending)
            return classic_requests.leave(self.context, self.group, request, caller, self.now)

        reply = self.run(command, lambda code: LeaveGroupResponse(error_code=code))
        assert isinstance(reply, LeaveGroupResponse)
        return reply

    # What a shard does

    def run(
        self, command: Callable[[WaitingRequest], GroupTransition], refused: Callable[[ErrorCode], Any]
    ) -> Any:
        asked = PendingRequest(refused)
        self.run_parked(asked, command)
        assert asked.pending.is_completed
        return asked.reply

    def run_parked(
        self, asked: "PendingRequest", command: Callable[[WaitingRequest], GroupTransition]
    ) -> "PendingRequest":
        timers = self.context.timers
        before = _image(self.place.group), dict(timers.deadlines)
        try:
            transition = command(asked.pending)
        except ApiError as rejection:
            assert (_image(self.place.group), dict(timers.deadlines)) == before, "a refusal changes nothing"
            asked.detail = rejection.detail
            asked.pending.reject(rejection.code, rejection.detail)
        else:
            self.take(transition)
        return asked

    def take(self, transition: GroupTransition) -> None:
        self.place.group = transition.group
        self.take_outcome(transition.outcome)

    def take_outcome(self, outcome: CommandOutcome) -> None:
        for record in outcome.records:
            self.log.append((record, self.now.wall_ms))
            self.place.replay(record, self.now.wall_ms)
            self.replayed_group.replay(record, self.now.wall_ms)
        for pending, content in outcome.replies:
            pending.complete(content)
        check(self)

    def rebuilt(self) -> Group | None:
        place = GroupSlot(False)
        for record, timestamp_ms in self.log:
            place.replay(record, timestamp_ms)
        return place.group

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
        keys = self.context.timers.pop_expired(self.monotonic)
        ours = [key for key in keys if key.kind in CONSUMER_TIMERS]
        if ours and isinstance(self.place.group, ConsumerGroup):
            self.take(expire(self.context, self.place.group, ours, self.now))
        for key in keys:
            if key.kind in CLASSIC_TIMERS and isinstance(self.place.group, ClassicGroup):
                self.take_outcome(classic_timers.expire(self.context, self.place.group, key, self.now))

    def restart(self) -> None:
        """Everything that is not in the log is lost."""
        group = self.rebuilt()
        self.place.group = group
        self.context = self._new_surroundings()
        if isinstance(group, ConsumerGroup):
            on_loaded(self.context, group, self.now)
        elif group is not None:
            self.take_outcome(classic_timers.on_loaded(self.context, group, self.now))
        check(self)


class PendingRequest:
    """One request and, as soon as there is one, its answer."""

    def __init__(self, refused: Callable[[ErrorCode], Any]) -> None:
        self.reply: Any = None
        self.detail = ""
        self.pending = WaitingRequest(self._finish, lambda code, detail: refused(code))

    def _finish(self, reply: Any) -> None:
        self.reply = reply

    @property
    def code(self) -> ErrorCode:
        assert self.pending.is_completed, "there is no answer yet"
        return ErrorCode(self.reply.error_code)


def _image(group: Group | None) -> Any:
    if isinstance(group, ConsumerGroup):
        image = {name: _copied(value) for name, value in vars(group).items() if name != "rebalances"}
        return {
            **image,
            "subscribed": {name: _copied(value) for name, value in vars(group.subscribed).items()},
        }
    return None if group is None else (group.snapshot(), dict(group.joining), dict(group.syncing))


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | set) else value


# What always holds


def check(harness: ConsumerGroupHarness) -> None:
    group = harness.place.group
    timers = {key for key in harness.context.timers.deadlines if key.kind in CONSUMER_TIMERS}
    rebuilt = harness.replayed_group.group
    is_consumer = isinstance(group, ConsumerGroup)
    assert isinstance(rebuilt, ConsumerGroup) == is_consumer, "the log says what kind of group it is"
    if not isinstance(group, ConsumerGroup):
        assert not timers, "a group that is no consumer group has no timers of one"
        return
    assert isinstance(rebuilt, ConsumerGroup)
    kinds = {key.kind for key in harness.context.timers.deadlines}
    assert not kinds & CLASSIC_TIMERS, "nothing is left of the classic group that it was"
    assert durable(rebuilt) == durable(group), "the log says what the group is"
    assert {key.member_id for key in timers} <= group.members.keys(), "no timer outlives its member"
    sessions = {TimerKey(SESSION, GROUP, member_id) for member_id in group.members}
    assert sessions <= timers, "every member has a session"
    check_held_once(group)
    check_sums(group)


def durable(group: ConsumerGroup) -> dict[str, object]:
    """All durable state of a group, for comparison."""
    volatile = {"rebalances", "needs_topic_refresh", "stale_regexes", "resolving"}
    durable = {name: value for name, value in vars(group).items() if name not in volatile}
    return {**durable, "subscribed": vars(group.subscribed)}


def check_sums(group: ConsumerGroup) -> None:
    """What is kept as a sum is what it would be if it were added up now."""
    metadata = [member.metadata for member in group.members.values()]
    metadata_memory = sum(member.metadata.memory_bytes(name) for name, member in group.members.items())
    everybody = {**group.members, **group.target}
    assert group.member_bytes == metadata_memory + sum(map(group.partitions_memory, everybody))
    topics = {name for each in metadata for name in each.subscription.names}
    used = {each.subscription.regex for each in metadata}
    topics.update(*(known.topics for regex, known in group.regexes.items() if regex in used))
    assert group.subscribed_topics == topics


def check_held_once(group: ConsumerGroup) -> None:
    held: Assignment = EMPTY
    for member in group.members.values():
        for part in (member.current_assignment.assigned, member.current_assignment.revoking):
            for each, partitions in part.items():
                assert partitions.isdisjoint(held.get(each, frozenset())), "a partition has one holder"
            held = union(held, part)
    by_holder = {each: frozenset(partitions) for each, partitions in group.holders.items()}
    assert by_holder == held, "holders are those who hold"


# A client


class Member:
    """A consumer that does what Kafka's clients do."""

    def __init__(
        self, harness: ConsumerGroupHarness, member_id: str, instance_id: str | None = None, **metadata: Any
    ) -> None:
        self.harness = harness
        self.member_id = member_id
        self.instance_id = instance_id
        self.metadata: dict[str, Any] = {
            "subscribed_topic_names": ["a"],
            "rebalance_timeout_ms": REBALANCE_MS,
        }
        self.metadata.update(metadata)
        self.epoch = 0
        self.owned: Assignment = EMPTY
        self.assignment: Assignment = EMPTY
        self.is_slow = False
        """It does not finish what it is at, and so keeps what it is to give up."""
        self.interval_ms = 0
        self.code = ErrorCode.NONE
        self.sends_full_heartbeat = False
        self.is_replaced = False
        """Another has its instance id: it stops, as clients do."""

    def beat(self, *, is_lost: bool = False, **fields: Any) -> ErrorCode:
        """Report, and act upon the answer, unless that is lost."""
        reply = self.harness.ask(self.request(**fields))
        if is_lost:
            self.sends_full_heartbeat = True
            return ErrorCode.NONE
        self.sends_full_heartbeat = False
        self.take(reply)
        return self.code

    def request(self, **fields: Any) -> ConsumerGroupHeartbeatRequest:
        fields.setdefault("topic_partitions", _said(self.owned) if self.epoch else [])
        metadata = self.metadata if self.epoch == 0 or self.sends_full_heartbeat else {}
        return ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            instance_id=self.instance_id,
            **{"member_epoch": self.epoch, **metadata, **fields},
        )

    def take(self, reply: ConsumerGroupHeartbeatResponse) -> None:
        self.code = ErrorCode(reply.error_code)
        if self.code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch = 0
            self.owned = self.assignment = EMPTY
            return
        if self.code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
            self.is_replaced = True
            self.owned = self.assignment = EMPTY
        if self.code:
            return
        assert reply.member_epoch >= self.epoch, "epochs go up"
        self.epoch = reply.member_epoch
        self.interval_ms = reply.heartbeat_interval_ms
        if reply.assignment is not None:
            self.assignment = parse_assignment(reply.assignment.topic_partitions)
            self.reconcile()

    def reconcile(self) -> None:
        if self.is_slow and not is_subset(self.owned, self.assignment):
            return
        self.owned = self.assignment

    def hurry(self) -> None:
        self.is_slow = False
        self.reconcile()

    def subscribe(self, *names: str, **fields: Any) -> ErrorCode:
        self.metadata["subscribed_topic_names"] = list(names)
        return self.beat(subscribed_topic_names=list(names), **fields)

    def leave(self, epoch: int = -1) -> ErrorCode:
        reply = self.harness.ask(self.request(member_epoch=epoch))
        self.epoch = 0
        self.owned = self.assignment = EMPTY
        return ErrorCode(reply.error_code)

    def partitions(self, name: str = "a", version: int = 0) -> set[int]:
        return set(self.owned.get(topic_id(name, version), frozenset()))


def _said(assignment: Assignment) -> list[HeartbeatTopicPartitions]:
    return [HeartbeatTopicPartitions(each, sorted(partitions)) for each, partitions in assignment.items()]


def settle(members: Iterable[Member], rounds: int = 6) -> None:
    members = list(members)
    for _ in range(rounds):
        for member in members:
            member.beat()
