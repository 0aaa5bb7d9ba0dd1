"""Groups move between the classic and the consumer protocol while their members live."""

from typing import Any

import pytest

from penstock.coordinator.outcome import CommandOutcome
from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup, ClassicState
from penstock.groups.consumer.consumer_group import ConsumerGroup, ConsumerState
from penstock.groups.consumer.describe import describe
from penstock.groups.consumer.request_validation import validate_commit
from penstock.groups.group_context import GroupStateLimits
from penstock.protocol.messages.join_group import JoinGroupRequestProtocol
from penstock.protocol.messages.leave_group import MemberIdentity
from tests.unit.groups.consumer.consumer_support import (
    CLASSIC_SESSION_MS,
    GROUP,
    REBALANCE_MS,
    ConsumerGroupHarness,
    Member,
    settle,
    topic,
    topic_id,
)
from tests.unit.groups.migration_support import Classic, assigned, assignment, subscription


def classic_pair(harness: ConsumerGroupHarness, **instances: str) -> tuple[Classic, Classic]:
    """A classic group of two that is Stable, with four partitions."""
    first = Classic(harness, "1", instances.get("first"))
    second = Classic(harness, "2", instances.get("second"))
    first.join()
    second.join()
    harness.advance(1)
    if harness.classic.state is not ClassicState.COMPLETING:
        first.join()
        second.join()
    first.learn()
    second.learn()
    shares = {first.member_id: assignment(a={0, 1}), second.member_id: assignment(a={2, 3})}
    leader = first if harness.classic.leader == first.member_id else second
    leader.sync(shares)
    first.sync()
    second.sync()
    assert harness.classic.state is ClassicState.STABLE
    return first, second


def mixed() -> tuple[ConsumerGroupHarness, Classic, Classic, Member]:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = classic_pair(harness)
    newcomer = Member(harness, "new")
    newcomer.beat()
    for _ in range(6):
        first.live()
        second.live()
        newcomer.beat()
    return harness, first, second, newcomer


# From classic to consumer


def test_an_empty_classic_group_becomes_a_consumer_group_freely() -> None:
    harness = ConsumerGroupHarness(topic("a", 4), upgrade_allowed=False, downgrade_allowed=False)
    harness.place.group = ClassicGroup.new(GROUP, harness.now)
    harness.take_outcome(CommandOutcome(records=(harness.classic.record(),)))
    member = Member(harness, "m")
    assert member.beat() == ErrorCode.NONE
    assert member.partitions() == {0, 1, 2, 3}


def test_the_first_member_of_the_new_protocol_turns_the_group_over() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = classic_pair(harness)
    newcomer = Member(harness, "new")
    assert newcomer.beat() == ErrorCode.NONE
    assert harness.group.members.keys() == {first.member_id, second.member_id, "new"}
    assert harness.group.epoch == harness.group.assignment_epoch == first.generation + 1
    assert newcomer.partitions() == set()
    assert newcomer.epoch == harness.group.epoch


def test_classic_members_go_on_reading_what_they_keep() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = classic_pair(harness)
    newcomer = Member(harness, "new")
    newcomer.beat()
    before = first.partitions(), second.partitions()
    for _ in range(6):
        first.live()
        second.live()
        newcomer.beat()
        assert not first.partitions() & second.partitions()
        assert not newcomer.partitions() & (first.partitions() | second.partitions())
    assert first.partitions() <= before[0]
    assert second.partitions() <= before[1]
    assert len(newcomer.partitions()) == 1
    assert harness.group.state is ConsumerState.STABLE
    assert first.beat() == second.beat() == ErrorCode.NONE


def test_a_rebalance_that_was_interrupted_gives_nobody_what_others_still_read() -> None:
    harness = ConsumerGroupHarness(topic("a", 8))
    first, second = classic_pair(harness)
    third = Classic(harness, "3")
    third.join()
    first.join()
    second.join()
    third.learn()
    assert str(harness.classic.state) == "CompletingRebalance"
    Classic(harness, "4").join()
    assert str(harness.classic.state) == "PreparingRebalance"
    newcomer = Member(harness, "new")
    newcomer.beat()
    third.join()
    third.sync()
    assert newcomer.partitions()
    assert not (newcomer.partitions() | third.partitions()) & (first.partitions() | second.partitions())


