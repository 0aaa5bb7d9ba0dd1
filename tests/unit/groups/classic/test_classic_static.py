"""Static members of a classic group: an instance that restarts keeps its place and its work."""

import pytest

from penstock.errors import ErrorCode
from penstock.groups.classic.classic_group import ClassicState
from penstock.groups.classic.rebalance import JOIN_RETRY_MS_MIN
from tests.unit.groups.classic.classic_support import SESSION_MS, ClassicGroupHarness


def static_group(harness: ClassicGroupHarness) -> tuple[str, str]:
    """Two static members at rest, i1 leading; their assignments are b"one" and b"two"."""
    first, second = harness.admit("a", instance_id="i1"), harness.admit("b", instance_id="i2")
    while first.is_waiting:
        harness.advance(0.5)
    ids = first.reply.member_id, second.reply.member_id
    harness.settle({ids[0]: b"one", ids[1]: b"two"})
    return ids


def test_a_static_member_joins_in_one_step() -> None:
    harness = ClassicGroupHarness()
    joined = harness.join("a", instance_id="i1")
    assert joined.is_waiting
    harness.advance(3)
    assert joined.reply.member_id == "i1-0001"
    assert joined.reply.members[0].group_instance_id == "i1"


def test_a_follower_that_restarts_keeps_its_assignment_and_disturbs_nobody() -> None:
    harness = ClassicGroupHarness()
    first, second = static_group(harness)
    back = harness.join("b", instance_id="i2").reply
    assert (back.error_code, back.generation_id, back.leader, back.members) == (0, 1, first, [])
    assert not back.skip_assignment
    assert back.member_id != second
    assert harness.group.state is ClassicState.STABLE
    assert harness.sync(back.member_id).reply.assignment == b"two"
    assert harness.rebuilt().static_members["i2"] == back.member_id


def test_a_leader_that_restarts_is_told_to_leave_the_assignment_alone() -> None:
    harness = ClassicGroupHarness()
    _, second = static_group(harness)
    back = harness.join("a", instance_id="i1", version=9).reply
    assert back.skip_assignment
    assert back.leader == back.member_id
    assert {each.member_id for each in back.members} == {back.member_id, second}
    assert harness.sync(back.member_id).reply.assignment == b"one"


@pytest.mark.parametrize("version", range(5, 9))
def test_a_leader_that_cannot_be_told_so_does_not_learn_that_it_leads(version: int) -> None:
    harness = ClassicGroupHarness()
    first, _ = static_group(harness)
    back = harness.join("a", instance_id="i1", version=version).reply
    assert (back.leader, back.members, back.skip_assignment) == (first, [], False)
    assert harness.group.leader == back.member_id


def test_a_restart_that_changes_the_protocol_to_choose_causes_a_rebalance() -> None:
    harness = ClassicGroupHarness()
    both = [("range", b"1"), ("sticky", b"2")]
    first = harness.admit("a", instance_id="i1", protocols=both)
    while first.is_waiting:
        harness.advance(0.5)
    harness.settle({first.reply.member_id: b"one"})
    back = harness.join("a", instance_id="i1", protocols=both[::-1])
    assert (back.reply.generation_id, back.reply.protocol_name) == (2, "sticky")


def test_the_old_self_of_a_member_is_fenced() -> None:
    harness = ClassicGroupHarness()
    _, second = static_group(harness)
    harness.join("b", instance_id="i2")
    assert harness.heartbeat(second, 1, "i2") is ErrorCode.FENCED_INSTANCE_ID
    assert harness.sync(second, 1, group_instance_id="i2").code is ErrorCode.FENCED_INSTANCE_ID
    assert harness.join("b", second, "i2").code is ErrorCode.FENCED_INSTANCE_ID
    assert harness.heartbeat(second, 1) is ErrorCode.UNKNOWN_MEMBER_ID, "without its instance id"


def test_the_old_self_is_answered_if_it_waits_to_join() -> None:
    harness = ClassicGroupHarness()
    joining = harness.join("a", instance_id="i1")
    back = harness.join("a", instance_id="i1")
    assert joining.code is ErrorCode.FENCED_INSTANCE_ID
    harness.advance(3)
    assert back.reply.generation_id == 1
    assert len(back.reply.members) == 1


def test_the_old_self_is_answered_if_it_waits_for_its_assignment() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.admit("a", instance_id="i1"), harness.admit("b", instance_id="i2")
    while first.is_waiting:
        harness.advance(0.5)
    syncing = harness.sync(second.reply.member_id)
    back = harness.join("b", instance_id="i2")
    assert syncing.code is ErrorCode.FENCED_INSTANCE_ID
    assert back.is_waiting, "the leader may be at work for the old id, so the group gathers anew"
    harness.join("a", first.reply.member_id, "i1")
    assert back.reply.generation_id == 2


