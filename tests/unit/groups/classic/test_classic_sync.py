"""SyncGroup, Heartbeat and the check before a commit: members of this generation go on, others learn it."""

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.classic_group import ClassicState
from penstock.groups.classic.heartbeat import heartbeat, validate_commit
from penstock.groups.classic.rebalance import refresh_session
from penstock.groups.classic.sync import sync
from penstock.limits import GROUP_METADATA_BYTES_MAX
from penstock.protocol.messages.heartbeat import HeartbeatRequest
from penstock.protocol.messages.sync_group import SyncGroupRequest
from tests.unit.groups.classic.classic_support import GROUP, REBALANCE_MS, SESSION_MS, Asked, World

# The assignment


def test_everybody_gets_its_part_when_the_leader_hands_it_in() -> None:
    world = World()
    first, second = world.gather("a", "b")
    follower = world.sync(second)
    assert follower.is_waiting
    leader = world.sync(first, assignments={first: b"one", second: b"two"})
    assert (leader.reply.assignment, follower.reply.assignment) == (b"one", b"two")
    assert (follower.reply.protocol_type, follower.reply.protocol_name) == ("consumer", "range")
    assert world.group.state is ClassicState.STABLE


def test_a_follower_that_comes_later_gets_what_is_stored() -> None:
    world = World()
    first, second = world.gather("a", "b")
    world.sync(first, assignments={second: b"two"})
    assert world.sync(second).reply.assignment == b"two"
    assert world.sync(first).reply.assignment == b"", "the leader forgot itself"


def test_a_follower_cannot_hand_in_an_assignment() -> None:
    world = World()
    _, second = world.gather("a", "b")
    assert world.sync(second, assignments={second: b"all"}).is_waiting
    assert world.log == []


def test_an_assignment_for_strangers_is_ignored() -> None:
    world = World()
    (first,) = world.gather("a")
    world.sync(first, assignments={first: b"one", "stranger": b"two"})
    assert list(world.rebuilt().members) == [first]


def test_the_assignment_is_in_the_record_that_is_written_with_the_answer() -> None:
    world = World()
    first, second = world.gather("a", "b")
    world.sync(first, assignments={first: b"one", second: b"two"})
    (record,) = world.log
    restored = world.rebuilt()
    assert {member_id: member.assignment for member_id, member in restored.members.items()} == {
        first: b"one",
        second: b"two",
    }
    assert record.value is not None


def test_of_two_syncs_of_one_member_the_later_counts() -> None:
    world = World()
    first, second = world.gather("a", "b")
    lost, again = world.sync(second), world.sync(second)
    assert lost.code is ErrorCode.REBALANCE_IN_PROGRESS
    world.sync(first, assignments={second: b"two"})
    assert again.reply.assignment == b"two"


def test_an_assignment_that_is_too_large_is_refused_and_can_be_tried_again() -> None:
    world = World()
    first, second = world.gather("a", "b")
    follower = world.sync(second)
    refused = world.sync(first, assignments={second: bytes(GROUP_METADATA_BYTES_MAX)})
    assert refused.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert follower.is_waiting
    world.sync(first, assignments={second: b"less"})
    assert follower.reply.assignment == b"less"


# What is refused


def test_a_sync_in_an_old_generation_is_refused() -> None:
    world = World()
    (first,) = world.gather("a")
    assert world.sync(first, 0).code is ErrorCode.ILLEGAL_GENERATION
    assert world.sync(first, 2).code is ErrorCode.ILLEGAL_GENERATION


def test_a_sync_while_members_gather_is_sent_to_join() -> None:
    world = World()
    first, _ = world.stable("a", "b")
    world.admit("c")
    assert world.sync(first).code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_sync_that_believes_in_another_protocol_is_refused() -> None:
    world = World()
    (first,) = world.gather("a")
    assert world.sync(first, protocol_type="connect").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.sync(first, protocol_name="sticky").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.sync(first, protocol_type="consumer", protocol_name="range").code is ErrorCode.NONE


def test_strangers_and_empty_groups_are_refused() -> None:
    world = World()
    assert world.sync("stranger").code is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat("stranger") is ErrorCode.UNKNOWN_MEMBER_ID
    world.gather("a")
    assert world.sync("stranger").code is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat("stranger") is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("group_id", "code"), [("", ErrorCode.INVALID_GROUP_ID), (GROUP, ErrorCode.UNKNOWN_MEMBER_ID)]
)
def test_a_group_that_does_not_exist_has_no_members(group_id: str, code: ErrorCode) -> None:
    world = World()
    pending = Asked(lambda code: code).pending
    with pytest.raises(ApiError, match=code.name):
        sync(world.surroundings, None, SyncGroupRequest(group_id), pending, world.now)
    with pytest.raises(ApiError, match=code.name):
        heartbeat(world.surroundings, None, HeartbeatRequest(group_id), pending, world.now)


# Those who are late


def test_members_that_do_not_sync_in_time_are_removed() -> None:
    world = World()
    first, second, third = world.gather("a", "b", "c")
    follower = world.sync(second)
    for _ in range(12):
        world.advance(5)
        for member_id in (first, third):
            world.heartbeat(member_id, 1)
    assert follower.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(world.group.members) == [second]
    assert world.group.rebalances.reason == f"{first}, {third} did not sync in time"
    again = world.join("b", second)
    assert (again.reply.generation_id, again.reply.leader) == (2, second)