def test_a_static_member_that_missed_a_rebalance_keeps_what_it_reads() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = classic_pair(harness, first="i1")
    third = Classic(harness, "3")
    third.join()
    second.join()
    for _ in range(REBALANCE_MS // 5_000):
        first.beat()
        harness.advance(5)
    assert harness.classic.state is ClassicState.COMPLETING
    Classic(harness, "4").join()
    newcomer = Member(harness, "new")
    newcomer.beat()
    third.join()
    third.sync()
    assert first.partitions() == {0, 1}
    assert not (newcomer.partitions() | third.partitions()) & first.partitions()


def test_what_a_cooperative_member_has_not_yet_given_up_is_given_to_nobody() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = classic_pair(harness)
    third = Classic(harness, "3")
    third.join()
    first.join()
    second.join()
    for member in (first, second, third):
        member.learn()
    shares = {
        first.member_id: assignment(a={0}),
        second.member_id: assignment(a={2}),
        third.member_id: assignment(),
    }
    leader = next(each for each in (first, second, third) if each.member_id == harness.classic.leader)
    asked = harness.sync_classic(leader.member_id, leader.generation, shares)
    assert asked.pending.is_completed
    assert harness.classic.state is ClassicState.STABLE
    newcomer = Member(harness, "new")
    newcomer.beat()
    third.join()
    third.sync()
    assert first.partitions() | second.partitions() == {0, 1, 2, 3}
    assert not newcomer.partitions() | third.partitions()


def test_a_static_member_that_changes_protocol_before_assignment_gets_its_share() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    assert not Classic(harness, "c", "i1").join().pending.is_completed
    moved = Member(harness, "m", "i1")
    settle((moved,))
    assert moved.epoch > 0
    assert moved.partitions() == {0, 1, 2, 3}


def test_whoever_waits_in_the_classic_group_is_told_to_join_again() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = classic_pair(harness)
    waiting = first.join()
    second_wait = Classic(harness, "3").join()
    assert not second_wait.pending.is_completed
    Member(harness, "new").beat()
    assert second_wait.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert waiting.pending.is_completed
    assert second.beat() is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    "change",
    [
        {"upgrade_allowed": False},
        {"members_max": 1},
    ],
)
def test_what_the_settings_forbid_leaves_the_classic_group_alone(change: dict[str, Any]) -> None:
    harness = ConsumerGroupHarness(topic("a", 4), **change)
    first, _ = classic_pair(harness)
    assert Member(harness, "new").beat() == ErrorCode.GROUP_ID_NOT_FOUND
    assert harness.classic.state is ClassicState.STABLE
    assert first.beat() == ErrorCode.NONE


def test_members_that_say_what_nobody_can_read_stay_classic() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    asked = harness.join_classic("1", protocols=[JoinGroupRequestProtocol("range", b"\0")])
    harness.join_classic("1", asked.reply.member_id, protocols=[JoinGroupRequestProtocol("range", b"\0")])
    assert Member(harness, "new").beat() == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_partition_that_two_read_cannot_be_carried_over() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = classic_pair(harness)
    leader = first if harness.classic.leader == first.member_id else second
    leader.join()
    (second if leader is first else first).join()
    leader.learn()
    first.learn()
    second.learn()
    leader.sync({first.member_id: assignment(a={0}), second.member_id: assignment(a={0})})
    assert Member(harness, "new").beat() == ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(harness.place.group, ClassicGroup)


def test_a_group_that_would_say_more_than_a_group_can_keep_stays_classic() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    classic_pair(harness)
    harness.context.limits = GroupStateLimits(metadata_bytes_max=100)
    assert Member(harness, "new").beat() == ErrorCode.GROUP_ID_NOT_FOUND
    assert harness.classic.state is ClassicState.STABLE


