"""LeaveGroup on a classic group."""

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.classic_group import ClassicState
from penstock.groups.classic.join import Asking
from penstock.groups.classic.leave import leave
from penstock.groups.group_context import Client
from penstock.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tests.unit.groups.classic.classic_support import REBALANCE_MS, Asked, World


def codes(reply: LeaveGroupResponse) -> list[int]:
    assert reply.error_code == ErrorCode.NONE
    return [each.error_code for each in reply.members]


def test_when_a_member_leaves_the_others_gather() -> None:
    world = World()
    first, second = world.stable("a", "b")
    assert codes(world.leave(second)) == [0]
    assert world.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(second, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join("a", first).reply.generation_id == 2


def test_when_the_last_member_leaves_the_group_is_empty_at_once() -> None:
    world = World()
    first, second = world.stable("a", "b")
    world.leave(first, second)
    assert (world.group.state, world.group.generation) == (ClassicState.EMPTY, 2)
    assert world.timers() == {}
    restored = world.rebuilt()
    assert (restored.state, restored.generation, restored.leader) == (ClassicState.EMPTY, 2, None)


@pytest.mark.parametrize("version", range(3))
def test_old_clients_name_one_member_and_get_one_answer(version: int) -> None:
    world = World()
    (first,) = world.stable("a")
    assert world.leave("stranger", version=version).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    reply = world.leave(first, version=version)
    assert (reply.error_code, reply.members) == (0, [])
    assert world.group.is_empty


def test_each_member_gets_its_own_answer() -> None:
    world = World()
    first, second = world.stable("a", "b")
    reply = world.leave("stranger", first, first)
    assert codes(reply) == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert [each.member_id for each in reply.members] == ["stranger", first, first]
    assert list(world.group.members) == [second]


def test_if_nobody_leaves_nothing_happens() -> None:
    world = World()
    world.stable("a")
    world.leave("stranger")
    assert world.group.state is ClassicState.STABLE


def test_an_administrator_takes_out_static_members_by_their_instance_ids() -> None:
    world = World()
    world.admit("a", instance_id="i1")
    world.admit("b", instance_id="i2")
    world.advance(10)
    reply = world.leave(MemberIdentity("", "i1"), MemberIdentity("", "i3"), MemberIdentity("", None))
    assert codes(reply) == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert list(world.group.static_members) == ["i2"]


def test_a_static_member_that_was_replaced_cannot_take_out_its_successor() -> None:
    world = World()
    old = world.admit("a", instance_id="i")
    world.advance(3)
    world.admit("a", instance_id="i")
    reply = world.leave(MemberIdentity(old.reply.member_id, "i"))
    assert codes(reply) == [ErrorCode.FENCED_INSTANCE_ID]
    assert len(world.group.members) == 1


def test_a_member_that_was_only_told_its_id_may_leave() -> None:
    world = World()
    (first,) = world.stable("a")
    told = world.join("b")
    again = world.join("a", first)
    assert again.is_waiting
    assert codes(world.leave(told.reply.member_id)) == [0]
    assert again.reply.generation_id == 2, "nobody else was missing"


def test_a_member_that_was_only_told_its_id_disturbs_nobody_by_leaving() -> None:
    world = World()
    world.stable("a")
    world.leave(world.join("b").reply.member_id)
    assert world.group.state is ClassicState.STABLE


def test_who_leaves_while_it_waits_is_answered() -> None:
    world = World()
    first, second = world.stable("a", "b")
    world.admit("c")
    joining = world.join("b", second)
    world.leave(second)
    assert joining.code is ErrorCode.UNKNOWN_MEMBER_ID
    world.join("a", first)
    syncing = world.sync("c-0003")
    world.leave("c-0003")
    assert syncing.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_one_that_is_missing_ends_the_wait_by_leaving() -> None:
    world = World()
    first, second = world.stable("a", "b")
    again = world.join("a", first)
    world.leave(second)
    assert again.reply.generation_id == 2


def test_when_all_leave_a_new_group_it_does_not_wait_for_others() -> None:
    world = World()
    world.admit("a")
    world.leave("a-0001")
    assert (world.group.state, world.group.generation) == (ClassicState.EMPTY, 1)
    world.advance(REBALANCE_MS / 1000)
    assert world.group.generation == 1


def test_the_reason_is_kept_for_people() -> None:
    world = World()
    first, _ = world.stable("a", "b")
    world.leave(MemberIdentity(first, None, "the consumer is being closed"))
    assert world.group.rebalances.reason == f"{first} left: the consumer is being closed"


@pytest.mark.parametrize("version", [2, 5])
def test_nobody_can_leave_a_group_that_does_not_exist(version: int) -> None:
    world = World()
    asked = Asked(lambda code: LeaveGroupResponse(error_code=code))
    asking = Asking(version, Client("c", "/c"), asked.pending)
    request = LeaveGroupRequest("nowhere", "m", [MemberIdentity("m")])
    world.take(leave(world.surroundings, None, request, asking, world.now))
    if version < 3:
        assert asked.code is ErrorCode.UNKNOWN_MEMBER_ID
    else:
        assert codes(asked.reply) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_group_needs_a_name() -> None:
    world = World()
    asking = Asking(5, Client("c", "/c"), Asked(lambda code: code).pending)
    with pytest.raises(ApiError, match="INVALID_GROUP_ID"):
        leave(world.surroundings, None, LeaveGroupRequest(""), asking, world.now)
