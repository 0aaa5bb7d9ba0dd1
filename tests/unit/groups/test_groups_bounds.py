"""How much groups may say, what is done in pieces, and what a full disk leaves possible."""

from collections.abc import Iterable, Sequence

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.groups import GroupConfig
from penstock.config.layers import GivenSettings
from penstock.coordinator.outcome import CommandOutcome, Now, StateRecord, WaitingRequest
from penstock.errors import ApiError, ConfigError, ErrorCode
from penstock.groups.classic.join import ClassicCaller
from penstock.groups.consumer.consumer_heartbeat import ConsumerCaller
from penstock.groups.group_context import ClientInfo, GroupContext, TopicsImage
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.groups.offsets.commit import NO_GENERATION, CommitRequest
from penstock.groups.offsets.committed_offsets import OffsetAndMetadata, PartitionCommit, commit_records
from penstock.limits import (
    COMMIT_BYTES_MAX,
    DAY_MS,
    GROUP_ID_BYTES_MAX,
    GROUP_METADATA_BYTES_MAX,
    GROUP_STATE_BYTES_MAX,
    GROUP_TURN_RECORDS,
    HOUR_MS,
    MIB,
    OFFSETS_LOOKED_PER_CHUNK,
    SHORT_MAX,
    STATE_RECORDS_PER_CHUNK,
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


class GroupsHarness:
    """One shard, and a log that takes what it decides."""

    def __init__(self, settings: GroupConfig | None = None, total_memory_bytes: int = 0) -> None:
        self.total_memory_bytes = total_memory_bytes
        self.settings = settings or config()
        self.topics = TopicsImage({"orders": ORDERS}, {ORDERS.id: ORDERS})
        self.log: list[StateRecord] = []
        self.written_ms = START.wall_ms
        """When, as the log says."""
        self.replies: list[object] = []
        self.groups = self.new_groups()

    def new_groups(self) -> GroupStateMachine:
        context = GroupContext(lambda: self.settings, lambda: self.topics, lambda: "id")
        return GroupStateMachine(context, lambda: self.total_memory_bytes)

    def load(self, now: Now) -> None:
        self.groups = self.new_groups()
        for record in self.log:
            self.groups.replay(record, self.written_ms)
        self.take(self.groups.on_loaded(now))

    def take(self, outcomes: Iterable[CommandOutcome]) -> list[CommandOutcome]:
        taken = []
        for outcome in outcomes:
            for record in outcome.records:
                self.groups.replay(record, START.wall_ms)
                self.log.append(record)
            self.replies += [reply.content for reply in outcome.replies]
            taken.append(outcome)
        return taken

    def commit(self, group: str, commits: Sequence[PartitionCommit], now: Now = START) -> None:
        request = CommitRequest(group, "", None, NO_GENERATION, 9, commits)
        self.take([CommandOutcome(self.groups.commit(request, now))])

    def replay_commits(self, group: str, commits: Sequence[PartitionCommit]) -> None:
        self.take([CommandOutcome(commit_records(group, commits))])


def places(
    count: int, note: str = "", name: str = "orders", at_ms: int = START.wall_ms
) -> list[PartitionCommit]:
    committed = OffsetAndMetadata(Offset(5), LeaderEpoch(-1), note, at_ms, topic_id=ORDERS.id)
    return [PartitionCommit(TopicPartition(name, index), committed) for index in range(count)]


def code_of(problem: pytest.ExceptionInfo[ApiError]) -> ErrorCode:
    return problem.value.code


# Commits


def test_a_commit_over_its_share_of_memory_is_rejected_before_it_is_built() -> None:
    harness = GroupsHarness()
    note = "n" * 4_000
    fitting = COMMIT_BYTES_MAX // (len("g") + 100 + len("orders") + len(note))
    harness.commit("g", places(fitting, note))
    with pytest.raises(ApiError) as refused:
        harness.commit("g", places(fitting + 1, note))
    assert code_of(refused) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE


def test_the_size_that_is_allowed_is_more_than_the_records_take() -> None:
    harness = GroupsHarness()
    harness.commit("g" * 50, places(2_000, "ü" * 10))
    written = sum(record.size_bytes for record in harness.log)
    allowed = 2_000 * (50 + 100 + len("orders") + len("ü".encode()) * 10)
    assert written <= allowed


@pytest.mark.parametrize("name", ["g" * GROUP_ID_BYTES_MAX, "ü" * (GROUP_ID_BYTES_MAX // 2)])
def test_the_longest_name_of_a_group_is_taken_and_a_longer_one_is_not(name: str) -> None:
    harness = GroupsHarness()
    harness.commit(name, places(1))
    join = JoinGroupRequest(
        name + "g", 10_000, 10_000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"")]
    )
    beat = ConsumerGroupHeartbeatRequest(name + "g", "m", 0, rebalance_timeout_ms=1, topic_partitions=[])
    beat.subscribed_topic_names = ["orders"]
    pending = WaitingRequest(lambda reply: None, lambda code, detail: code)
    client = ClientInfo("c", "/h")
    for ask in (
        lambda: harness.commit(name + "g", places(1)),
        lambda: harness.groups.join(join, ClassicCaller(9, client, pending), START),
        lambda: harness.groups.consumer_heartbeat(beat, ConsumerCaller(1, client, pending), START),
    ):
        with pytest.raises(ApiError) as refused:
            ask()
        assert code_of(refused) is ErrorCode.INVALID_GROUP_ID


# All groups together


def test_when_groups_take_too_much_memory_only_new_members_are_rejected() -> None:
    harness = GroupsHarness()
    harness.commit("old", places(2, "a note"))
    harness.total_memory_bytes = GROUP_STATE_BYTES_MAX + 1
    harness.commit("old", places(2, "another note"))
    for group, commits in (("new", places(1)), ("old", places(3)), ("old", places(1, "n" * 4_000))):
        with pytest.raises(ApiError) as refused:
            harness.commit(group, commits)
        assert code_of(refused) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert "delete groups" in refused.value.detail
    pending = WaitingRequest(lambda reply: None, lambda code, detail: code)
    protocols = [JoinGroupRequestProtocol("range", b"")]
    join = JoinGroupRequest("new", 10_000, 10_000, "", None, "consumer", protocols)
    with pytest.raises(ApiError) as refused:
        harness.groups.join(join, ClassicCaller(9, ClientInfo("c", "/h"), pending), START)
    assert code_of(refused) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_what_groups_take_is_counted_as_they_come_and_go() -> None:
    harness = GroupsHarness()
    assert harness.groups.memory_bytes == 0
    harness.commit("g", places(4, "note"))
    some = harness.groups.memory_bytes
    assert some > 4 * 300
    harness.commit("g", places(4, "a longer note"))
    assert harness.groups.memory_bytes == some + 4 * (len("a longer note") - len("note"))
    pending = WaitingRequest(lambda reply: None, lambda code, detail: code)
    said = JoinGroupRequestProtocol("range", bytes(50_000))
    join = JoinGroupRequest("h", 10_000, 10_000, "", None, "consumer", [said])
    harness.take([harness.groups.join(join, ClassicCaller(2, ClientInfo("c", "/h"), pending), START)])
    assert harness.groups.memory_bytes > some + 50_000
    member_id = "c-id"
    leave = LeaveGroupRequest("h", member_id)
    harness.take([harness.groups.leave(leave, ClassicCaller(2, ClientInfo("c", "/h"), pending), START)])
    harness.take([CommandOutcome(harness.groups.delete_group("g", START).records)])
    harness.take([CommandOutcome(harness.groups.delete_group("h", START).records)])
    assert harness.groups.memory_bytes == 0


# In pieces


def test_offsets_are_forgotten_in_pieces_and_their_group_last() -> None:
    harness = GroupsHarness()
    harness.replay_commits("g", places(2 * TOMBSTONES_AT_ONCE + 1))
    harness.load(START)
    harness.topics = TopicsImage({}, {})
    sizes = []
    for turn in range(4):
        outcomes = harness.take(harness.groups.expire(Now(START.wall_ms, START.monotonic + 2 + turn)))
        sizes.append([len(outcome.records) for outcome in outcomes if outcome.records])
    time_is_kept, group_ends = 1, 1
    assert sizes == [[time_is_kept, TOMBSTONES_AT_ONCE], [TOMBSTONES_AT_ONCE], [1, group_ends], []]
    assert list(harness.groups.names()) == []


def test_the_offsets_of_many_groups_are_never_one_piece() -> None:
    harness = GroupsHarness()
    for number in range(200):
        harness.replay_commits(f"g-{number}", places(20))
    harness.load(START)
    harness.topics = TopicsImage({}, {})
    for turn in range(10):
        outcomes = harness.take(harness.groups.expire(Now(START.wall_ms, START.monotonic + 2 + turn)))
        assert max((len(outcome.records) for outcome in outcomes), default=0) <= 20
        assert sum(len(outcome.records) for outcome in outcomes) <= TOMBSTONES_AT_ONCE + 20
    assert list(harness.groups.names()) == []


def test_a_chunk_of_expiry_is_bounded_in_offsets_however_few_groups_there_are() -> None:
    harness = GroupsHarness()
    for number in range(3):
        harness.replay_commits(f"g-{number}", places(OFFSETS_LOOKED_PER_CHUNK))
    harness.load(START)
    check_seconds = harness.settings.offsets.check_ms / 1000
    waits: list[float] = []
    now = Now(START.wall_ms, START.monotonic + 2)
    while not waits or waits[-1] < check_seconds:
        harness.take(harness.groups.expire(now))
        next_deadline = harness.groups.next_deadline()
        assert next_deadline is not None
        waits.append(next_deadline - now.monotonic)
        now = Now(START.wall_ms, next_deadline)
    assert len(waits) >= 3
    assert harness.groups.offsets.has_any("g-2")


def test_groups_that_fall_silent_together_are_given_up_in_turns_with_others() -> None:
    harness = GroupsHarness()
    count = 3 * STATE_RECORDS_PER_CHUNK // GROUP_TURN_RECORDS
    pending = WaitingRequest(lambda reply: None, lambda code, detail: code)
    caller = ConsumerCaller(1, ClientInfo("c", "/h"), pending)
    for number in range(count):
        beat = ConsumerGroupHeartbeatRequest(f"g-{number}", "m", 0, rebalance_timeout_ms=60_000)
        beat.subscribed_topic_names, beat.topic_partitions = ["orders"], []
        harness.take([harness.groups.consumer_heartbeat(beat, caller, START)])
    silent = Now(START.wall_ms, START.monotonic + 60)
    harness.take(harness.groups.expire(silent))
    left = [number for number in range(count) if members_of(harness, number)]
    assert count // 2 < len(left) < count
    assert harness.groups.next_deadline() == silent.monotonic
    again = ConsumerGroupHeartbeatRequest(f"g-{left[-1]}", "m", 1)
    harness.take([harness.groups.consumer_heartbeat(again, caller, silent)])
    turns = 0
    while (next_deadline := harness.groups.next_deadline()) is not None and next_deadline <= silent.monotonic:
        harness.take(harness.groups.expire(silent))
        turns += 1
    assert turns > 1
    assert [number for number in range(count) if members_of(harness, number)] == [left[-1]], (
        "it came back in time"
    )


def members_of(harness: GroupsHarness, number: int) -> int:
    described = harness.groups.describe_consumer(f"g-{number}")
    return len(described.members) if described else 0


def test_a_deletion_in_pieces_is_over_when_nothing_is_left() -> None:
    harness = GroupsHarness()
    harness.replay_commits("g", places(2 * TOMBSTONES_AT_ONCE + 1))
    pieces = []
    while "g" in harness.groups.names():
        pieces.append(harness.groups.delete_group("g", START))
        harness.take([CommandOutcome(pieces[-1].records)])
    assert [(len(piece.records), piece.is_done) for piece in pieces] == [
        (TOMBSTONES_AT_ONCE, False),
        (TOMBSTONES_AT_ONCE, False),
        (2, True),
    ]
    assert harness.groups.memory_bytes == 0


def test_a_deletion_that_was_cut_off_leaves_a_group_that_can_be_deleted() -> None:
    whole = GroupsHarness()
    whole.replay_commits("g", places(4))
    records = whole.groups.delete_group("g", START).records
    assert len(records) == 5
    for kept in range(len(records) + 1):
        harness = GroupsHarness()
        harness.replay_commits("g", places(4))
        harness.log += records[:kept]
        harness.load(START)
        is_left = kept < 4  # what the last record deletes never was in the log
        assert list(harness.groups.names()) == (["g"] if is_left else [])
        assert len(list(harness.groups.offsets.partitions("g"))) == max(0, 4 - kept)
        if is_left:
            harness.take([CommandOutcome(harness.groups.delete_group("g", START).records)])
            assert list(harness.groups.names()) == []


# Time


def test_a_restart_with_a_wrong_date_forgets_nothing_for_a_day() -> None:
    settings = config()
    settings = settings._replace(offsets=settings.offsets._replace(retention_ms=7 * DAY_MS))
    harness = GroupsHarness(settings)
    harness.replay_commits("g", places(1))
    wrong = Now(START.wall_ms + 30 * DAY_MS, 5.0)
    harness.load(wrong)
    harness.take(harness.groups.expire(Now(wrong.wall_ms + 2_000, 7.0)))
    assert harness.groups.offsets.has_any("g")
    day_later = Now(wrong.wall_ms + DAY_MS + 10_000, 7.0 + DAY_MS / 1000 + 10)
    harness.take(harness.groups.expire(day_later))
    assert not harness.groups.offsets.has_any("g")


def settled(retention_ms: int) -> GroupConfig:
    settings = config()
    return settings._replace(offsets=settings.offsets._replace(retention_ms=retention_ms))


def used_once(settings: GroupConfig, group: str) -> GroupsHarness:
    """A new shard, and a group that committed one offset two seconds before it stopped."""
    harness = GroupsHarness(settings)
    harness.load(START)
    harness.take(harness.groups.expire(Now(START.wall_ms + 2_000, START.monotonic + 2)))
    harness.commit(group, places(1), Now(START.wall_ms + 3_000, START.monotonic + 3))
    harness.take(harness.groups.expire(Now(START.wall_ms + 5_000, START.monotonic + 5)))
    return harness


@pytest.mark.parametrize("is_leap_while_running", [True, False], ids=["leaps", "boots wrong"])
def test_a_wrong_date_is_not_believed_after_a_restart_because_records_have_it(
    is_leap_while_running: bool,
) -> None:
    harness = used_once(settled(7 * DAY_MS), "idle")
    wrong_ms = START.wall_ms + 30 * DAY_MS
    if is_leap_while_running:
        harness.take(harness.groups.expire(Now(wrong_ms, START.monotonic + 700)))
    else:
        harness.load(Now(wrong_ms, 5.0))
        harness.take(harness.groups.expire(Now(wrong_ms + 2_000, 7.0)))
    harness.commit("busy", places(1, at_ms=wrong_ms), Now(wrong_ms, START.monotonic + 701))
    harness.written_ms = wrong_ms
    for _ in range(3):
        harness.load(Now(wrong_ms, 5.0))
        harness.take(harness.groups.expire(Now(wrong_ms + 2_000, 7.0)))
        assert harness.groups.offsets.has_any("idle")


def test_restarts_every_day_keep_nothing_for_ever() -> None:
    """The time that is believed goes on with every hour that the broker runs."""
    harness = used_once(settled(7 * DAY_MS), "idle")
    lived_ms = 0
    while harness.groups.offsets.has_any("idle"):
        harness.load(Now(START.wall_ms + 2 * lived_ms, 5.0))  # each time it was down as long as it ran
        for hour in range(1, 9):
            passed_ms = hour * HOUR_MS
            harness.take(
                harness.groups.expire(Now(START.wall_ms + 2 * lived_ms + passed_ms, 5.0 + passed_ms / 1000))
            )
        lived_ms += 8 * HOUR_MS
    assert lived_ms >= 7 * DAY_MS
    assert lived_ms <= 8 * DAY_MS


def test_commits_made_while_the_clock_was_in_1970_are_kept_like_all_others() -> None:
    harness = used_once(settled(7 * DAY_MS), "old")
    harness.load(Now(5_000, 5.0))
    harness.commit("new", places(1, at_ms=6_000), Now(6_000, 6.0))
    committed = harness.groups.offsets.find("new", "orders", 0)
    assert committed is not None
    assert committed.commit_timestamp_ms > START.wall_ms - DAY_MS


# A full disk


def test_on_a_full_disk_whatever_would_be_written_is_refused() -> None:
    harness = GroupsHarness()
    harness.commit("g", places(2))
    full = harness.groups.read_only_view()
    pending = WaitingRequest(lambda reply: None, lambda code, detail: code)
    caller = ClassicCaller(3, ClientInfo("c", "/h"), pending)
    join = JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", [JoinGroupRequestProtocol("r", b"")])
    request = CommitRequest("g", "", None, NO_GENERATION, 9, places(1))
    beat = ConsumerGroupHeartbeatRequest("h", "m", 0, rebalance_timeout_ms=1_000, topic_partitions=[])
    for ask in (
        lambda: full.commit(request, START),
        lambda: full.join(join, caller, START),
        lambda: full.sync(SyncGroupRequest("g", 1, "m"), caller, START),
        lambda: full.leave(LeaveGroupRequest("g", "m"), caller, START),
        lambda: full.delete_group("g", START),
        lambda: full.delete_offsets("g", [TopicPartition("orders", 0)]),
        lambda: full.consumer_heartbeat(beat, ConsumerCaller(1, ClientInfo("c", "/h"), pending), START),
    ):
        with pytest.raises(ApiError) as refused:
            ask()
        assert code_of(refused) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert full.offsets.find("g", "orders", 1) is not None
    assert harness.groups.commit(request, START), "what was refused there is taken here"


def test_on_a_full_disk_a_member_of_a_classic_group_stays_alive() -> None:
    harness = GroupsHarness()
    pending = WaitingRequest(lambda reply: None, lambda code, detail: code)
    caller = ClassicCaller(2, ClientInfo("c", "/h"), pending)
    join = JoinGroupRequest("g", 10_000, 60_000, "", None, "consumer", [JoinGroupRequestProtocol("r", b"")])
    harness.take([harness.groups.join(join, caller, START)])
    harness.take(harness.groups.expire(Now(START.wall_ms, START.monotonic + 1)))
    late = Now(START.wall_ms + 9_000, START.monotonic + 9)
    sign = HeartbeatRequest("g", 1, "c-id")
    assert not harness.groups.read_only_view().heartbeat(sign, caller, late).records
    harness.take(harness.groups.expire(Now(START.wall_ms + 15_000, START.monotonic + 15)))
    assert len(harness.groups.describe_classic("g").members) == 1  # type: ignore[union-attr]


class Consumer:
    """A member of the consumer protocol that reads everything."""

    def __init__(self, harness: GroupsHarness) -> None:
        self.harness = harness
        self.pending = WaitingRequest(lambda reply: None, lambda code, detail: code)
        first = ConsumerGroupHeartbeatRequest("g", "m", 0, rebalance_timeout_ms=60_000, topic_partitions=[])
        first.subscribed_topic_names = ["orders"]
        self.joined = self.beat(harness.groups, first, START)

    def beat(
        self, groups: GroupStateMachine, request: ConsumerGroupHeartbeatRequest, now: Now
    ) -> ConsumerGroupHeartbeatResponse:
        caller = ConsumerCaller(1, ClientInfo("c", "/h"), self.pending)
        (outcome,) = self.harness.take([groups.consumer_heartbeat(request, caller, now)])
        reply = outcome.replies[0].content
        assert isinstance(reply, ConsumerGroupHeartbeatResponse)
        return reply


def test_on_a_full_disk_a_member_that_says_nothing_new_keeps_what_it_has() -> None:
    harness = GroupsHarness()
    member = Consumer(harness)
    full, epoch = harness.groups.read_only_view(), member.joined.member_epoch
    written = len(harness.log)
    silent = ConsumerGroupHeartbeatRequest("g", "m", epoch)
    everything = ConsumerGroupHeartbeatRequest("g", "m", epoch, rebalance_timeout_ms=60_000)
    everything.subscribed_topic_names = ["orders"]
    everything.topic_partitions = [HeartbeatTopicPartitions(ORDERS.id, [0, 1, 2, 3])]
    late = Now(START.wall_ms, START.monotonic + 40)
    told = [member.beat(full, request, late) for request in (silent, everything)]
    assert [each.member_epoch for each in told] == [epoch, epoch]
    assert (told[0].assignment, told[1].assignment) == (None, member.joined.assignment)
    assert len(harness.log) == written
    harness.take(harness.groups.expire(Now(START.wall_ms, START.monotonic + 60)))
    assert len(harness.groups.describe_consumer("g").members) == 1  # type: ignore[union-attr]


def test_on_a_full_disk_news_are_put_off_and_the_member_lives_on() -> None:
    harness = GroupsHarness()
    member = Consumer(harness)
    request = ConsumerGroupHeartbeatRequest("g", "m", member.joined.member_epoch)
    request.subscribed_topic_names = ["orders", "others"]
    late = Now(START.wall_ms, START.monotonic + 40)
    with pytest.raises(ApiError) as refused:
        member.beat(harness.groups.read_only_view(), request, late)
    assert code_of(refused) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.take(harness.groups.expire(Now(START.wall_ms, START.monotonic + 60)))
    assert len(harness.groups.describe_consumer("g").members) == 1  # type: ignore[union-attr]


# Settings


def test_the_largest_command_is_smaller_than_the_smallest_segment() -> None:
    """A commit, the record of a group, and the tombstones of a piece, with the longest names."""
    smallest = smallest_segment_bytes()
    key_bytes = GROUP_ID_BYTES_MAX + 249 + 100
    assert max(COMMIT_BYTES_MAX, GROUP_METADATA_BYTES_MAX, TOMBSTONES_AT_ONCE * key_bytes) < smallest
    assert smallest >= 2 * GROUP_METADATA_BYTES_MAX


def smallest_segment_bytes() -> int:
    """The least that the setting takes."""
    taken = BrokerConfig.of(GivenSettings({"offsets.topic.segment.bytes": str(4 * MIB)}))
    with pytest.raises(ConfigError):
        BrokerConfig.of(GivenSettings({"offsets.topic.segment.bytes": str(4 * MIB - 1)}))
    return taken.groups.topic_segment_bytes


def test_a_note_is_never_allowed_to_be_longer_than_old_replies_can_tell() -> None:
    assert BrokerConfig.of(GivenSettings({"offset.metadata.max.bytes": str(SHORT_MAX)}))
    with pytest.raises(ConfigError):
        BrokerConfig.of(GivenSettings({"offset.metadata.max.bytes": str(SHORT_MAX + 1)}))