def test_the_new_self_of_a_newcomer_waits_as_long_as_is_needed() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.stable("a")
    harness.join("b", instance_id="i")
    back = harness.join("b", instance_id="i")
    for _ in range(4):
        harness.advance(5)
        harness.heartbeat(first, 1)
    assert back.is_waiting
    harness.join("a", first)
    assert back.reply.generation_id == 2


def test_a_static_member_that_is_away_keeps_its_place_through_a_rebalance() -> None:
    harness = ClassicGroupHarness()
    first, second = (
        harness.admit("a", instance_id="i1"),
        harness.admit("b", instance_id="i2", session_ms=300_000),
    )
    while first.is_waiting:
        harness.advance(0.5)
    ids = first.reply.member_id, second.reply.member_id
    harness.settle({ids[0]: b"one", ids[1]: b"two"})
    again = harness.join("a", ids[0], "i1")
    harness.advance(60)
    assert again.reply.generation_id == 2
    assert {each.group_instance_id for each in again.reply.members} == {"i1", "i2"}


def test_a_static_member_that_stays_away_is_removed_by_its_session() -> None:
    harness = ClassicGroupHarness()
    first, second = static_group(harness)
    for _ in range(2):
        harness.advance(5)
        harness.heartbeat(first, 1, "i1")
    assert second not in harness.group.members
    assert harness.join("b", instance_id="i2").is_waiting, "it comes back as a newcomer"


def test_if_nobody_joins_the_group_waits_on() -> None:
    harness = ClassicGroupHarness()
    first = harness.admit("a", instance_id="i1", session_ms=300_000, rebalance_ms=100)
    harness.advance(3)
    leader = first.reply.member_id
    harness.settle({leader: b"one"})
    other = harness.admit("b", rebalance_ms=100)
    harness.leave(other.member_id)
    assert harness.group.state is ClassicState.PREPARING
    for _ in range(10):
        harness.advance(1)
        assert list(harness.group.members) == [leader]
    harness.advance(0.1)
    before = harness.timers()
    harness.advance(JOIN_RETRY_MS_MIN / 1000 - 0.1)
    assert harness.timers() == before, "it looks again now and then, not all the time"
    assert harness.join("a", leader, "i1").reply.generation_id == 2


def test_a_member_that_came_back_in_a_full_group_takes_its_own_place() -> None:
    harness = ClassicGroupHarness(members_max=2)
    static_group(harness)
    assert harness.join("b", instance_id="i2").code is ErrorCode.NONE
    assert harness.join("c", instance_id="i3").code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_member_that_came_back_and_never_syncs_is_removed_in_the_end() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.admit("a", instance_id="i1"), harness.admit("b", instance_id="i2")
    while first.is_waiting:
        harness.advance(0.5)
    leader = first.reply.member_id
    harness.sync(leader, assignments={second.reply.member_id: b"two"})
    back = harness.join("b", instance_id="i2").reply.member_id
    assert harness.group.pending_syncs == {back}
    for _ in range(12):
        harness.advance(5)
        for member_id, instance_id in ((leader, "i1"), (back, "i2")):
            harness.heartbeat(member_id, 1, instance_id)
    assert list(harness.group.members) == [leader]


def test_a_pending_id_cannot_be_used_with_an_instance_id() -> None:
    harness = ClassicGroupHarness()
    static_group(harness)
    told = harness.join("c").reply.member_id
    assert harness.join("c", told, "i3").code is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.join("c", told, "i2").code is ErrorCode.FENCED_INSTANCE_ID


def test_members_survive_a_crash_with_their_assignments() -> None:
    harness = ClassicGroupHarness()
    first, second = static_group(harness)
    harness.crash()
    assert harness.heartbeat(first, 1, "i1") is ErrorCode.NONE
    assert harness.sync(second, 1, group_instance_id="i2").reply.assignment == b"two"
    back = harness.join("b", instance_id="i2")
    assert back.reply.generation_id == 1, "nothing is to be rebalanced after a restart"


def test_a_restart_of_a_member_does_not_undo_what_happened_since_a_crash() -> None:
    harness = ClassicGroupHarness()
    static_group(harness)
    harness.crash()
    told = harness.join("c")
    harness.join("b", instance_id="i2")
    assert harness.join("c", told.reply.member_id).is_waiting


def test_who_does_not_come_back_after_a_crash_is_removed() -> None:
    harness = ClassicGroupHarness()
    first, second = static_group(harness)
    harness.advance(9)
    harness.crash()
    harness.advance(9)
    assert harness.heartbeat(first, 1, "i1") is ErrorCode.NONE
    harness.advance(SESSION_MS / 1000 - 9)
    assert second not in harness.group.members
