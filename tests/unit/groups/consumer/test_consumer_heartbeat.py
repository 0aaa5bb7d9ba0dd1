"""Members of the consumer protocol join, stay, change their minds and are told what to read."""

import pytest

from penstock.errors import ErrorCode
from penstock.groups.consumer.assignment import size
from penstock.groups.consumer.consumer_group import ConsumerState
from penstock.groups.consumer.consumer_member import MemberAssignment, MemberState
from penstock.groups.consumer.consumer_records import current_assignment_record
from penstock.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from tests.unit.groups.consumer.consumer_support import (
    GROUP,
    HEARTBEAT_MS,
    REBALANCING_MS,
    ConsumerGroupHarness,
    Member,
    settle,
    topic,
    topic_id,
)


def joining(**fields: object) -> ConsumerGroupHeartbeatRequest:
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["a"],
        topic_partitions=[],
    )
    for name, value in fields.items():
        setattr(request, name, value)
    return request


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": [HeartbeatTopicPartitions(topic_id("a"), [0])]},
        {"subscribed_topic_names": None},
        {"member_epoch": -3},
        {"member_epoch": -2},
        {"member_epoch": -1, "member_id": ""},
        {"member_epoch": 1, "member_id": ""},
        {"member_id": "m" * 40_000},
    ],
)
def test_a_request_that_breaks_the_rules_is_invalid(fields: dict[str, object]) -> None:
    harness = ConsumerGroupHarness(topic("a", 2))
    assert harness.ask(joining(**fields)).error_code == ErrorCode.INVALID_REQUEST
    assert harness.place.group is None


def test_an_assignor_that_is_not_configured_is_refused() -> None:
    harness = ConsumerGroupHarness(topic("a", 2), assignors=("uniform",))
    assert harness.ask(joining(server_assignor="range")).error_code == ErrorCode.UNSUPPORTED_ASSIGNOR


def test_the_first_member_makes_the_group_and_gets_everything_at_once() -> None:
    harness = ConsumerGroupHarness(topic("a", 3))
    member = Member(harness, "m")
    assert member.beat() == ErrorCode.NONE
    assert (member.epoch, member.partitions()) == (1, {0, 1, 2})
    assert harness.group.state is ConsumerState.STABLE
    assert (harness.group.epoch, harness.group.assignment_epoch) == (1, 1)


def test_before_version_1_the_coordinator_makes_the_member_id() -> None:
    harness = ConsumerGroupHarness(topic("a", 3))
    reply = harness.ask(joining(member_id=""), version=0)
    assert (reply.error_code, reply.member_id, reply.member_epoch) == (0, "drawn-0001", 1)


