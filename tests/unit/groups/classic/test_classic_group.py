"""The books of a classic group: what is shown to people, and what comes back from the log."""

import pytest

from penstock.coordinator.outcome import CommandOutcome, Now
from penstock.errors import ErrorCode
from penstock.groups.classic.classic_group import ClassicGroup, ClassicState
from penstock.groups.classic.classic_timers import end, expire
from penstock.groups.embedded_protocol import PROTOCOL_TYPE
from penstock.groups.rebalance_statistics import REASON_CHARACTERS_MAX, RebalanceStatistics
from penstock.groups.records import GroupMetadataValue, MemberMetadata
from tests.unit.groups.classic.classic_support import GROUP, RANGE, SESSION_MS, ClassicGroupHarness

SUBSCRIBED_TO_A_AND_B = b"\0\0\0\0\0\2\0\1a\0\1b\xff\xff\xff\xff"
"""A subscription of version 0, as consumers encode it."""


# What is shown


def test_a_group_at_rest_is_described_with_what_members_said_and_were_given() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    described = harness.group.describe()
    assert (described.group_id, described.group_state) == (GROUP, "Stable")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    shown = [(m.member_id, m.client_id, m.client_host) for m in described.members]
    assert shown == [(first, "a", "/a"), (second, "b", "/b")]
    assert [m.member_metadata for m in described.members] == [b"about range"] * 2
    assert [m.member_assignment for m in described.members] == [b"a", b"b"]


def test_a_group_that_moves_is_described_without_a_protocol() -> None:
    harness = ClassicGroupHarness()
    assert (harness.group.describe().group_state, harness.group.describe().members) == ("Empty", [])
    harness.admit("a")
    described = harness.group.describe()
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert [m.member_metadata for m in described.members] == [b""]
    harness.advance(3)
    assert harness.group.describe().group_state == "CompletingRebalance"
    end(harness.context, harness.group, harness.now)
    assert harness.group.describe().group_state == "Dead"


def test_the_topics_that_members_read_are_known_if_they_say_so() -> None:
    harness = ClassicGroupHarness()
    harness.start_rebalance("a", protocols=[("range", SUBSCRIBED_TO_A_AND_B)])
    assert harness.group.uses_consumer_protocol
    assert harness.group.subscribed_topics() == frozenset("ab")
    harness.admit("b", protocols=[("sticky", b"?"), ("range", SUBSCRIBED_TO_A_AND_B.replace(b"b", b"c"))])
    assert harness.group.subscribed_topics() == frozenset("abc")


@pytest.mark.parametrize("version", [b"\0\1", b"\0\3", b"\0\x09", b"\xff\xff"])
def test_topics_are_known_whatever_version_the_subscription_declares(version: bytes) -> None:
    harness = ClassicGroupHarness()
    # Some clients declare version 1 and write the fields of version 0.
    harness.start_rebalance("a", protocols=[("range", version + SUBSCRIBED_TO_A_AND_B[2:])])
    assert harness.group.subscribed_topics() == frozenset("ab")


def test_the_topics_that_members_read_are_unknown_if_they_say_it_otherwise() -> None:
    harness = ClassicGroupHarness()
    assert harness.group.subscribed_topics() is None
    harness.start_rebalance("a", protocols=[("range", b"no subscription")])
    assert harness.group.subscribed_topics() is None
    other = ClassicGroupHarness()
    other.start_rebalance("a", protocol_type="connect")
    assert not other.group.uses_consumer_protocol
    assert other.group.subscribed_topics() is None


def test_rebalances_are_counted_with_their_reason_and_duration() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    rebalances = harness.group.rebalances
    assert (rebalances.count, rebalances.reason, rebalances.duration_ms) == (1, f"{first} joined", 6_000)
    harness.join("b", second, protocols=[("range", b"more")], reason="more topics")
    assert (rebalances.count, rebalances.duration_ms) == (2, None)
    assert rebalances.reason == f"{second} changed its subscription: more topics"
    harness.advance(4)
    harness.join("a", first)
    harness.settle({first: b"1", second: b"2"})
    assert (rebalances.count, rebalances.duration_ms) == (2, 4_000)
    harness.join("a", first, reason="topics changed")
    assert rebalances.reason == f"the leader {first} joined again: topics changed"


def test_a_rebalance_that_is_interrupted_lasts_until_the_group_is_at_rest() -> None:
    rebalances = RebalanceStatistics()
    assert not rebalances.is_under_way
    rebalances.begin("first", Now(0, 10.0))
    rebalances.begin("second" * 100, Now(0, 11.0))
    assert len(rebalances.reason) == REASON_CHARACTERS_MAX
    rebalances.end(Now(0, 12.5))
    rebalances.end(Now(0, 99.0))
    assert (rebalances.count, rebalances.duration_ms) == (2, 2_500)
    rebalances.begin("third", Now(0, 20.0))
    assert rebalances.is_under_way
    assert (rebalances.began_at, rebalances.ended_at, rebalances.duration_ms) == (20.0, None, None)