def test_partitions_that_do_not_exist_are_not_carried_over() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    classic_pair(harness)
    harness.set_topics(topic("a", 3))
    Member(harness, "new").beat()
    assert harness.group.holders[topic_id("a")].keys() == {0, 1, 2}


def test_a_heartbeat_with_an_epoch_to_a_classic_group_makes_it_join_again() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    classic_pair(harness)
    zombie = Member(harness, "z")
    zombie.epoch = 4
    assert zombie.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_moves_to_the_new_protocol_with_its_partitions() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = classic_pair(harness, first="i1", second="i2")
    moved = Member(harness, "new", "i1")
    moved.beat()
    assert harness.group.members.keys() == {"new", second.member_id}
    assert moved.partitions() == {0, 1}
    assert first.beat() == ErrorCode.UNKNOWN_MEMBER_ID


# Classic members in a consumer group


def test_a_classic_newcomer_joins_at_once_and_shares_the_work() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    member = Member(harness, "m")
    member.beat()
    newcomer = Classic(harness, "c")
    assert newcomer.join().code is ErrorCode.NONE
    assert newcomer.joined is not None
    assert newcomer.joined.reply.leader == ""
    assert newcomer.joined.reply.protocol_name == "range"
    assert newcomer.sync() is ErrorCode.NONE
    for _ in range(4):
        member.beat()
        newcomer.live()
    assert len(member.partitions()) == len(newcomer.partitions()) == 2
    assert not member.partitions() & newcomer.partitions()


def test_a_classic_member_that_must_give_up_is_asked_to_join_again() -> None:
    harness, first, second, newcomer = mixed()
    another = Member(harness, "another")
    another.beat()
    assert first.beat() == second.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(6):
        first.live()
        second.live()
        settle((newcomer, another), 1)
    read = [first.partitions(), second.partitions(), newcomer.partitions(), another.partitions()]
    assert sorted(len(partitions) for partitions in read) == [1, 1, 1, 1]
    assert set().union(*read) == {0, 1, 2, 3}


def test_what_a_classic_member_still_reads_is_given_to_nobody() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = classic_pair(harness)
    newcomer = Member(harness, "new")
    newcomer.beat()
    first.join()
    second.join()
    newcomer.beat()
    assert newcomer.partitions() == set(), "they read it until they have synced and joined again"
    for classic in (first, second):
        classic.sync()
        classic.live()
    newcomer.beat()
    assert len(newcomer.partitions()) == 1


