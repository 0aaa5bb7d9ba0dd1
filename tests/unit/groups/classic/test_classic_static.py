"""Static members of a classic group: an instance that restarts keeps its place and its work."""

import pytest

from penstock.errors import ErrorCode
from penstock.groups.classic.classic_group import ClassicState
from penstock.groups.classic.rebalance import WAIT_AGAIN_MS_MIN
from tests.unit.groups.classic.classic_support import SESSION_MS, World


def static_group(world: World) -> tuple[str, str]:
    """Two static members at rest, i1 leading; their assignments are b"one" and b"two"."""
    first, second = world.admit("a", instance_id="i1"), world.admit("b", instance_id="i2")
    while first.is_waiting:
        world.advance(0.5)
    ids = first.reply.member_id, second.reply.member_id
    world.settle({ids[0]: b"one", ids[1]: b"two"})
    return ids


def test_a_static_member_joins_in_one_step() -> None:
    world = World()
    joined = world.join("a", instance_id="i1")
    assert joined.is_waiting
    world.advance(3)
    assert joined.reply.member_id == "i1-0001"
    assert joined.reply.members[0].group_instance_id == "i1"


def test_a_follower_that_restarts_keeps_its_assignment_and_disturbs_nobody() -> None:
    world = World()
    first, second = static_group(world)
    back = world.join("b", instance_id="i2").reply
    assert (back.error_code, back.generation_id, back.leader, back.members) == (0, 1, first, [])
    assert not back.skip_assignment
    assert back.member_id != second
    assert world.group.state is ClassicState.STABLE
    assert world.sync(back.member_id).reply.assignment == b"two"
    assert world.rebuilt().static_members["i2"] == back.member_id


def test_a_leader_that_restarts_is_told_to_leave_the_assignment_alone() -> None:
    world = World()
    _, second = static_group(world)
    back = world.join("a", instance_id="i1", version=9).reply
    assert back.skip_assignment
    assert back.leader == back.member_id
    assert {each.member_id for each in back.members} == {back.member_id, second}
    assert world.sync(back.member_id).reply.assignment == b"one"


@pytest.mark.parametrize("version", range(5, 9))
def test_a_leader_that_cannot_be_told_so_does_not_learn_that_it_leads(version: int) -> None:
    world = World()
    first, _ = static_group(world)
    back = world.join("a", instance_id="i1", version=version).reply
    assert (back.leader, back.members, back.skip_assignment) == (first, [], False)
    assert world.group.leader == back.member_id


def test_a_restart_that_changes_the_protocol_to_choose_causes_a_rebalance() -> None:
    world = World()
    both = [("range", b"1"), ("sticky", b"2")]
    first = world.admit("a", instance_id="i1", protocols=both)
    while first.is_waiting:
        world.advance(0.5)
    world.settle({first.reply.member_id: b"one"})
    back = world.join("a", instance_id="i1", protocols=both[::-1])
    assert (back.reply.generation_id, back.reply.protocol_name) == (2, "sticky")


def test_the_old_self_of_a_member_is_fenced() -> None:
    world = World()
    _, second = static_group(world)
    world.join("b", instance_id="i2")
    assert world.heartbeat(second, 1, "i2") is ErrorCode.FENCED_INSTANCE_ID
    assert world.sync(second, 1, group_instance_id="i2").code is ErrorCode.FENCED_INSTANCE_ID
    assert world.join("b", second, "i2").code is ErrorCode.FENCED_INSTANCE_ID
    assert world.heartbeat(second, 1) is ErrorCode.UNKNOWN_MEMBER_ID, "without its instance id"


def test_the_old_self_is_answered_if_it_waits_to_join() -> None:
    world = World()
    joining = world.join("a", instance_id="i1")
    back = world.join("a", instance_id="i1")
    assert joining.code is ErrorCode.FENCED_INSTANCE_ID
    world.advance(3)
    assert back.reply.generation_id == 1
    assert len(back.reply.members) == 1


def test_the_old_self_is_answered_if_it_waits_for_its_assignment() -> None:
    world = World()
    first, second = world.admit("a", instance_id="i1"), world.admit("b", instance_id="i2")
    while first.is_waiting:
        world.advance(0.5)
    syncing = world.sync(second.reply.member_id)
    back = world.join("b", instance_id="i2")
    assert syncing.code is ErrorCode.FENCED_INSTANCE_ID
    assert back.is_waiting, "the leader may be at work for the old id, so the group gathers anew"
    world.join("a", first.reply.member_id, "i1")
    assert back.reply.generation_id == 2


