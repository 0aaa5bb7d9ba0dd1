"""JoinGroup on a classic group: who gets in, and when the members that wait are answered."""

import pytest

from penstock.errors import ErrorCode
from penstock.groups.classic.classic_group import ClassicState
from penstock.groups.classic.classic_timers import end
from penstock.limits import GROUP_METADATA_BYTES_MAX
from tests.unit.groups.classic.classic_support import REBALANCE_MS, SESSION_MS, World


def test_a_newcomer_is_told_its_id_first() -> None:
    world = World()
    told = world.join("reader")
    assert told.code is ErrorCode.MEMBER_ID_REQUIRED
    assert told.reply.member_id == "reader-0001"
    assert world.group.members == {}
    joined = world.join("reader", told.reply.member_id)
    assert joined.is_waiting
    assert list(world.group.members) == ["reader-0001"]


@pytest.mark.parametrize(("version", "protocol"), [(4, ""), (6, ""), (7, None), (9, None)])
def test_where_no_protocol_is_chosen_clients_are_told_so_in_their_way(
    version: int, protocol: str | None
) -> None:
    assert World().join("reader", version=version).reply.protocol_name == protocol


@pytest.mark.parametrize("version", range(4))
def test_old_clients_join_at_once(version: int) -> None:
    world = World()
    joined = world.join("reader", version=version)
    assert joined.is_waiting
    world.advance(3)
    assert (joined.code, joined.reply.member_id) == (ErrorCode.NONE, "reader-0001")


def test_an_id_that_is_not_used_is_forgotten_after_the_session_timeout() -> None:
    world = World()
    told = world.join("reader")
    world.advance(SESSION_MS / 1000)
    assert world.join("reader", told.reply.member_id).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.timers() == {}
    assert world.group.is_unused


def test_the_first_member_is_the_only_one_and_leads() -> None:
    world = World()
    joined = world.admit("reader")
    world.advance(2.9)
    assert joined.is_waiting
    world.advance(0.1)
    reply = joined.reply
    assert (reply.generation_id, reply.leader, reply.member_id) == (1, "reader-0001", "reader-0001")
    assert (reply.protocol_type, reply.protocol_name) == ("consumer", "range")
    assert [(each.member_id, each.metadata) for each in reply.members] == [("reader-0001", b"about range")]
    assert not reply.skip_assignment
    assert world.group.state is ClassicState.COMPLETING


def test_a_new_group_waits_longer_while_members_arrive() -> None:
    world = World()
    first = world.admit("a")
    world.advance(2.5)
    second = world.admit("b")
    world.advance(3)
    assert first.is_waiting
    assert second.is_waiting
    world.advance(0.5)
    assert first.reply.generation_id == second.reply.generation_id == 1
    assert [each.member_id for each in first.reply.members] == ["a-0001", "b-0002"]
    assert second.reply.members == []
    assert second.reply.leader == "a-0001"


def test_a_new_group_waits_no_longer_than_the_rebalance_timeout() -> None:
    world = World()
    first = world.admit("a", rebalance_ms=7_000)
    for number in range(6):
        world.advance(1)
        world.admit(f"late-{number}", rebalance_ms=7_000)
    world.advance(0.9)
    assert first.is_waiting
    world.advance(0.1)
    assert len(first.reply.members) == 7


def test_without_an_initial_delay_the_first_member_does_not_wait() -> None:
    world = World(initial_delay_ms=0)
    joined = world.admit("a")
    world.advance(0)
    assert joined.code is ErrorCode.NONE


def test_a_rebalance_ends_as_soon_as_everybody_has_joined_again() -> None:
    world = World()
    first, second = world.stable("a", "b")
    third = world.admit("c")
    assert world.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    again = world.join("a", first)
    assert again.is_waiting
    last = world.join("b", second)
    assert [asked.reply.generation_id for asked in (again, last, third)] == [2, 2, 2]
    assert again.reply.leader == first


