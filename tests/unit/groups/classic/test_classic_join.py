"""JoinGroup on a classic group: who gets in, and when the members that wait are answered."""

import pytest

from penstock.errors import ErrorCode
from penstock.groups.classic.classic_group import ClassicState
from penstock.groups.classic.classic_timers import end
from penstock.limits import GROUP_METADATA_BYTES_MAX
from tests.unit.groups.classic.classic_support import REBALANCE_MS, SESSION_MS, ClassicGroupHarness


def test_a_newcomer_is_told_its_id_first() -> None:
    harness = ClassicGroupHarness()
    told = harness.join("reader")
    assert told.code is ErrorCode.MEMBER_ID_REQUIRED
    assert told.reply.member_id == "reader-0001"
    assert harness.group.members == {}
    joined = harness.join("reader", told.reply.member_id)
    assert joined.is_waiting
    assert list(harness.group.members) == ["reader-0001"]


@pytest.mark.parametrize(("version", "protocol"), [(4, ""), (6, ""), (7, None), (9, None)])
def test_where_no_protocol_is_chosen_clients_are_told_so_in_their_way(
    version: int, protocol: str | None
) -> None:
    assert ClassicGroupHarness().join("reader", version=version).reply.protocol_name == protocol


@pytest.mark.parametrize("version", range(4))
def test_old_clients_join_at_once(version: int) -> None:
    harness = ClassicGroupHarness()
    joined = harness.join("reader", version=version)
    assert joined.is_waiting
    harness.advance(3)
    assert (joined.code, joined.reply.member_id) == (ErrorCode.NONE, "reader-0001")


def test_an_id_that_is_not_used_is_forgotten_after_the_session_timeout() -> None:
    harness = ClassicGroupHarness()
    told = harness.join("reader")
    harness.advance(SESSION_MS / 1000)
    assert harness.join("reader", told.reply.member_id).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.timers() == {}
    assert harness.group.is_unused


def test_the_first_member_is_the_only_one_and_leads() -> None:
    harness = ClassicGroupHarness()
    joined = harness.admit("reader")
    harness.advance(2.9)
    assert joined.is_waiting
    harness.advance(0.1)
    reply = joined.reply
    assert (reply.generation_id, reply.leader, reply.member_id) == (1, "reader-0001", "reader-0001")
    assert (reply.protocol_type, reply.protocol_name) == ("consumer", "range")
    assert [(each.member_id, each.metadata) for each in reply.members] == [("reader-0001", b"about range")]
    assert not reply.skip_assignment
    assert harness.group.state is ClassicState.COMPLETING


def test_a_new_group_waits_longer_while_members_arrive() -> None:
    harness = ClassicGroupHarness()
    first = harness.admit("a")
    harness.advance(2.5)
    second = harness.admit("b")
    harness.advance(3)
    assert first.is_waiting
    assert second.is_waiting
    harness.advance(0.5)
    assert first.reply.generation_id == second.reply.generation_id == 1
    assert [each.member_id for each in first.reply.members] == ["a-0001", "b-0002"]
    assert second.reply.members == []
    assert second.reply.leader == "a-0001"


def test_a_new_group_waits_no_longer_than_the_rebalance_timeout() -> None:
    harness = ClassicGroupHarness()
    first = harness.admit("a", rebalance_ms=7_000)
    for number in range(6):
        harness.advance(1)
        harness.admit(f"late-{number}", rebalance_ms=7_000)
    harness.advance(0.9)
    assert first.is_waiting
    harness.advance(0.1)
    assert len(first.reply.members) == 7


def test_without_an_initial_delay_the_first_member_does_not_wait() -> None:
    harness = ClassicGroupHarness(initial_delay_ms=0)
    joined = harness.admit("a")
    harness.advance(0)
    assert joined.code is ErrorCode.NONE


def test_a_rebalance_ends_as_soon_as_everybody_has_joined_again() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    third = harness.admit("c")
    assert harness.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    again = harness.join("a", first)
    assert again.is_waiting
    last = harness.join("b", second)
    assert [asked.reply.generation_id for asked in (again, last, third)] == [2, 2, 2]
    assert again.reply.leader == first