def test_the_new_self_of_a_newcomer_waits_as_long_as_is_needed() -> None:
    world = World()
    (first,) = world.stable("a")
    world.join("b", instance_id="i")
    back = world.join("b", instance_id="i")
    for _ in range(4):
        world.advance(5)
        world.heartbeat(first, 1)
    assert back.is_waiting
    world.join("a", first)
    assert back.reply.generation_id == 2


def test_a_static_member_that_is_away_keeps_its_place_through_a_rebalance() -> None:
    world = World()
    first, second = world.admit("a", instance_id="i1"), world.admit("b", instance_id="i2", session_ms=300_000)
    while first.is_waiting:
        world.advance(0.5)
    ids = first.reply.member_id, second.reply.member_id
    world.settle({ids[0]: b"one", ids[1]: b"two"})
    again = world.join("a", ids[0], "i1")
    world.advance(60)
    assert again.reply.generation_id == 2
    assert {each.group_instance_id for each in again.reply.members} == {"i1", "i2"}


def test_a_static_member_that_stays_away_is_removed_by_its_session() -> None:
    world = World()
    first, second = static_group(world)
    for _ in range(2):
        world.advance(5)
        world.heartbeat(first, 1, "i1")
    assert second not in world.group.members
    assert world.join("b", instance_id="i2").is_waiting, "it comes back as a newcomer"


def test_if_nobody_joins_the_group_waits_on() -> None:
    world = World()
    first = world.admit("a", instance_id="i1", session_ms=300_000, rebalance_ms=100)
    world.advance(3)
    leader = first.reply.member_id
    world.settle({leader: b"one"})
    other = world.admit("b", rebalance_ms=100)
    world.leave(other.member_id)
    assert world.group.state is ClassicState.PREPARING
    for _ in range(10):
        world.advance(1)
        assert list(world.group.members) == [leader]
    world.advance(0.1)
    before = world.timers()
    world.advance(WAIT_AGAIN_MS_MIN / 1000 - 0.1)
    assert world.timers() == before, "it looks again now and then, not all the time"
    assert world.join("a", leader, "i1").reply.generation_id == 2


def test_a_member_that_came_back_in_a_full_group_takes_its_own_place() -> None:
    world = World(members_max=2)
    static_group(world)
    assert world.join("b", instance_id="i2").code is ErrorCode.NONE
    assert world.join("c", instance_id="i3").code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_member_that_came_back_and_never_syncs_is_removed_in_the_end() -> None:
    world = World()
    first, second = world.admit("a", instance_id="i1"), world.admit("b", instance_id="i2")
    while first.is_waiting:
        world.advance(0.5)
    leader = first.reply.member_id
    world.sync(leader, assignments={second.reply.member_id: b"two"})
    back = world.join("b", instance_id="i2").reply.member_id
    assert world.group.pending_syncs == {back}
    for _ in range(12):
        world.advance(5)
        for member_id, instance_id in ((leader, "i1"), (back, "i2")):
            world.heartbeat(member_id, 1, instance_id)
    assert list(world.group.members) == [leader]


def test_a_pending_id_cannot_be_used_with_an_instance_id() -> None:
    world = World()
    static_group(world)
    told = world.join("c").reply.member_id
    assert world.join("c", told, "i3").code is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join("c", told, "i2").code is ErrorCode.FENCED_INSTANCE_ID


def test_members_survive_a_crash_with_their_assignments() -> None:
    world = World()
    first, second = static_group(world)
    world.crash()
    assert world.heartbeat(first, 1, "i1") is ErrorCode.NONE
    assert world.sync(second, 1, group_instance_id="i2").reply.assignment == b"two"
    back = world.join("b", instance_id="i2")
    assert back.reply.generation_id == 1, "nothing is to be rebalanced after a restart"


def test_a_restart_of_a_member_does_not_undo_what_happened_since_a_crash() -> None:
    world = World()
    static_group(world)
    world.crash()
    told = world.join("c")
    world.join("b", instance_id="i2")
    assert world.join("c", told.reply.member_id).is_waiting


def test_who_does_not_come_back_after_a_crash_is_removed() -> None:
    world = World()
    first, second = static_group(world)
    world.advance(9)
    world.crash()
    world.advance(9)
    assert world.heartbeat(first, 1, "i1") is ErrorCode.NONE
    world.advance(SESSION_MS / 1000 - 9)
    assert second not in world.group.members
