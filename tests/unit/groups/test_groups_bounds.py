"""How much groups may say, what is done in pieces, and what a full disk leaves possible."""

from collections.abc import Iterable, Sequence

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.groups import GroupConfig
from penstock.config.layers import Given
from penstock.coordinator.outcome import Now, Outcome, Pending, StateRecord
from penstock.errors import ApiError, ConfigError, ErrorCode
from penstock.groups.classic.join import Asking
from penstock.groups.consumer.consumer_heartbeat import Caller
from penstock.groups.group_context import Client, Surroundings, Topics
from penstock.groups.groups import Groups
from penstock.groups.offsets.commit import NO_GENERATION, CommitRequest
from penstock.groups.offsets.committed_offsets import Commit, Committed, commit_records
from penstock.limits import (
    COMMIT_BYTES_MAX,
    DAY_MS,
    GROUP_ID_BYTES_MAX,
    GROUP_METADATA_BYTES_MAX,
    GROUP_STATE_BYTES_MAX,
    GROUP_TURN_RECORDS,
    HOUR_MS,
    MIB,
    OFFSETS_LOOKED_PER_TURN,
    SHORT_MAX,
    STATE_RECORDS_PER_TURN,
    TOMBSTONES_AT_ONCE,
)
from penstock.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from penstock.protocol.messages.heartbeat import HeartbeatRequest
from penstock.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.leave_group import LeaveGroupRequest
from penstock.protocol.messages.sync_group import SyncGroupRequest
from penstock.types import LeaderEpoch, Offset, TopicPartition
from tests.unit.groups.consumer.consumer_support import config, topic

START = Now(1_700_000_000_000, 1_000.0)
ORDERS = topic("orders", 4)