def test_a_member_that_never_fetches_its_assignment_is_removed_from_a_stable_group() -> None:
    world = World()
    first, second = world.gather("a", "b")
    world.sync(first, assignments={first: b"one"})
    for _ in range(12):
        assert world.group.state is ClassicState.STABLE
        world.advance(5)
        world.heartbeat(first)
        world.heartbeat(second, 1)
    assert world.group.state is ClassicState.PREPARING
    assert list(world.group.members) == [first]


def test_when_all_have_synced_nobody_is_late() -> None:
    world = World()
    ids = world.stable("a", "b")
    for _ in range(30):
        world.advance(5)
        assert [world.heartbeat(member_id) for member_id in ids] == [ErrorCode.NONE] * 2


def test_a_member_that_waits_for_its_assignment_needs_no_heartbeats() -> None:
    world = World()
    first, second = world.gather("a", "b")
    follower = world.sync(second)
    for _ in range(10):
        world.advance(5)
        world.heartbeat(first)
    world.sync(first, assignments={second: b"two"})
    assert follower.reply.assignment == b"two"
    world.advance(SESSION_MS / 1000)
    assert second not in world.group.members, "it is timed again from the answer on"


# Heartbeats


def test_a_heartbeat_keeps_a_member_alive() -> None:
    world = World()
    (first,) = world.stable("a")
    for _ in range(10):
        world.advance(SESSION_MS / 1000 - 0.1)
        assert world.heartbeat(first) is ErrorCode.NONE


def test_a_member_that_falls_silent_is_removed() -> None:
    world = World()
    first, second = world.stable("a", "b")
    world.advance(5)
    world.heartbeat(first)
    world.advance(5)
    assert list(world.group.members) == [first]
    assert world.heartbeat(second, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.group.rebalances.reason == f"the session of {second} expired"


def test_a_heartbeat_of_an_old_generation_is_refused() -> None:
    world = World()
    (first,) = world.stable("a")
    assert world.heartbeat(first, 0) is ErrorCode.ILLEGAL_GENERATION


def test_a_heartbeat_is_accepted_before_the_assignment_is_known() -> None:
    world = World()
    (first,) = world.gather("a")
    assert world.heartbeat(first) is ErrorCode.NONE


def test_a_newcomer_cannot_shorten_its_own_wait_by_a_heartbeat() -> None:
    world = World()
    joined = world.admit("a", rebalance_ms=100_000)
    assert world.heartbeat("a-0001", 0) is ErrorCode.REBALANCE_IN_PROGRESS
    for number in range(10):
        world.advance(2)
        world.admit(f"b{number}", rebalance_ms=100_000)
    assert joined.is_waiting


def test_a_group_ends_empty_when_all_fell_silent() -> None:
    world = World()
    world.stable("a", "b")
    world.advance(REBALANCE_MS / 1000)
    assert (world.group.state, world.group.generation) == (ClassicState.EMPTY, 2)
    assert world.timers() == {}
    assert world.rebuilt().generation == 2


# Commits


def refusal_of_commit(
    world: World, member_id: str, generation: int, instance_id: str | None = None
) -> ErrorCode:
    try:
        validate_commit(world.group, member_id, instance_id, generation)
    except ApiError as refusal:
        return refusal.code
    return ErrorCode.NONE


def test_members_of_this_generation_may_commit() -> None:
    world = World()
    first, second = world.stable("a", "b")
    assert refusal_of_commit(world, first, 1) is ErrorCode.NONE
    assert refusal_of_commit(world, first, 0) is ErrorCode.ILLEGAL_GENERATION
    assert refusal_of_commit(world, first, -1) is ErrorCode.ILLEGAL_GENERATION
    assert refusal_of_commit(world, "stranger", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal_of_commit(world, second, 1, "instance") is ErrorCode.UNKNOWN_MEMBER_ID


def test_from_outside_only_an_empty_group_may_be_committed_for() -> None:
    world = World()
    assert refusal_of_commit(world, "", -1) is ErrorCode.NONE
    assert refusal_of_commit(world, "", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    world.stable("a")
    assert refusal_of_commit(world, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_members_may_commit_while_others_gather_but_not_before_they_know_their_part() -> None:
    world = World()
    first, _ = world.stable("a", "b")
    world.admit("c")
    assert refusal_of_commit(world, first, 1) is ErrorCode.NONE
    world.join("a", first)
    world.advance(SESSION_MS / 1000)
    assert world.group.state is ClassicState.COMPLETING
    assert refusal_of_commit(world, first, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert refusal_of_commit(world, first, 1) is ErrorCode.ILLEGAL_GENERATION


def test_an_accepted_commit_keeps_a_member_alive() -> None:
    world = World()
    (first,) = world.stable("a")
    world.advance(9)
    refresh_session(world.surroundings, world.group, first, world.now)
    world.advance(9)
    assert first in world.group.members


def test_nobody_commits_to_a_dead_group() -> None:
    world = World()
    world.group.enter(ClassicState.DEAD, world.now)
    assert refusal_of_commit(world, "", -1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
