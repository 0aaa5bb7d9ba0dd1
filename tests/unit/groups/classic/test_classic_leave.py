"""LeaveGroup on a classic group."""

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.groups.classic.classic_group import ClassicState
from penstock.groups.classic.join import ClassicCaller
from penstock.groups.classic.leave import leave
from penstock.groups.group_context import ClientInfo
from penstock.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tests.unit.groups.classic.classic_support import REBALANCE_MS, ClassicGroupHarness, PendingRequest


def codes(reply: LeaveGroupResponse) -> list[int]:
    assert reply.error_code == ErrorCode.NONE
    return [each.error_code for each in reply.members]


def test_when_a_member_leaves_the_others_gather() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    assert codes(harness.leave(second)) == [0]
    assert harness.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.heartbeat(second, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.join("a", first).reply.generation_id == 2


def test_when_the_last_member_leaves_the_group_is_empty_at_once() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    harness.leave(first, second)
    assert (harness.group.state, harness.group.generation) == (ClassicState.EMPTY, 2)
    assert harness.timers() == {}
    restored = harness.rebuilt()
    assert (restored.state, restored.generation, restored.leader) == (ClassicState.EMPTY, 2, None)


@pytest.mark.parametrize("version", range(3))
def test_old_clients_name_one_member_and_get_one_answer(version: int) -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.stable("a")
    assert harness.leave("stranger", version=version).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    reply = harness.leave(first, version=version)
    assert (reply.error_code, reply.members) == (0, [])
    assert harness.group.is_empty


def test_each_member_gets_its_own_answer() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    reply = harness.leave("stranger", first, first)
    assert codes(reply) == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert [each.member_id for each in reply.members] == ["stranger", first, first]
    assert list(harness.group.members) == [second]


def test_if_nobody_leaves_nothing_happens() -> None:
    harness = ClassicGroupHarness()
    harness.stable("a")
    harness.leave("stranger")
    assert harness.group.state is ClassicState.STABLE


def test_an_administrator_takes_out_static_members_by_their_instance_ids() -> None:
    harness = ClassicGroupHarness()
    harness.admit("a", instance_id="i1")
    harness.admit("b", instance_id="i2")
    harness.advance(10)
    reply = harness.leave(MemberIdentity("", "i1"), MemberIdentity("", "i3"), MemberIdentity("", None))
    assert codes(reply) == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert list(harness.group.static_members) == ["i2"]


def test_a_static_member_that_was_replaced_cannot_take_out_its_successor() -> None:
    harness = ClassicGroupHarness()
    old = harness.admit("a", instance_id="i")
    harness.advance(3)
    harness.admit("a", instance_id="i")
    reply = harness.leave(MemberIdentity(old.reply.member_id, "i"))
    assert codes(reply) == [ErrorCode.FENCED_INSTANCE_ID]
    assert len(harness.group.members) == 1


def test_a_member_that_was_only_told_its_id_may_leave() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.stable("a")
    told = harness.join("b")
    again = harness.join("a", first)
    assert again.is_waiting
    assert codes(harness.leave(told.reply.member_id)) == [0]
    assert again.reply.generation_id == 2, "nobody else was missing"


def test_a_member_that_was_only_told_its_id_disturbs_nobody_by_leaving() -> None:
    harness = ClassicGroupHarness()
    harness.stable("a")
    harness.leave(harness.join("b").reply.member_id)
    assert harness.group.state is ClassicState.STABLE


def test_who_leaves_while_it_waits_is_answered() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    harness.admit("c")
    joining = harness.join("b", second)
    harness.leave(second)
    assert joining.code is ErrorCode.UNKNOWN_MEMBER_ID
    harness.join("a", first)
    syncing = harness.sync("c-0003")
    harness.leave("c-0003")
    assert syncing.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_one_that_is_missing_ends_the_wait_by_leaving() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    again = harness.join("a", first)
    harness.leave(second)
    assert again.reply.generation_id == 2


def test_when_all_leave_a_new_group_it_does_not_wait_for_others() -> None:
    harness = ClassicGroupHarness()
    harness.admit("a")
    harness.leave("a-0001")
    assert (harness.group.state, harness.group.generation) == (ClassicState.EMPTY, 1)
    harness.advance(REBALANCE_MS / 1000)
    assert harness.group.generation == 1


def test_the_reason_is_kept_for_people() -> None:
    harness = ClassicGroupHarness()
    first, _ = harness.stable("a", "b")
    harness.leave(MemberIdentity(first, None, "the consumer is being closed"))
    assert harness.group.rebalances.reason == f"{first} left: the consumer is being closed"


@pytest.mark.parametrize("version", [2, 5])
def test_nobody_can_leave_a_group_that_does_not_exist(version: int) -> None:
    harness = ClassicGroupHarness()
    asked = PendingRequest(lambda code: LeaveGroupResponse(error_code=code))
    caller = ClassicCaller(version, ClientInfo("c", "/c"), asked.pending)
    request = LeaveGroupRequest("nowhere", "m", [MemberIdentity("m")])
    harness.take(leave(harness.context, None, request, caller, harness.now))
    if version < 3:
        assert asked.code is ErrorCode.UNKNOWN_MEMBER_ID
    else:
        assert codes(asked.reply) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_group_needs_a_name() -> None:
    harness = ClassicGroupHarness()
    caller = ClassicCaller(5, ClientInfo("c", "/c"), PendingRequest(lambda code: code).pending)
    with pytest.raises(ApiError, match="INVALID_GROUP_ID"):
        leave(harness.context, None, LeaveGroupRequest(""), caller, harness.now)