def test_members_that_do_not_join_again_in_time_are_removed() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    third = harness.admit("c")
    harness.join("a", first)
    for _ in range(11):
        harness.advance(5)
        assert harness.heartbeat(second, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    harness.advance(5)
    assert third.reply.generation_id == 2
    assert list(harness.group.members) == [first, third.reply.member_id]
    assert harness.heartbeat(second, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_was_told_its_id_is_waited_for() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.stable("a")
    told = harness.join("b")
    again = harness.join("a", first)
    assert again.is_waiting
    harness.join("b", told.reply.member_id)
    assert again.reply.generation_id == 2


def test_a_member_that_was_told_its_id_and_stays_away_is_not_waited_for_long() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.stable("a")
    harness.join("b")
    again = harness.join("a", first)
    harness.advance(SESSION_MS / 1000)
    assert again.reply.generation_id == 2


def test_if_the_leader_does_not_join_again_another_leads() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    harness.admit("c")
    again = harness.join("b", second)
    for _ in range(12):
        harness.advance(5)
        harness.heartbeat(first, 1)
    assert again.reply.leader == second
    assert len(again.reply.members) == 2


def test_a_newcomer_is_not_kept_waiting_for_more_than_five_minutes() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.stable("a")
    harness.admit("slow", rebalance_ms=3_600_000)
    waiting = harness.admit("b")
    for _ in range(59):
        harness.advance(5)
        harness.heartbeat(first, 1)
    assert waiting.is_waiting
    harness.advance(5)
    assert waiting.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_waits_needs_no_heartbeats() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    harness.admit("c")
    again = harness.join("a", first)
    for _ in range(10):
        harness.advance(5)
        harness.heartbeat(second, 1)
    assert again.is_waiting
    harness.join("b", second)
    assert again.reply.generation_id == 2
    harness.advance(SESSION_MS / 1000)
    assert first not in harness.group.members, "it is timed again from the answer on"


# The protocol that is chosen


def test_the_protocol_is_chosen_by_vote_among_those_that_all_know() -> None:
    harness = ClassicGroupHarness()
    harness.admit("a", protocols=[("range", b"1"), ("sticky", b"2"), ("own", b"3")])
    harness.admit("b", protocols=[("sticky", b"4"), ("range", b"5")])
    joined = harness.admit("c", protocols=[("other", b"6"), ("sticky", b"7"), ("range", b"8")])
    harness.advance(10)
    assert joined.reply.protocol_name == "sticky"


def test_the_leader_is_told_what_all_said_for_the_chosen_protocol() -> None:
    harness = ClassicGroupHarness()
    first = harness.admit("a", protocols=[("range", b"1"), ("sticky", b"2")])
    harness.admit("b", protocols=[("sticky", b"3")])
    harness.advance(10)
    assert [each.metadata for each in first.reply.members] == [b"2", b"3"]


def test_who_has_no_protocol_in_common_is_refused() -> None:
    harness = ClassicGroupHarness()
    harness.stable("a")
    assert harness.join("b", protocols=[("own", b"")]).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.join("b", protocol_type="connect").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_protocol_and_its_type_must_be_named() -> None:
    harness = ClassicGroupHarness()
    assert harness.join("a", protocols=[]).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.join("a", protocol_type="").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.group.is_unused


def test_an_empty_group_may_become_one_of_another_kind() -> None:
    harness = ClassicGroupHarness()
    harness.leave(*harness.stable("a"))
    harness.admit("b", protocol_type="connect", protocols=[("own", b"")])
    harness.advance(3)
    assert harness.group.protocol_type == "connect"


# Members that join again


def test_a_follower_that_joins_again_unchanged_is_answered_at_once() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    again = harness.join("b", second)
    assert (again.reply.generation_id, again.reply.leader, again.reply.members) == (1, first, [])
    assert harness.group.state is ClassicState.STABLE


def test_the_leader_of_a_group_at_rest_causes_a_rebalance_by_joining() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    again = harness.join("a", first)
    assert again.is_waiting
    assert harness.heartbeat(second) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_follower_that_changed_causes_a_rebalance() -> None:
    harness = ClassicGroupHarness()
    _, second = harness.stable("a", "b")
    assert harness.join("b", second, protocols=[("range", b"more")]).is_waiting
    assert harness.group.state is ClassicState.PREPARING


def test_a_join_that_is_repeated_before_the_assignment_gets_the_same_answer() -> None:
    harness = ClassicGroupHarness()
    first = harness.admit("a")
    second = harness.admit("b")
    harness.advance(10)
    leader, follower = first.reply.member_id, second.reply.member_id
    assert harness.join("a", leader).reply == first.reply
    assert harness.join("b", follower).reply == second.reply
    assert harness.group.state is ClassicState.COMPLETING


def test_a_change_before_the_assignment_restarts_the_join_and_interrupts_syncs() -> None:
    harness = ClassicGroupHarness()
    first = harness.admit("a")
    second = harness.admit("b")
    harness.advance(10)
    syncing = harness.sync(second.reply.member_id)
    assert syncing.is_waiting
    harness.join("a", first.reply.member_id, protocols=[("range", b"more")])
    assert syncing.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_of_two_joins_of_one_member_the_later_counts() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.stable("a")
    harness.join("b")
    lost = harness.join("a", first)
    again = harness.join("a", first)
    assert lost.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert again.is_waiting
    harness.advance(SESSION_MS / 1000)
    assert again.code is ErrorCode.NONE


def test_strangers_are_refused() -> None:
    harness = ClassicGroupHarness()
    assert harness.join("a", "a-made-up").code is ErrorCode.UNKNOWN_MEMBER_ID
    harness.stable("a")
    assert harness.join("b", "b-made-up").code is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.join("b", "b-made-up", "instance").code is ErrorCode.UNKNOWN_MEMBER_ID


# Limits


@pytest.mark.parametrize(("session_ms", "is_allowed"), [(5_999, False), (6_000, True), (1_800_001, False)])
def test_the_session_timeout_has_bounds(session_ms: int, is_allowed: bool) -> None:
    code = ClassicGroupHarness().join("a", session_ms=session_ms).code
    assert code is (ErrorCode.MEMBER_ID_REQUIRED if is_allowed else ErrorCode.INVALID_SESSION_TIMEOUT)


@pytest.mark.parametrize("group_id", ["", "g" * 32_768])
def test_a_group_needs_a_name_that_a_record_can_hold(group_id: str) -> None:
    assert ClassicGroupHarness().join("a", group_id=group_id).code is ErrorCode.INVALID_GROUP_ID


def test_names_that_no_record_can_hold_are_refused() -> None:
    harness = ClassicGroupHarness()
    long = "n" * 32_768
    assert harness.join("a", protocols=[(long, b"")]).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.join("a", protocol_type=long).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.join("a", instance_id="i" * 250).code is ErrorCode.INVALID_REQUEST
    assert harness.join("a", instance_id="").code is ErrorCode.INVALID_REQUEST


def test_the_longest_client_id_makes_a_member_id_that_a_record_can_hold() -> None:
    harness = ClassicGroupHarness()
    (member_id,) = harness.stable("é" * 16_383)
    assert len(member_id.encode()) < 32_767
    assert harness.rebuilt().members[member_id].client.client_id == "é" * 16_383


def test_a_full_group_at_rest_takes_nobody_else() -> None:
    harness = ClassicGroupHarness(members_max=2)
    first, _ = harness.stable("a", "b")
    assert harness.join("c").code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.join("a", first).is_waiting, "members go on"


def test_a_full_gathering_takes_nobody_else() -> None:
    harness = ClassicGroupHarness(members_max=2)
    told = harness.join("c")
    harness.admit("a")
    harness.admit("b")
    assert harness.join("c", told.reply.member_id).code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert told.reply.member_id not in harness.group.pending_members
    assert harness.join("d", version=0).code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_members_that_were_only_told_their_ids_are_limited_too() -> None:
    harness = ClassicGroupHarness(members_max=2)
    harness.join("a")
    harness.join("b")
    assert harness.join("c").code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_group_that_has_become_too_large_loses_those_who_come_last() -> None:
    harness = ClassicGroupHarness()
    first, second, third = harness.stable("a", "b", "c")
    harness.config = ClassicGroupHarness(members_max=2).config
    harness.crash()
    assert harness.group.state is ClassicState.PREPARING
    assert harness.group.rebalances.reason == "the group is larger than is allowed now"
    gathered = [harness.join("c", third), harness.join("a", first)]
    assert harness.join("b", second).code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [asked.reply.generation_id for asked in gathered] == [2, 2]


def test_members_may_not_say_too_much_all_together() -> None:
    harness = ClassicGroupHarness()
    half = [("range", bytes(GROUP_METADATA_BYTES_MAX // 2 - 500))]
    first = harness.admit("a", protocols=half)
    second = harness.admit("b", protocols=half)
    assert harness.join("c", protocols=[("range", bytes(1_000))]).code is ErrorCode.GROUP_MAX_SIZE_REACHED
    harness.advance(10)
    assert first.code is second.code is ErrorCode.NONE
    again = harness.join("b", second.reply.member_id, protocols=[("range", bytes(GROUP_METADATA_BYTES_MAX))])
    assert again.code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_dead_group_sends_clients_to_look_for_their_coordinator() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.stable("a")
    end(harness.context, harness.group, harness.now)
    assert harness.context.timers.next_deadline() is None
    assert harness.join("b").code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.join("a", first).code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.heartbeat(first) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.sync(first).code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.leave(first).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_the_old_rebalance_timeout_is_the_session_timeout() -> None:
    harness = ClassicGroupHarness()
    first, _ = harness.stable("a", "b")
    harness.join("c", version=0, rebalance_ms=-1)
    assert harness.group.members["c-0003"].timeouts == (SESSION_MS, SESSION_MS)
    assert harness.group.members[first].timeouts == (SESSION_MS, REBALANCE_MS)
