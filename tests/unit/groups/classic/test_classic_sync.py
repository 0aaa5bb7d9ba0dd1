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
from tests.unit.groups.classic.classic_support import (
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    ClassicGroupHarness,
    PendingRequest,
)

# The assignment


def test_everybody_gets_its_part_when_the_leader_hands_it_in() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.start_rebalance("a", "b")
    follower = harness.sync(second)
    assert follower.is_waiting
    leader = harness.sync(first, assignments={first: b"one", second: b"two"})
    assert (leader.reply.assignment, follower.reply.assignment) == (b"one", b"two")
    assert (follower.reply.protocol_type, follower.reply.protocol_name) == ("consumer", "range")
    assert harness.group.state is ClassicState.STABLE


def test_a_follower_that_comes_later_gets_what_is_stored() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.start_rebalance("a", "b")
    harness.sync(first, assignments={second: b"two"})
    assert harness.sync(second).reply.assignment == b"two"
    assert harness.sync(first).reply.assignment == b"", "the leader forgot itself"


def test_a_follower_cannot_hand_in_an_assignment() -> None:
    harness = ClassicGroupHarness()
    _, second = harness.start_rebalance("a", "b")
    assert harness.sync(second, assignments={second: b"all"}).is_waiting
    assert harness.log == []


def test_an_assignment_for_strangers_is_ignored() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.start_rebalance("a")
    harness.sync(first, assignments={first: b"one", "stranger": b"two"})
    assert list(harness.rebuilt().members) == [first]


def test_the_assignment_is_in_the_record_that_is_written_with_the_answer() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.start_rebalance("a", "b")
    harness.sync(first, assignments={first: b"one", second: b"two"})
    (record,) = harness.log
    restored = harness.rebuilt()
    assert {member_id: member.assignment for member_id, member in restored.members.items()} == {
        first: b"one",
        second: b"two",
    }
    assert record.value is not None


def test_of_two_syncs_of_one_member_the_later_counts() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.start_rebalance("a", "b")
    lost, again = harness.sync(second), harness.sync(second)
    assert lost.code is ErrorCode.REBALANCE_IN_PROGRESS
    harness.sync(first, assignments={second: b"two"})
    assert again.reply.assignment == b"two"


def test_an_assignment_that_is_too_large_is_refused_and_can_be_tried_again() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.start_rebalance("a", "b")
    follower = harness.sync(second)
    refused = harness.sync(first, assignments={second: bytes(GROUP_METADATA_BYTES_MAX)})
    assert refused.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert follower.is_waiting
    harness.sync(first, assignments={second: b"less"})
    assert follower.reply.assignment == b"less"


# What is refused


def test_a_sync_in_an_old_generation_is_refused() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.start_rebalance("a")
    assert harness.sync(first, 0).code is ErrorCode.ILLEGAL_GENERATION
    assert harness.sync(first, 2).code is ErrorCode.ILLEGAL_GENERATION


def test_a_sync_while_members_gather_is_sent_to_join() -> None:
    harness = ClassicGroupHarness()
    first, _ = harness.stable("a", "b")
    harness.admit("c")
    assert harness.sync(first).code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_sync_that_believes_in_another_protocol_is_refused() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.start_rebalance("a")
    assert harness.sync(first, protocol_type="connect").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.sync(first, protocol_name="sticky").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.sync(first, protocol_type="consumer", protocol_name="range").code is ErrorCode.NONE


def test_strangers_and_empty_groups_are_refused() -> None:
    harness = ClassicGroupHarness()
    assert harness.sync("stranger").code is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat("stranger") is ErrorCode.UNKNOWN_MEMBER_ID
    harness.start_rebalance("a")
    assert harness.sync("stranger").code is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat("stranger") is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("group_id", "code"), [("", ErrorCode.INVALID_GROUP_ID), (GROUP, ErrorCode.UNKNOWN_MEMBER_ID)]
)
def test_a_group_that_does_not_exist_has_no_members(group_id: str, code: ErrorCode) -> None:
    harness = ClassicGroupHarness()
    pending = PendingRequest(lambda code: code).pending
    with pytest.raises(ApiError, match=code.name):
        sync(harness.context, None, SyncGroupRequest(group_id), pending, harness.now)
    with pytest.raises(ApiError, match=code.name):
        heartbeat(harness.context, None, HeartbeatRequest(group_id), pending, harness.now)


# Those who are late


def test_members_that_do_not_sync_in_time_are_removed() -> None:
    harness = ClassicGroupHarness()
    first, second, third = harness.start_rebalance("a", "b", "c")
    follower = harness.sync(second)
    for _ in range(12):
        harness.advance(5)
        for member_id in (first, third):
            harness.heartbeat(member_id, 1)
    assert follower.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(harness.group.members) == [second]
    assert harness.group.rebalances.reason == f"{first}, {third} did not sync in time"
    again = harness.join("b", second)
    assert (again.reply.generation_id, again.reply.leader) == (2, second)