def test_the_state_has_a_time() -> None:
    harness = ClassicGroupHarness()
    harness.stable("a")
    at_rest_since_ms = harness.now.wall_ms
    harness.advance(5)
    harness.heartbeat("a-0001")
    assert harness.group.current_state_timestamp_ms == at_rest_since_ms
    harness.leave("a-0001")
    assert harness.rebuilt().current_state_timestamp_ms == at_rest_since_ms + 5_000


# The log


def test_a_living_group_is_not_changed_by_reading_its_own_records() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.stable("a")
    joining = harness.admit("b")
    before = harness.durable_and_volatile()
    harness.replay(harness.group, harness.log[-1])
    assert harness.durable_and_volatile() == before
    harness.join("a", first)
    assert joining.reply.generation_id == 2


def test_a_group_that_is_read_is_what_its_last_record_says() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    restored = harness.rebuilt()
    assert (restored.state, restored.generation, restored.leader) == (ClassicState.STABLE, 1, first)
    assert (restored.protocol_type, restored.protocol_name) == ("consumer", "range")
    assert restored.members[second].assignment == b"b"
    assert restored.members[second].protocols == RANGE
    harness.leave(first, second)
    assert harness.rebuilt().state is ClassicState.EMPTY


def test_after_a_crash_a_generation_that_was_never_at_rest_is_forgotten() -> None:
    harness = ClassicGroupHarness()
    first, second = harness.stable("a", "b")
    joined = harness.admit("c")
    harness.join("a", first)
    harness.join("b", second)
    assert joined.reply.generation_id == 2
    harness.crash()
    assert harness.group.generation == 1
    # The codes of Kafka, whose members between JoinGroup and SyncGroup are not in the log either.
    newcomer = joined.reply.member_id
    assert harness.sync(first, 2).code is ErrorCode.ILLEGAL_GENERATION
    assert harness.heartbeat(first, 2) is ErrorCode.ILLEGAL_GENERATION
    assert harness.sync(newcomer, 2).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat(newcomer, 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat(first, 1) is ErrorCode.NONE


def test_after_a_crash_a_group_that_was_never_stable_knows_no_member() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.start_rebalance("a")
    harness.crash()
    assert harness.sync(first, 1).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat(first, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.join("a", first).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_records_of_old_kafkas_are_understood() -> None:
    member = MemberMetadata("m", client_id="c", session_timeout_ms=7_000, subscription=b"s", assignment=b"a")
    group = ClassicGroup(GROUP)
    group.restore(GroupMetadataValue(PROTOCOL_TYPE, 4, "range", "m", members=[member]))
    assert group.members["m"].timeouts == (7_000, 7_000)
    assert group.current_state_timestamp_ms == -1


def test_a_strange_record_gives_a_group_that_works() -> None:
    twice = MemberMetadata("m", "i", session_timeout_ms=SESSION_MS)
    same_instance = MemberMetadata("n", "i", session_timeout_ms=SESSION_MS)
    harness = ClassicGroupHarness()
    harness.group = ClassicGroup(GROUP)
    harness.group.restore(
        GroupMetadataValue(PROTOCOL_TYPE, 4, "range", "gone", members=[twice, twice, same_instance])
    )
    harness.log = [harness.group.record()]
    harness.replayed_group = harness.rebuilt()
    harness.crash()
    assert (list(harness.group.members), harness.group.leader) == (["m"], "m")
    harness.advance(SESSION_MS / 1000)
    assert harness.group.is_empty


# Time


def test_a_timer_that_was_set_anew_since_it_was_taken_does_nothing() -> None:
    harness = ClassicGroupHarness()
    (first,) = harness.stable("a")
    harness.monotonic += SESSION_MS / 1000
    (key,) = harness.context.timers.pop_expired(harness.monotonic)
    assert harness.heartbeat(first) is ErrorCode.NONE
    harness.take(expire(harness.context, harness.group, key, harness.now))
    assert first in harness.group.members


def test_timers_that_expire_together_settle_their_matter_once() -> None:
    harness = ClassicGroupHarness()
    first, _ = harness.stable("a", "b")
    joining = harness.admit("c", rebalance_ms=SESSION_MS)
    harness.join("a", first)
    harness.monotonic += 1_000
    harness.expire()
    assert joining.reply.generation_id == 2, "both the missing member's session and the wait were over"
    harness.monotonic += 1_000
    harness.expire()
    assert (harness.group.state, harness.group.generation) == (ClassicState.EMPTY, 3)


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance"])
def test_whoever_waits_when_a_group_ends_is_answered(state: str) -> None:
    harness = ClassicGroupHarness()
    if state == "PreparingRebalance":
        waiting = harness.admit("a")
        harness.join("b")
    else:
        _, second = harness.start_rebalance("a", "b")
        waiting = harness.sync(second)
    assert str(harness.group.state) == state
    harness.take(CommandOutcome(replies=end(harness.context, harness.group, harness.now)))
    assert waiting.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_group_that_nobody_joined_may_be_forgotten_silently() -> None:
    harness = ClassicGroupHarness()
    assert harness.group.is_unused
    told = harness.join("a")
    assert not harness.group.is_unused
    harness.leave(told.reply.member_id)
    assert harness.group.is_unused
    harness.stable("a")
    harness.leave(*harness.group.members)
    assert not harness.group.is_unused, "its generation is in the log"