class World:
    """One shard, and a log that takes what it decides."""

    def __init__(self, settings: GroupConfig | None = None, kept_bytes: int = 0) -> None:
        self.kept_bytes = kept_bytes
        self.settings = settings or config()
        self.topics = Topics({"orders": ORDERS}, {ORDERS.id: ORDERS})
        self.log: list[StateRecord] = []
        self.written_ms = START.wall_ms
        """When, as the log says."""
        self.replies: list[object] = []
        self.groups = self.new_groups()

    def new_groups(self) -> Groups:
        surroundings = Surroundings(lambda: self.settings, lambda: self.topics, lambda: "id")
        return Groups(surroundings, lambda: self.kept_bytes)

    def load(self, now: Now) -> None:
        self.groups = self.new_groups()
        for record in self.log:
            self.groups.replay(record, self.written_ms)
        self.take(self.groups.loaded(now))

    def take(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        taken = []
        for outcome in outcomes:
            for record in outcome.records:
                self.groups.replay(record, START.wall_ms)
                self.log.append(record)
            self.replies += [reply.content for reply in outcome.replies]
            taken.append(outcome)
        return taken

    def commit(self, group: str, commits: Sequence[Commit], now: Now = START) -> None:
        request = CommitRequest(group, "", None, NO_GENERATION, 9, commits)
        self.take([Outcome(self.groups.commit(request, now))])

    def replay_commits(self, group: str, commits: Sequence[Commit]) -> None:
        self.take([Outcome(commit_records(group, commits))])


def places(count: int, note: str = "", name: str = "orders", at_ms: int = START.wall_ms) -> list[Commit]:
    committed = Committed(Offset(5), LeaderEpoch(-1), note, at_ms, topic_id=ORDERS.id)
    return [Commit(TopicPartition(name, index), committed) for index in range(count)]


def code_of(problem: pytest.ExceptionInfo[ApiError]) -> ErrorCode:
    return problem.value.code


# Commits


def test_a_commit_that_takes_more_than_its_share_is_refused_before_anything_is_made_of_it() -> None:
    world = World()
    note = "n" * 4_000
    fitting = COMMIT_BYTES_MAX // (len("g") + 100 + len("orders") + len(note))
    world.commit("g", places(fitting, note))
    with pytest.raises(ApiError) as refused:
        world.commit("g", places(fitting + 1, note))
    assert code_of(refused) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE


def test_the_size_that_is_allowed_is_more_than_the_records_take() -> None:
    world = World()
    world.commit("g" * 50, places(2_000, "ü" * 10))
    written = sum(record.size_bytes for record in world.log)
    allowed = 2_000 * (50 + 100 + len("orders") + len("ü".encode()) * 10)
    assert written <= allowed


@pytest.mark.parametrize("name", ["g" * GROUP_ID_BYTES_MAX, "ü" * (GROUP_ID_BYTES_MAX // 2)])
def test_the_longest_name_of_a_group_is_taken_and_a_longer_one_is_not(name: str) -> None:
    world = World()
    world.commit(name, places(1))
    join = JoinGroupRequest(
        name + "g", 10_000, 10_000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"")]
    )
    beat = ConsumerGroupHeartbeatRequest(name + "g", "m", 0, rebalance_timeout_ms=1, topic_partitions=[])
    beat.subscribed_topic_names = ["orders"]
    pending = Pending(lambda reply: None, lambda code, detail: code)
    client = Client("c", "/h")
    for ask in (
        lambda: world.commit(name + "g", places(1)),
        lambda: world.groups.join(join, Asking(9, client, pending), START),
        lambda: world.groups.consumer_heartbeat(beat, Caller(1, client, pending), START),
    ):
        with pytest.raises(ApiError) as refused:
            ask()
        assert code_of(refused) is ErrorCode.INVALID_GROUP_ID


# All groups together


def test_when_all_groups_take_too_much_newcomers_are_refused_and_the_others_go_on() -> None:
    world = World()
    world.commit("old", places(2, "a note"))
    world.kept_bytes = GROUP_STATE_BYTES_MAX + 1
    world.commit("old", places(2, "another note"))
    for group, commits in (("new", places(1)), ("old", places(3)), ("old", places(1, "n" * 4_000))):
        with pytest.raises(ApiError) as refused:
            world.commit(group, commits)
        assert code_of(refused) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert "delete groups" in refused.value.detail
    pending = Pending(lambda reply: None, lambda code, detail: code)
    protocols = [JoinGroupRequestProtocol("range", b"")]
    join = JoinGroupRequest("new", 10_000, 10_000, "", None, "consumer", protocols)
    with pytest.raises(ApiError) as refused:
        world.groups.join(join, Asking(9, Client("c", "/h"), pending), START)
    assert code_of(refused) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_what_groups_take_is_counted_as_they_come_and_go() -> None:
    world = World()
    assert world.groups.weight_bytes == 0
    world.commit("g", places(4, "note"))
    some = world.groups.weight_bytes
    assert some > 4 * 300
    world.commit("g", places(4, "a longer note"))
    assert world.groups.weight_bytes == some + 4 * (len("a longer note") - len("note"))
    pending = Pending(lambda reply: None, lambda code, detail: code)
    said = JoinGroupRequestProtocol("range", bytes(50_000))
    join = JoinGroupRequest("h", 10_000, 10_000, "", None, "consumer", [said])
    world.take([world.groups.join(join, Asking(2, Client("c", "/h"), pending), START)])
    assert world.groups.weight_bytes > some + 50_000
    member_id = "c-id"
    leave = LeaveGroupRequest("h", member_id)
    world.take([world.groups.leave(leave, Asking(2, Client("c", "/h"), pending), START)])
    world.take([Outcome(world.groups.delete_group("g", START).records)])
    world.take([Outcome(world.groups.delete_group("h", START).records)])
    assert world.groups.weight_bytes == 0


# In pieces


def test_offsets_are_forgotten_in_pieces_and_their_group_last() -> None:
    world = World()
    world.replay_commits("g", places(2 * TOMBSTONES_AT_ONCE + 1))
    world.load(START)
    world.topics = Topics({}, {})
    sizes = []
    for turn in range(4):
        outcomes = world.take(world.groups.expire(Now(START.wall_ms, START.monotonic + 2 + turn)))
        sizes.append([len(outcome.records) for outcome in outcomes if outcome.records])
    time_is_kept, group_ends = 1, 1
    assert sizes == [[time_is_kept, TOMBSTONES_AT_ONCE], [TOMBSTONES_AT_ONCE], [1, group_ends], []]
    assert list(world.groups.names()) == []


def test_the_offsets_of_many_groups_are_never_one_piece() -> None:
    world = World()
    for number in range(200):
        world.replay_commits(f"g-{number}", places(20))
    world.load(START)
    world.topics = Topics({}, {})
    for turn in range(10):
        outcomes = world.take(world.groups.expire(Now(START.wall_ms, START.monotonic + 2 + turn)))
        assert max((len(outcome.records) for outcome in outcomes), default=0) <= 20
        assert sum(len(outcome.records) for outcome in outcomes) <= TOMBSTONES_AT_ONCE + 20
    assert list(world.groups.names()) == []


def test_a_turn_of_forgetting_is_measured_in_offsets_however_few_groups_there_are() -> None:
    world = World()
    for number in range(3):
        world.replay_commits(f"g-{number}", places(OFFSETS_LOOKED_PER_TURN))
    world.load(START)
    check_seconds = world.settings.offsets.check_ms / 1000
    waits: list[float] = []
    now = Now(START.wall_ms, START.monotonic + 2)
    while not waits or waits[-1] < check_seconds:
        world.take(world.groups.expire(now))
        due = world.groups.due()
        assert due is not None
        waits.append(due - now.monotonic)
        now = Now(START.wall_ms, due)
    assert len(waits) >= 3
    assert world.groups.offsets.has_any("g-2")


def test_groups_that_fall_silent_together_are_given_up_in_turns_with_others() -> None:
    world = World()
    count = 3 * STATE_RECORDS_PER_TURN // GROUP_TURN_RECORDS
    pending = Pending(lambda reply: None, lambda code, detail: code)
    caller = Caller(1, Client("c", "/h"), pending)
    for number in range(count):
        beat = ConsumerGroupHeartbeatRequest(f"g-{number}", "m", 0, rebalance_timeout_ms=60_000)
        beat.subscribed_topic_names, beat.topic_partitions = ["orders"], []
        world.take([world.groups.consumer_heartbeat(beat, caller, START)])
    silent = Now(START.wall_ms, START.monotonic + 60)
    world.take(world.groups.expire(silent))
    left = [number for number in range(count) if members_of(world, number)]
    assert count // 2 < len(left) < count
    assert world.groups.due() == silent.monotonic
    again = ConsumerGroupHeartbeatRequest(f"g-{left[-1]}", "m", 1)
    world.take([world.groups.consumer_heartbeat(again, caller, silent)])
    turns = 0
    while (due := world.groups.due()) is not None and due <= silent.monotonic:
        world.take(world.groups.expire(silent))
        turns += 1
    assert turns > 1
    assert [number for number in range(count) if members_of(world, number)] == [left[-1]], (
        "it came back in time"
    )


def members_of(world: World, number: int) -> int:
    described = world.groups.describe_consumer(f"g-{number}")
    return len(described.members) if described else 0


def test_a_deletion_in_pieces_is_over_when_nothing_is_left() -> None:
    world = World()
    world.replay_commits("g", places(2 * TOMBSTONES_AT_ONCE + 1))
    pieces = []
    while "g" in world.groups.names():
        pieces.append(world.groups.delete_group("g", START))
        world.take([Outcome(pieces[-1].records)])
    assert [(len(piece.records), piece.is_over) for piece in pieces] == [
        (TOMBSTONES_AT_ONCE, False),
        (TOMBSTONES_AT_ONCE, False),
        (2, True),
    ]
    assert world.groups.weight_bytes == 0


def test_a_deletion_that_was_cut_off_leaves_a_group_that_can_be_deleted() -> None:
    whole = World()
    whole.replay_commits("g", places(4))
    records = whole.groups.delete_group("g", START).records
    assert len(records) == 5
    for kept in range(len(records) + 1):
        world = World()
        world.replay_commits("g", places(4))
        world.log += records[:kept]
        world.load(START)
        is_left = kept < 4  # what the last record deletes never was in the log
        assert list(world.groups.names()) == (["g"] if is_left else [])
        assert len(list(world.groups.offsets.partitions("g"))) == max(0, 4 - kept)
        if is_left:
            world.take([Outcome(world.groups.delete_group("g", START).records)])
            assert list(world.groups.names()) == []


# Time


def test_a_restart_with_a_wrong_date_forgets_nothing_for_a_day() -> None:
    settings = config()
    settings = settings._replace(offsets=settings.offsets._replace(retention_ms=7 * DAY_MS))
    world = World(settings)
    world.replay_commits("g", places(1))
    wrong = Now(START.wall_ms + 30 * DAY_MS, 5.0)
    world.load(wrong)
    world.take(world.groups.expire(Now(wrong.wall_ms + 2_000, 7.0)))
    assert world.groups.offsets.has_any("g")
    day_later = Now(wrong.wall_ms + DAY_MS + 10_000, 7.0 + DAY_MS / 1000 + 10)
    world.take(world.groups.expire(day_later))
    assert not world.groups.offsets.has_any("g")


def settled(retention_ms: int) -> GroupConfig:
    settings = config()
    return settings._replace(offsets=settings.offsets._replace(retention_ms=retention_ms))


def used_once(settings: GroupConfig, group: str) -> World:
    """A new shard, and a group that committed one offset two seconds before it stopped."""
    world = World(settings)
    world.load(START)
    world.take(world.groups.expire(Now(START.wall_ms + 2_000, START.monotonic + 2)))
    world.commit(group, places(1), Now(START.wall_ms + 3_000, START.monotonic + 3))
    world.take(world.groups.expire(Now(START.wall_ms + 5_000, START.monotonic + 5)))
    return world


@pytest.mark.parametrize("is_leap_while_running", [True, False], ids=["leaps", "boots wrong"])
def test_a_wrong_date_is_not_believed_after_a_restart_because_records_have_it(
    is_leap_while_running: bool,
) -> None:
    world = used_once(settled(7 * DAY_MS), "idle")
    wrong_ms = START.wall_ms + 30 * DAY_MS
    if is_leap_while_running:
        world.take(world.groups.expire(Now(wrong_ms, START.monotonic + 700)))
    else:
        world.load(Now(wrong_ms, 5.0))
        world.take(world.groups.expire(Now(wrong_ms + 2_000, 7.0)))
    world.commit("busy", places(1, at_ms=wrong_ms), Now(wrong_ms, START.monotonic + 701))
    world.written_ms = wrong_ms
    for _ in range(3):
        world.load(Now(wrong_ms, 5.0))
        world.take(world.groups.expire(Now(wrong_ms + 2_000, 7.0)))
        assert world.groups.offsets.has_any("idle")


def test_restarts_every_day_keep_nothing_for_ever() -> None:
    """The time that is believed goes on with every hour that the broker runs."""
    world = used_once(settled(7 * DAY_MS), "idle")
    lived_ms = 0
    while world.groups.offsets.has_any("idle"):
        world.load(Now(START.wall_ms + 2 * lived_ms, 5.0))  # each time it was down as long as it ran
        for hour in range(1, 9):
            passed_ms = hour * HOUR_MS
            world.take(
                world.groups.expire(Now(START.wall_ms + 2 * lived_ms + passed_ms, 5.0 + passed_ms / 1000))
            )
        lived_ms += 8 * HOUR_MS
    assert lived_ms >= 7 * DAY_MS
    assert lived_ms <= 8 * DAY_MS


def test_what_was_committed_while_the_clock_was_in_1970_is_kept_as_long_as_everything_else() -> None:
    world = used_once(settled(7 * DAY_MS), "old")
    world.load(Now(5_000, 5.0))
    world.commit("new", places(1, at_ms=6_000), Now(6_000, 6.0))
    committed = world.groups.offsets.find("new", "orders", 0)
    assert committed is not None
    assert committed.commit_timestamp_ms > START.wall_ms - DAY_MS


# A full disk


def test_on_a_full_disk_whatever_would_be_written_is_refused() -> None:
    world = World()
    world.commit("g", places(2))
    full = world.groups.while_full()
    pending = Pending(lambda reply: None, lambda code, detail: code)
    asking = Asking(3, Client("c", "/h"), pending)
    join = JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", [JoinGroupRequestProtocol("r", b"")])
    request = CommitRequest("g", "", None, NO_GENERATION, 9, places(1))
    beat = ConsumerGroupHeartbeatRequest("h", "m", 0, rebalance_timeout_ms=1_000, topic_partitions=[])
    for ask in (
        lambda: full.commit(request, START),
        lambda: full.join(join, asking, START),
        lambda: full.sync(SyncGroupRequest("g", 1, "m"), asking, START),
        lambda: full.leave(LeaveGroupRequest("g", "m"), asking, START),
        lambda: full.delete_group("g", START),
        lambda: full.delete_offsets("g", [TopicPartition("orders", 0)]),
        lambda: full.consumer_heartbeat(beat, Caller(1, Client("c", "/h"), pending), START),
    ):
        with pytest.raises(ApiError) as refused:
            ask()
        assert code_of(refused) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert full.offsets.find("g", "orders", 1) is not None
    assert world.groups.commit(request, START), "what was refused there is taken here"


def test_on_a_full_disk_a_member_of_a_classic_group_stays_alive() -> None:
    world = World()
    pending = Pending(lambda reply: None, lambda code, detail: code)
    asking = Asking(2, Client("c", "/h"), pending)
    join = JoinGroupRequest("g", 10_000, 60_000, "", None, "consumer", [JoinGroupRequestProtocol("r", b"")])
    world.take([world.groups.join(join, asking, START)])
    world.take(world.groups.expire(Now(START.wall_ms, START.monotonic + 1)))
    late = Now(START.wall_ms + 9_000, START.monotonic + 9)
    sign = HeartbeatRequest("g", 1, "c-id")
    assert not world.groups.while_full().heartbeat(sign, asking, late).records
    world.take(world.groups.expire(Now(START.wall_ms + 15_000, START.monotonic + 15)))
    assert len(world.groups.describe_classic("g").members) == 1  # type: ignore[union-attr]


class Consumer:
    """A member of the consumer protocol that reads everything."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.pending = Pending(lambda reply: None, lambda code, detail: code)
        first = ConsumerGroupHeartbeatRequest("g", "m", 0, rebalance_timeout_ms=60_000, topic_partitions=[])
        first.subscribed_topic_names = ["orders"]
        self.joined = self.beat(world.groups, first, START)

    def beat(
        self, groups: Groups, request: ConsumerGroupHeartbeatRequest, now: Now
    ) -> ConsumerGroupHeartbeatResponse:
        caller = Caller(1, Client("c", "/h"), self.pending)
        (outcome,) = self.world.take([groups.consumer_heartbeat(request, caller, now)])
        reply = outcome.replies[0].content
        assert isinstance(reply, ConsumerGroupHeartbeatResponse)
        return reply


def test_on_a_full_disk_a_member_that_says_nothing_new_keeps_what_it_has() -> None:
    world = World()
    member = Consumer(world)
    full, epoch = world.groups.while_full(), member.joined.member_epoch
    written = len(world.log)
    silent = ConsumerGroupHeartbeatRequest("g", "m", epoch)
    everything = ConsumerGroupHeartbeatRequest("g", "m", epoch, rebalance_timeout_ms=60_000)
    everything.subscribed_topic_names = ["orders"]
    everything.topic_partitions = [HeartbeatTopicPartitions(ORDERS.id, [0, 1, 2, 3])]
    late = Now(START.wall_ms, START.monotonic + 40)
    told = [member.beat(full, request, late) for request in (silent, everything)]
    assert [each.member_epoch for each in told] == [epoch, epoch]
    assert (told[0].assignment, told[1].assignment) == (None, member.joined.assignment)
    assert len(world.log) == written
    world.take(world.groups.expire(Now(START.wall_ms, START.monotonic + 60)))
    assert len(world.groups.describe_consumer("g").members) == 1  # type: ignore[union-attr]


def test_on_a_full_disk_news_are_put_off_and_the_member_lives_on() -> None:
    world = World()
    member = Consumer(world)
    request = ConsumerGroupHeartbeatRequest("g", "m", member.joined.member_epoch)
    request.subscribed_topic_names = ["orders", "others"]
    late = Now(START.wall_ms, START.monotonic + 40)
    with pytest.raises(ApiError) as refused:
        member.beat(world.groups.while_full(), request, late)
    assert code_of(refused) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.take(world.groups.expire(Now(START.wall_ms, START.monotonic + 60)))
    assert len(world.groups.describe_consumer("g").members) == 1  # type: ignore[union-attr]


# Settings


def test_the_largest_command_is_smaller_than_the_smallest_segment() -> None:
    """A commit, the record of a group, and the tombstones of a piece, with the longest names."""
    smallest = smallest_segment_bytes()
    key_bytes = GROUP_ID_BYTES_MAX + 249 + 100
    assert max(COMMIT_BYTES_MAX, GROUP_METADATA_BYTES_MAX, TOMBSTONES_AT_ONCE * key_bytes) < smallest
    assert smallest >= 2 * GROUP_METADATA_BYTES_MAX


def smallest_segment_bytes() -> int:
    """The least that the setting takes."""
    taken = BrokerConfig.of(Given({"offsets.topic.segment.bytes": str(4 * MIB)}))
    with pytest.raises(ConfigError):
        BrokerConfig.of(Given({"offsets.topic.segment.bytes": str(4 * MIB - 1)}))
    return taken.groups.topic_segment_bytes


def test_a_note_is_never_allowed_to_be_longer_than_old_replies_can_tell() -> None:
    assert BrokerConfig.of(Given({"offset.metadata.max.bytes": str(SHORT_MAX)}))
    with pytest.raises(ConfigError):
        BrokerConfig.of(Given({"offset.metadata.max.bytes": str(SHORT_MAX + 1)}))