def test_a_member_that_never_syncs_is_removed_from_a_stable_group() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.start_rebalance("a", "b")
    harness.sync(first, assignments={first: b"one"})
    for _ in range(12):
        assert harness.group.state is ClassicState.STABLE
        harness.advance(5)
        harness.heartbeat(first)
        harness.heartbeat(second, 1)
    assert harness.group.state is ClassicState.PREPARING
    assert list(harness.group.members) == [first]


def test_when_all_have_synced_nobody_is_late() -> None:
    harness = ClassicGroupHarness()
    ids = harness.stable("a", "b")
    for _ in range(30):
        harness.advance(5)
        assert [harness.heartbeat(member_id) for member_id in ids] == [ErrorCode.NONE] * 2


def test_a_member_that_waits_for_its_assignment_needs_no_heartbeats() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.start_rebalance("a", "b")
    follower = harness.sync(second)
    for _ in range(10):
        harness.advance(5)
        harness.heartbeat(first)
    harness.sync(first, assignments={second: b"two"})
    assert follower.reply.assignment == b"two"
    harness.advance(SESSION_MS / 1000)
    assert second not in harness.group.members, "it is timed again from the answer on"


# Heartbeats


def test_a_heartbeat_keeps_a_member_alive() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.stable("a")
    for _ in range(10):
        harness.advance(SESSION_MS / 1000 - 0.1)
        assert harness.heartbeat(first) is ErrorCode.NONE


def test_a_member_that_falls_silent_is_removed() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    harness.advance(5)
    harness.heartbeat(first)
    harness.advance(5)
    assert list(harness.group.members) == [first]
    assert harness.heartbeat(second, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.group.rebalances.reason == f"the session of {second} expired"


def test_a_heartbeat_of_an_old_generation_is_refused() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.stable("a")
    assert harness.heartbeat(first, 0) is ErrorCode.ILLEGAL_GENERATION


def test_a_heartbeat_is_accepted_before_the_assignment_is_known() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.start_rebalance("a")
    assert harness.heartbeat(first) is ErrorCode.NONE


def test_a_newcomer_cannot_shorten_its_own_wait_by_a_heartbeat() -> None:
    harness = ClassicGroupHarness()
    joined = harness.admit("a", rebalance_ms=100_000)
    assert harness.heartbeat("a-0001", 0) is ErrorCode.REBALANCE_IN_PROGRESS
    for number in range(10):
        harness.advance(2)
        harness.admit(f"b{number}", rebalance_ms=100_000)
    assert joined.is_waiting


def test_a_group_ends_empty_when_all_fell_silent() -> None:
    harness = ClassicGroupHarness()
    harness.stable("a", "b")
    harness.advance(REBALANCE_MS / 1000)
    assert (harness.group.state, harness.group.generation) == (ClassicState.EMPTY, 2)
    assert harness.timers() == {}
    assert harness.rebuilt().generation == 2


# Commits


def refusal_of_commit(
    harness: ClassicGroupHarness, member_id: str, generation: int, instance_id: str | None = None
) -> ErrorCode:
    try:
        validate_commit(harness.group, member_id, instance_id, generation)
    except ApiError as rejection:
        return rejection.code
    return ErrorCode.NONE


def test_members_of_this_generation_may_commit() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    assert refusal_of_commit(harness, first, 1) is ErrorCode.NONE
    assert refusal_of_commit(harness, first, 0) is ErrorCode.ILLEGAL_GENERATION
    assert refusal_of_commit(harness, first, -1) is ErrorCode.ILLEGAL_GENERATION
    assert refusal_of_commit(harness, "stranger", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal_of_commit(harness, second, 1, "instance") is ErrorCode.UNKNOWN_MEMBER_ID


def test_from_outside_only_an_empty_group_may_be_committed_for() -> None:
    harness = ClassicGroupHarness()
    assert refusal_of_commit(harness, "", -1) is ErrorCode.NONE
    assert refusal_of_commit(harness, "", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    harness.stable("a")
    assert refusal_of_commit(harness, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_members_commit_while_others_join_but_not_before_their_assignment() -> None:
    harness = ClassicGroupHarness()
    first, _ = harness.stable("a", "b")
    harness.admit("c")
    assert refusal_of_commit(harness, first, 1) is ErrorCode.NONE
    harness.join("a", first)
    harness.advance(SESSION_MS / 1000)
    assert harness.group.state is ClassicState.COMPLETING
    assert refusal_of_commit(harness, first, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert refusal_of_commit(harness, first, 1) is ErrorCode.ILLEGAL_GENERATION


def test_an_accepted_commit_keeps_a_member_alive() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.stable("a")
    harness.advance(9)
    refresh_session(harness.context, harness.group, first, harness.now)
    harness.advance(9)
    assert first in harness.group.members


def test_nobody_commits_to_a_dead_group() -> None:
    harness = ClassicGroupHarness()
    harness.group.enter(ClassicState.DEAD, harness.now)
    assert refusal_of_commit(harness, "", -1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