def test_a_heartbeat_to_a_group_that_is_unknown_makes_its_member_join_again() -> None:
    harness = ConsumerGroupHarness(topic("a", 3))
    assert harness.ask(joining(member_epoch=5)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.ask(joining(member_epoch=-1)).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_heartbeat_of_somebody_unknown_makes_it_join_again() -> None:
    harness = ConsumerGroupHarness(topic("a", 3))
    Member(harness, "m").beat()
    assert harness.ask(joining(member_id="x", member_epoch=1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_refuses_newcomers_and_keeps_its_members() -> None:
    harness = ConsumerGroupHarness(topic("a", 3), members_max=1)
    member = Member(harness, "m")
    member.beat()
    assert Member(harness, "n").beat() == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert member.beat() == ErrorCode.NONE


def test_members_may_not_say_more_than_a_group_can_keep() -> None:
    harness = ConsumerGroupHarness(topic("a", 3))
    names = [f"{number:0249}" for number in range(6_000)]
    Member(harness, "m", subscribed_topic_names=names).beat()
    assert Member(harness, "n", subscribed_topic_names=names).beat() == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert harness.group.members.keys() == {"m"}


def test_the_assignment_is_told_only_when_it_is_asked_for_or_new() -> None:
    harness = ConsumerGroupHarness(topic("a", 3))
    member = Member(harness, "m")
    member.beat()
    assert harness.ask(member.request()).assignment is None
    assert harness.ask(member.request(**member.metadata)).assignment is not None
    assert harness.ask(joining()).assignment is not None


def test_a_heartbeat_that_says_nothing_new_writes_nothing() -> None:
    harness = ConsumerGroupHarness(topic("a", 3))
    member = Member(harness, "m")
    member.beat()
    written = len(harness.log)
    member.beat()
    harness.ask(member.request(**member.metadata))
    assert len(harness.log) == written


def test_partitions_move_only_after_their_reader_gave_them_up() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = Member(harness, "1"), Member(harness, "2")
    first.beat()
    second.beat()
    assert second.partitions() == set()
    first.is_slow = True
    first.beat()
    second.beat()
    assert (first.partitions(), second.partitions()) == ({0, 1, 2, 3}, set())
    first.hurry()
    first.beat()
    second.beat()
    assert len(first.partitions()) == len(second.partitions()) == 2
    assert first.partitions() | second.partitions() == {0, 1, 2, 3}


def test_a_member_that_has_to_give_up_stays_at_its_epoch_until_it_did() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first = Member(harness, "1")
    first.beat()
    Member(harness, "2").beat()
    first.is_slow = True
    first.beat()
    assert first.epoch == 1
    assert harness.group.state is ConsumerState.RECONCILING
    first.hurry()
    first.beat()
    assert first.epoch == 2


def test_a_member_reports_sooner_while_partitions_change_hands() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = Member(harness, "1"), Member(harness, "2")
    first.beat()
    assert first.interval_ms == HEARTBEAT_MS
    second.beat()
    assert second.interval_ms == REBALANCING_MS
    settle((first, second))
    assert first.interval_ms == second.interval_ms == HEARTBEAT_MS
    harness.overrides = {"consumer.heartbeat.interval.ms": "7000"}
    first.beat()
    assert first.interval_ms == 7_000
    harness.overrides = {}
    first.beat()
    assert first.interval_ms == HEARTBEAT_MS


def test_a_member_reports_sooner_while_others_have_to_move() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second, third = (Member(harness, name) for name in "123")
    settle((first, second))
    third.beat()
    keeping = max((first, second), key=lambda member: size(harness.group.target_of(member.member_id)))
    giving = second if keeping is first else first
    giving.is_slow = True
    giving.beat()
    keeping.beat()
    assert harness.group.members[keeping.member_id].is_reconciled(harness.group.assignment_epoch)
    assert keeping.interval_ms == REBALANCING_MS
    assert harness.group.rebalances.is_under_way


def test_members_of_a_large_group_report_less_often() -> None:
    harness = ConsumerGroupHarness(topic("a", 4), members_max=5_000, heartbeat_ms=20)
    members = [Member(harness, f"{number}") for number in range(50)]
    for member in members:
        member.beat()
    assert members[-1].beat() == ErrorCode.NONE
    settle(members, 3)
    assert members[0].interval_ms == 50


def test_an_epoch_ahead_of_the_known_one_is_fenced() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    member = Member(harness, "m")
    member.beat()
    member.epoch = 7
    assert member.beat() == ErrorCode.FENCED_MEMBER_EPOCH


def test_after_a_lost_reply_the_old_epoch_is_accepted_and_gets_a_full_reply() -> None:
    harness = ConsumerGroupHarness(topic("a", 4), topic("b", 2))
    member = Member(harness, "m")
    member.beat()
    member.metadata["subscribed_topic_names"] = ["a", "b"]
    member.beat(is_lost=True, subscribed_topic_names=["a", "b"])
    assert member.epoch == 1
    assert member.beat() == ErrorCode.NONE
    assert (member.epoch, member.partitions("b")) == (2, {0, 1})


def test_whoever_says_an_old_epoch_is_told_everything_even_if_it_does_not_ask() -> None:
    harness = ConsumerGroupHarness(topic("a", 4), topic("b", 2))
    member = Member(harness, "m")
    member.beat()
    member.beat(is_lost=True, subscribed_topic_names=["a", "b"])
    member.sends_full_heartbeat = False
    member.beat()
    assert (member.epoch, member.partitions("b")) == (2, {0, 1})


def test_an_old_epoch_with_partitions_that_are_not_ones_own_is_fenced() -> None:
    harness = ConsumerGroupHarness(topic("a", 4), topic("b", 2))
    member = Member(harness, "m")
    member.beat()
    harness.ask(member.request(subscribed_topic_names=["b"], topic_partitions=[]))
    assert harness.group.members["m"].epoch == 2
    assert member.beat() == ErrorCode.FENCED_MEMBER_EPOCH


def test_an_old_epoch_without_saying_what_is_read_is_fenced() -> None:
    harness = ConsumerGroupHarness(topic("a", 4), topic("b", 2))
    member = Member(harness, "m")
    member.beat()
    member.beat(is_lost=True, subscribed_topic_names=["a", "b"])
    reply = harness.ask(member.request(topic_partitions=None))
    assert reply.error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_that_lost_track_joins_again_and_keeps_its_place() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = Member(harness, "1"), Member(harness, "2")
    settle((first, second))
    epoch, before = first.epoch, first.partitions()
    first.epoch, first.owned = 0, {}
    assert first.beat() == ErrorCode.NONE
    assert (first.epoch, first.partitions()) == (epoch, before)


def test_a_new_subscription_begins_a_new_epoch_for_all() -> None:
    harness = ConsumerGroupHarness(topic("a", 4), topic("b", 2))
    first, second = Member(harness, "1"), Member(harness, "2")
    settle((first, second))
    epoch = harness.group.epoch
    second.subscribe("b")
    assert harness.group.epoch == epoch + 1
    settle((first, second))
    assert (first.partitions("a"), second.partitions("b")) == ({0, 1, 2, 3}, {0, 1})
    assert second.partitions("a") == set()


def test_a_change_of_the_preferred_assignor_begins_a_new_epoch() -> None:
    harness = ConsumerGroupHarness(topic("a", 4), topic("b", 4))
    both = ["a", "b"]
    first = Member(harness, "1", subscribed_topic_names=both)
    second = Member(harness, "2", subscribed_topic_names=both)
    settle((first, second))
    epoch = harness.group.epoch
    for member in (first, second):
        member.beat(server_assignor="range")
    settle((first, second))
    assert harness.group.epoch == epoch + 2
    assert first.partitions("a") == first.partitions("b") == {0, 1}


def test_a_topic_that_grows_is_noticed_at_the_next_heartbeat() -> None:
    harness = ConsumerGroupHarness(topic("a", 2))
    member = Member(harness, "m")
    member.beat()
    harness.set_topics(topic("a", 5))
    member.beat()
    assert (member.epoch, member.partitions()) == (2, {0, 1, 2, 3, 4})


def test_a_topic_that_is_made_later_is_noticed_and_others_are_not() -> None:
    harness = ConsumerGroupHarness()
    member = Member(harness, "m")
    member.beat()
    assert (member.epoch, member.partitions()) == (1, set())
    harness.set_topics(topic("other", 5))
    member.beat()
    assert member.epoch == 1
    harness.set_topics(topic("other", 5), topic("a", 1))
    member.beat()
    assert (member.epoch, member.partitions()) == (2, {0})


def test_a_topic_that_is_deleted_and_made_again_is_another_topic() -> None:
    harness = ConsumerGroupHarness(topic("a", 2))
    member = Member(harness, "m")
    member.beat()
    harness.set_topics(topic("a", 2, version=1))
    settle((member,))
    assert (member.partitions(version=0), member.partitions(version=1)) == (set(), {0, 1})


def test_a_restart_in_the_middle_of_a_move_loses_nothing() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = Member(harness, "1"), Member(harness, "2")
    first.beat()
    second.beat()
    first.is_slow = True
    first.beat()
    harness.restart()
    second.beat()
    assert second.partitions() == set()
    first.hurry()
    settle((first, second))
    assert len(first.partitions()) == len(second.partitions()) == 2
    assert harness.group.state is ConsumerState.STABLE


def test_rebalances_are_counted_with_their_reason_and_duration() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = Member(harness, "1"), Member(harness, "2")
    first.beat()
    assert (harness.group.rebalances.count, harness.group.rebalances.duration_ms) == (1, 0)
    second.beat()
    assert (harness.group.rebalances.count, harness.group.rebalances.reason) == (2, "2 joined")
    assert harness.group.rebalances.is_under_way
    harness.advance(3)
    settle((first, second))
    assert harness.group.rebalances.duration_ms == 3_000


def test_a_member_that_newer_software_wrote_must_begin_anew() -> None:
    harness = ConsumerGroupHarness(topic("a", 2))
    member = Member(harness, "m")
    member.beat()
    current_assignment = harness.group.members["m"].current_assignment
    strange = harness.group.members["m"].with_assignment(
        MemberAssignment(
            current_assignment.epoch,
            current_assignment.previous_epoch,
            MemberState.UNKNOWN,
            current_assignment.assigned,
        )
    )
    harness.place.replay(current_assignment_record(GROUP, strange), 0)
    harness.replayed_group.replay(current_assignment_record(GROUP, strange), 0)
    assert member.beat() == ErrorCode.FENCED_MEMBER_EPOCH
    assert member.beat() == ErrorCode.NONE
    assert member.partitions() == {0, 1}