def test_a_classic_member_that_does_not_join_again_in_time_is_removed() -> None:
    harness, first, second, newcomer = mixed()
    another = Member(harness, "another")
    another.beat()
    for _ in range(REBALANCE_MS // 1000 + 1):
        first.beat()
        second.live()
        settle((newcomer, another), 1)
        harness.advance(1)
    assert first.member_id not in harness.group.members
    assert second.member_id in harness.group.members


def test_a_classic_member_that_does_not_fetch_its_assignment_in_time_is_removed() -> None:
    harness, first, second, newcomer = mixed()
    first.join()
    for _ in range(REBALANCE_MS // 1000 + 1):
        first.beat()
        second.live()
        newcomer.beat()
        harness.advance(1)
    assert harness.group.members.keys() == {second.member_id, "new"}


def test_a_classic_member_has_the_session_that_it_asked_for() -> None:
    harness, first, second, newcomer = mixed()
    for _ in range(CLASSIC_SESSION_MS // 1000 + 1):
        second.live()
        newcomer.beat()
        harness.advance(1)
    assert harness.group.members.keys() == {second.member_id, "new"}
    first.live()
    assert first.member_id in harness.group.members


def test_classic_members_are_known_by_generation_and_instance() -> None:
    harness, first, _, _ = mixed()
    first.generation += 1
    assert first.beat() == ErrorCode.ILLEGAL_GENERATION
    assert first.sync() == ErrorCode.ILLEGAL_GENERATION
    assert harness.beat_classic("new", 3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.beat_classic("nobody", 3) == ErrorCode.UNKNOWN_MEMBER_ID


def test_classic_members_commit_with_their_generation() -> None:
    harness, first, _, _ = mixed()
    validate_commit(harness.group, first.member_id, first.generation, 2)
    with pytest.raises(ApiError, match="ILLEGAL_GENERATION"):
        validate_commit(harness.group, first.member_id, first.generation - 1, 2)


def test_classic_members_are_shown_as_such() -> None:
    harness, first, _, _ = mixed()
    shown = describe(harness.group, harness.topics, ("uniform",))
    types = {member.member_id: member.member_type for member in shown.members}
    assert (types[first.member_id], types["new"]) == (0, 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"session_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_instance_id": "i" * 250}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "m" * 40_000}, ErrorCode.UNKNOWN_MEMBER_ID),
        (
            {"protocols": [JoinGroupRequestProtocol(name, b"") for name in ("range", "r" * 40_000)]},
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
        ({"protocols": [JoinGroupRequestProtocol("other", b"")]}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (
            {"protocols": [JoinGroupRequestProtocol("range", b"")], "member_id": "x"},
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ),
        ({"group_instance_id": "i9", "member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_cannot_be_a_classic_member_is_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    harness, *_ = mixed()
    fields.setdefault("protocols", [JoinGroupRequestProtocol("range", subscription("a"))])
    assert harness.join_classic("c", **fields).code is code


def test_with_the_policy_off_nobody_joins_with_the_other_protocol() -> None:
    harness = ConsumerGroupHarness(topic("a", 4), upgrade_allowed=False, downgrade_allowed=False)
    Member(harness, "m").beat()
    assert Classic(harness, "c").join().code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_full_group_refuses_classic_newcomers_too() -> None:
    harness, *_ = mixed()
    harness.config = harness.config._replace(consumer=harness.config.consumer._replace(members_max=3))
    assert Classic(harness, "c").join().code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_an_administrator_takes_members_out_by_either_id_and_of_either_protocol() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    _, second = classic_pair(harness, first="i1")
    new = Member(harness, "new")
    new.beat()
    told = harness.leave_classic(
        MemberIdentity("", "i1"), MemberIdentity("nobody"), MemberIdentity("x", "i1")
    )
    codes = [member.error_code for member in told.members]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID]
    assert harness.group.members.keys() == {second.member_id, "new"}
    assert harness.leave_classic(MemberIdentity(second.member_id), version=0).error_code == ErrorCode.NONE
    assert harness.group.members.keys() == {"new"}
    assert [each.error_code for each in harness.leave_classic(MemberIdentity("new")).members] == [0]
    assert harness.group.members == {}


# From consumer to classic


def test_when_the_last_of_the_new_protocol_leaves_the_group_is_classic_again() -> None:
    harness, first, second, newcomer = mixed()
    epoch = harness.group.epoch
    newcomer.leave()
    assert harness.classic.generation == epoch
    assert harness.classic.state is ClassicState.PREPARING
    assert harness.classic.members.keys() == {first.member_id, second.member_id}
    first.live()
    second.live()
    first.learn()
    second.learn()
    assert str(harness.classic.state) == "CompletingRebalance"
    assert first.generation == second.generation == epoch + 1


def test_silent_members_of_a_downgraded_group_leave_when_their_sessions_end() -> None:
    harness, _, _, newcomer = mixed()
    newcomer.leave()
    harness.advance(CLASSIC_SESSION_MS / 1000 + 1)
    assert harness.classic.state is ClassicState.EMPTY


def test_what_the_classic_group_is_given_is_what_members_were_to_read() -> None:
    harness, first, second, newcomer = mixed()
    targets = {
        member_id: set(harness.group.target_of(member_id)[topic_id("a")])
        for member_id in (first.member_id, second.member_id)
    }
    newcomer.leave()
    for member_id, partitions in targets.items():
        assert assigned(harness.classic.members[member_id].assignment) == {"a": partitions}


def test_a_silent_last_member_of_the_new_protocol_has_the_same_effect() -> None:
    harness, first, second, _ = mixed()
    seconds = 0
    while isinstance(harness.place.group, ConsumerGroup):
        first.live()
        second.live()
        harness.advance(1)
        seconds += 1
    assert 44 <= seconds <= 46
    assert harness.classic.members.keys() == {first.member_id, second.member_id}
    harness.restart()
    assert isinstance(harness.place.group, ClassicGroup)


def test_without_leave_to_go_back_the_group_stays_as_it_is() -> None:
    harness, first, second, newcomer = mixed()
    harness.config = harness.config._replace(
        consumer=harness.config.consumer._replace(downgrade_allowed=False)
    )
    newcomer.leave()
    assert isinstance(harness.place.group, ConsumerGroup)
    for _ in range(3):
        first.live()
        second.live()
    assert first.beat() == second.beat() == ErrorCode.NONE
    harness.config = harness.config._replace(
        consumer=harness.config.consumer._replace(downgrade_allowed=True)
    )
    harness.leave_classic(MemberIdentity(second.member_id))
    assert harness.classic.members.keys() == {first.member_id}


def test_the_last_static_member_of_the_new_protocol_goes_back() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    _, second = classic_pair(harness, first="i1", second="i2")
    moved = Member(harness, "new", "i1")
    moved.beat()
    for _ in range(3):
        second.live()
        moved.beat()
    back = Classic(harness, "1", "i1")
    assert back.join().code is ErrorCode.NONE
    assert harness.classic.state is ClassicState.STABLE
    assert harness.classic.static_members["i1"] == back.member_id
    assert back.sync() is ErrorCode.NONE
    assert back.partitions() == {0, 1}


def test_a_static_member_of_the_new_protocol_goes_back_while_others_do_not() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    moved, other = Member(harness, "1", "i1"), Member(harness, "2")
    settle((moved, other))
    before = moved.partitions()
    back = Classic(harness, "1c", "i1")
    assert back.join().code is ErrorCode.NONE
    assert back.sync() is ErrorCode.NONE
    assert back.partitions() == before
    assert harness.group.members.keys() == {back.member_id, "2"}
    assert moved.beat() == ErrorCode.FENCED_INSTANCE_ID


def test_what_members_read_is_theirs_when_the_group_goes_back_and_forth() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = classic_pair(harness)
    passing = Member(harness, "passing")
    passing.beat()
    passing.leave()
    assert harness.classic.state is ClassicState.PREPARING
    newcomer = Member(harness, "new")
    newcomer.beat()
    assert first.partitions() | second.partitions() == {0, 1, 2, 3}
    assert not newcomer.partitions()


def test_a_downgraded_group_rebalances_also_if_the_broker_restarts_first() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    other = Member(harness, "m")
    other.beat()
    classic = Classic(harness, "c")
    classic.join()
    classic.sync()
    other.leave()
    harness.restart()
    assert classic.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.classic.state is ClassicState.PREPARING


def test_an_empty_consumer_group_becomes_a_classic_group_freely() -> None:
    harness = ConsumerGroupHarness(topic("a", 4), upgrade_allowed=False, downgrade_allowed=False)
    member = Member(harness, "m")
    member.beat()
    member.leave()
    newcomer = Classic(harness, "c")
    newcomer.join()
    harness.advance(1)
    newcomer.learn()
    assert harness.classic.state is ClassicState.COMPLETING


def test_an_emptied_group_counts_as_empty_from_when_its_last_member_left() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    member = Member(harness, "m")
    member.beat()
    member.leave()
    left_ms, epoch = harness.now.wall_ms, harness.group.epoch
    harness.advance(100)
    asked = harness.join_classic("c")
    assert asked.code is ErrorCode.MEMBER_ID_REQUIRED
    harness.advance(1_000)
    harness.restart()
    assert harness.classic.is_empty
    assert harness.classic.current_state_timestamp_ms == left_ms
    assert harness.classic.protocol_type == "consumer"
    assert harness.classic.generation == epoch