def test_members_that_do_not_join_again_in_time_are_removed() -> None:
    world = World()
    first, second = world.stable("a", "b")
    third = world.admit("c")
    world.join("a", first)
    for _ in range(11):
        world.advance(5)
        assert world.heartbeat(second, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    world.advance(5)
    assert third.reply.generation_id == 2
    assert list(world.group.members) == [first, third.reply.member_id]
    assert world.heartbeat(second, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_was_told_its_id_is_waited_for() -> None:
    world = World()
    (first,) = world.stable("a")
    told = world.join("b")
    again = world.join("a", first)
    assert again.is_waiting
    world.join("b", told.reply.member_id)
    assert again.reply.generation_id == 2


def test_a_member_that_was_told_its_id_and_stays_away_is_not_waited_for_long() -> None:
    world = World()
    (first,) = world.stable("a")
    world.join("b")
    again = world.join("a", first)
    world.advance(SESSION_MS / 1000)
    assert again.reply.generation_id == 2


def test_if_the_leader_does_not_join_again_another_leads() -> None:
    world = World()
    first, second = world.stable("a", "b")
    world.admit("c")
    again = world.join("b", second)
    for _ in range(12):
        world.advance(5)
        world.heartbeat(first, 1)
    assert again.reply.leader == second
    assert len(again.reply.members) == 2


def test_a_newcomer_is_not_kept_waiting_for_more_than_five_minutes() -> None:
    world = World()
    (first,) = world.stable("a")
    world.admit("slow", rebalance_ms=3_600_000)
    waiting = world.admit("b")
    for _ in range(59):
        world.advance(5)
        world.heartbeat(first, 1)
    assert waiting.is_waiting
    world.advance(5)
    assert waiting.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_waits_needs_no_heartbeats() -> None:
    world = World()
    first, second = world.stable("a", "b")
    world.admit("c")
    again = world.join("a", first)
    for _ in range(10):
        world.advance(5)
        world.heartbeat(second, 1)
    assert again.is_waiting
    world.join("b", second)
    assert again.reply.generation_id == 2
    world.advance(SESSION_MS / 1000)
    assert first not in world.group.members, "it is timed again from the answer on"


# The protocol that is chosen


def test_the_protocol_is_chosen_by_vote_among_those_that_all_know() -> None:
    world = World()
    world.admit("a", protocols=[("range", b"1"), ("sticky", b"2"), ("own", b"3")])
    world.admit("b", protocols=[("sticky", b"4"), ("range", b"5")])
    joined = world.admit("c", protocols=[("other", b"6"), ("sticky", b"7"), ("range", b"8")])
    world.advance(10)
    assert joined.reply.protocol_name == "sticky"


def test_the_leader_is_told_what_all_said_for_the_chosen_protocol() -> None:
    world = World()
    first = world.admit("a", protocols=[("range", b"1"), ("sticky", b"2")])
    world.admit("b", protocols=[("sticky", b"3")])
    world.advance(10)
    assert [each.metadata for each in first.reply.members] == [b"2", b"3"]


def test_who_has_no_protocol_in_common_is_refused() -> None:
    world = World()
    world.stable("a")
    assert world.join("b", protocols=[("own", b"")]).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join("b", protocol_type="connect").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_protocol_and_its_type_must_be_named() -> None:
    world = World()
    assert world.join("a", protocols=[]).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join("a", protocol_type="").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.group.is_unused


def test_an_empty_group_may_become_one_of_another_kind() -> None:
    world = World()
    world.leave(*world.stable("a"))
    world.admit("b", protocol_type="connect", protocols=[("own", b"")])
    world.advance(3)
    assert world.group.protocol_type == "connect"


# Members that join again


def test_a_follower_that_joins_again_unchanged_is_answered_at_once() -> None:
    world = World()
    first, second = world.stable("a", "b")
    again = world.join("b", second)
    assert (again.reply.generation_id, again.reply.leader, again.reply.members) == (1, first, [])
    assert world.group.state is ClassicState.STABLE


def test_the_leader_of_a_group_at_rest_causes_a_rebalance_by_joining() -> None:
    world = World()
    first, second = world.stable("a", "b")
    again = world.join("a", first)
    assert again.is_waiting
    assert world.heartbeat(second) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_follower_that_changed_causes_a_rebalance() -> None:
    world = World()
    _, second = world.stable("a", "b")
    assert world.join("b", second, protocols=[("range", b"more")]).is_waiting
    assert world.group.state is ClassicState.PREPARING


def test_a_join_that_is_repeated_before_the_assignment_gets_the_same_answer() -> None:
    world = World()
    first = world.admit("a")
    second = world.admit("b")
    world.advance(10)
    leader, follower = first.reply.member_id, second.reply.member_id
    assert world.join("a", leader).reply == first.reply
    assert world.join("b", follower).reply == second.reply
    assert world.group.state is ClassicState.COMPLETING


def test_a_change_before_the_assignment_begins_anew_and_interrupts_those_who_sync() -> None:
    world = World()
    first = world.admit("a")
    second = world.admit("b")
    world.advance(10)
    syncing = world.sync(second.reply.member_id)
    assert syncing.is_waiting
    world.join("a", first.reply.member_id, protocols=[("range", b"more")])
    assert syncing.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_of_two_joins_of_one_member_the_later_counts() -> None:
    world = World()
    (first,) = world.stable("a")
    world.join("b")
    lost = world.join("a", first)
    again = world.join("a", first)
    assert lost.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert again.is_waiting
    world.advance(SESSION_MS / 1000)
    assert again.code is ErrorCode.NONE


def test_strangers_are_refused() -> None:
    world = World()
    assert world.join("a", "a-made-up").code is ErrorCode.UNKNOWN_MEMBER_ID
    world.stable("a")
    assert world.join("b", "b-made-up").code is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join("b", "b-made-up", "instance").code is ErrorCode.UNKNOWN_MEMBER_ID


# Limits


@pytest.mark.parametrize(("session_ms", "is_allowed"), [(5_999, False), (6_000, True), (1_800_001, False)])
def test_the_session_timeout_has_bounds(session_ms: int, is_allowed: bool) -> None:
    code = World().join("a", session_ms=session_ms).code
    assert code is (ErrorCode.MEMBER_ID_REQUIRED if is_allowed else ErrorCode.INVALID_SESSION_TIMEOUT)


@pytest.mark.parametrize("group_id", ["", "g" * 32_768])
def test_a_group_needs_a_name_that_a_record_can_hold(group_id: str) -> None:
    assert World().join("a", group_id=group_id).code is ErrorCode.INVALID_GROUP_ID


def test_names_that_no_record_can_hold_are_refused() -> None:
    world = World()
    long = "n" * 32_768
    assert world.join("a", protocols=[(long, b"")]).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join("a", protocol_type=long).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join("a", instance_id="i" * 250).code is ErrorCode.INVALID_REQUEST
    assert world.join("a", instance_id="").code is ErrorCode.INVALID_REQUEST


def test_the_longest_client_id_makes_a_member_id_that_a_record_can_hold() -> None:
    world = World()
    (member_id,) = world.stable("é" * 16_383)
    assert len(member_id.encode()) < 32_767
    assert world.rebuilt().members[member_id].client.client_id == "é" * 16_383


def test_a_full_group_at_rest_takes_nobody_else() -> None:
    world = World(members_max=2)
    first, _ = world.stable("a", "b")
    assert world.join("c").code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.join("a", first).is_waiting, "members go on"


def test_a_full_gathering_takes_nobody_else() -> None:
    world = World(members_max=2)
    told = world.join("c")
    world.admit("a")
    world.admit("b")
    assert world.join("c", told.reply.member_id).code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert told.reply.member_id not in world.group.pending_members
    assert world.join("d", version=0).code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_members_that_were_only_told_their_ids_are_limited_too() -> None:
    world = World(members_max=2)
    world.join("a")
    world.join("b")
    assert world.join("c").code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_group_that_has_become_too_large_loses_those_who_come_last() -> None:
    world = World()
    first, second, third = world.stable("a", "b", "c")
    world.config = World(members_max=2).config
    world.crash()
    assert world.group.state is ClassicState.PREPARING
    assert world.group.rebalances.reason == "the group is larger than is allowed now"
    gathered = [world.join("c", third), world.join("a", first)]
    assert world.join("b", second).code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [asked.reply.generation_id for asked in gathered] == [2, 2]


def test_members_may_not_say_too_much_all_together() -> None:
    world = World()
    half = [("range", bytes(GROUP_METADATA_BYTES_MAX // 2 - 500))]
    first = world.admit("a", protocols=half)
    second = world.admit("b", protocols=half)
    assert world.join("c", protocols=[("range", bytes(1_000))]).code is ErrorCode.GROUP_MAX_SIZE_REACHED
    world.advance(10)
    assert first.code is second.code is ErrorCode.NONE
    again = world.join("b", second.reply.member_id, protocols=[("range", bytes(GROUP_METADATA_BYTES_MAX))])
    assert again.code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_dead_group_sends_clients_to_look_for_their_coordinator() -> None:
    world = World()
    (first,) = world.stable("a")
    end(world.surroundings, world.group, world.now)
    assert world.surroundings.timers.due() is None
    assert world.join("b").code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.join("a", first).code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.heartbeat(first) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.sync(first).code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.leave(first).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_the_old_rebalance_timeout_is_the_session_timeout() -> None:
    world = World()
    first, _ = world.stable("a", "b")
    world.join("c", version=0, rebalance_ms=-1)
    assert world.group.members["c-0003"].timeouts == (SESSION_MS, SESSION_MS)
    assert world.group.members[first].timeouts == (SESSION_MS, REBALANCE_MS)
