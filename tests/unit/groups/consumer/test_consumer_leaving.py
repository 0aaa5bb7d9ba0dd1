"""Members of a consumer group go: by saying so, by silence, by being slow; and static ones come back."""

from penstock.errors import ErrorCode
from penstock.groups.consumer.consumer_group import ConsumerState
from tests.unit.groups.consumer.consumer_support import (
    REBALANCE_MS,
    SESSION_MS,
    ConsumerGroupHarness,
    Member,
    settle,
    topic,
    topic_id,
)


def pair(**consumer: object) -> tuple[ConsumerGroupHarness, Member, Member]:
    harness = ConsumerGroupHarness(topic("a", 4), **consumer)
    first, second = Member(harness, "1"), Member(harness, "2")
    settle((first, second))
    return harness, first, second


def test_what_a_member_that_leaves_has_read_goes_to_the_others_at_once() -> None:
    harness, first, second = pair()
    assert second.leave() == ErrorCode.NONE
    assert harness.group.state is ConsumerState.ASSIGNING
    first.beat()
    assert first.partitions() == {0, 1, 2, 3}
    assert str(harness.group.state) == "Stable"


def test_the_answer_to_a_leaving_member_says_so() -> None:
    harness, first, _ = pair()
    reply = harness.ask(first.request(member_epoch=-1))
    assert (reply.error_code, reply.member_epoch, reply.member_id) == (0, -1, "1")
    assert harness.ask(first.request(member_epoch=-1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_whose_members_all_left_is_empty_and_goes_on_with_its_epochs() -> None:
    harness, first, second = pair()
    epoch = harness.group.epoch
    first.leave()
    harness.advance(5)
    second.leave()
    assert harness.group.state is ConsumerState.EMPTY
    assert harness.group.empty_since_ms == harness.now.wall_ms
    assert len(harness.context.timers) == 0
    newcomer = Member(harness, "3")
    newcomer.beat()
    assert newcomer.epoch == epoch + 3
    assert harness.group.empty_since_ms is None


def test_a_silent_member_is_gone_when_its_session_ends() -> None:
    harness, first, second = pair()
    for _ in range(SESSION_MS // 1000 - 1):
        harness.advance(1)
        first.beat()
    assert harness.group.members.keys() == {"1", "2"}
    harness.advance(1.1)
    assert harness.group.members.keys() == {"1"}
    first.beat()
    assert first.partitions() == {0, 1, 2, 3}
    assert second.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_groups_own_session_counts_from_the_next_heartbeat_on() -> None:
    harness = ConsumerGroupHarness(topic("a", 2))
    member = Member(harness, "m")
    member.beat()
    harness.overrides = {"consumer.session.timeout.ms": "3000"}
    harness.advance(4)
    member.beat()
    assert not harness.group.is_empty
    harness.advance(3)
    assert harness.group.is_empty


def test_members_that_fall_silent_together_are_gone_together() -> None:
    harness, _, _ = pair()
    epoch = harness.group.epoch
    harness.advance(SESSION_MS / 1000 + 1)
    assert harness.group.state is ConsumerState.EMPTY
    assert harness.group.epoch == epoch + 1
    assert harness.group.rebalances.reason == "1 was silent for too long; 2 was silent for too long"


def test_a_member_that_does_not_give_up_in_time_is_removed() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = Member(harness, "1"), Member(harness, "2")
    first.beat()
    second.beat()
    first.is_slow = True
    for _ in range(REBALANCE_MS // 1000 - 1):
        first.beat()
        second.beat()
        harness.advance(1)
    assert harness.group.members.keys() == {"1", "2"}
    harness.advance(1)
    assert harness.group.members.keys() == {"2"}
    second.beat()
    assert second.partitions() == {0, 1, 2, 3}
    assert first.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_time_to_give_up_goes_on_after_a_restart() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = Member(harness, "1"), Member(harness, "2")
    first.beat()
    second.beat()
    first.is_slow = True
    first.beat()
    harness.restart()
    for _ in range(REBALANCE_MS // 1000 + 1):
        first.beat()
        second.beat()
        harness.advance(1)
    assert harness.group.members.keys() == {"2"}


def test_a_static_member_that_comes_back_takes_its_place_without_a_rebalance() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = Member(harness, "1", "i1"), Member(harness, "2", "i2")
    settle((first, second))
    epoch, before = harness.group.epoch, second.partitions()
    assert second.leave(-2) == ErrorCode.NONE
    first.beat()
    assert len(first.partitions()) == 2
    again = Member(harness, "2b", "i2")
    assert again.beat() == ErrorCode.NONE
    assert (again.epoch, again.partitions()) == (epoch, before)
    assert harness.group.epoch == epoch
    assert harness.group.members.keys() == {"1", "2b"}
    assert second.beat() == ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_static_member_may_come_back_under_its_own_id() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    member = Member(harness, "1", "i1")
    member.beat()
    member.leave(-2)
    assert member.beat() == ErrorCode.NONE
    assert (member.epoch, member.partitions()) == (1, {0, 1, 2, 3})


def test_a_static_member_that_lost_track_joins_again() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    member = Member(harness, "1", "i1")
    member.beat()
    member.epoch = 0
    assert member.beat() == ErrorCode.NONE


def test_what_happened_while_a_static_member_was_away_is_caught_up() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = Member(harness, "1", "i1"), Member(harness, "2", "i2")
    settle((first, second))
    before = second.partitions()
    second.leave(-2)
    third = Member(harness, "3")
    settle((first, third))
    assert all(harness.group.holder(topic_id("a"), index) == "2" for index in before), "they wait for it"
    again = Member(harness, "2b", "i2")
    settle((first, again, third))
    sizes = [len(member.partitions()) for member in (first, again, third)]
    assert sorted(sizes) == [1, 1, 2]
    assert harness.group.state is ConsumerState.STABLE


def test_a_static_member_that_does_not_come_back_is_gone_when_its_session_ends() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = Member(harness, "1", "i1"), Member(harness, "2", "i2")
    settle((first, second))
    second.leave(-2)
    for _ in range(SESSION_MS // 1000 + 1):
        first.beat()
        harness.advance(1)
    first.beat()
    assert first.partitions() == {0, 1, 2, 3}


def test_others_do_not_hurry_for_a_static_member_that_is_away() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = Member(harness, "1", "i1"), Member(harness, "2", "i2")
    settle((first, second))
    second.leave(-2)
    first.beat()
    assert harness.group.state is ConsumerState.RECONCILING
    assert first.interval_ms == harness.config.consumer.heartbeat_ms


def test_an_instance_id_is_one_members_at_a_time() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first = Member(harness, "1", "i1")
    first.beat()
    other = Member(harness, "x", "i1")
    assert other.beat() == ErrorCode.UNRELEASED_INSTANCE_ID
    other.epoch = 1
    assert other.beat() == ErrorCode.FENCED_INSTANCE_ID
    assert other.leave() == ErrorCode.FENCED_INSTANCE_ID
    stranger = Member(harness, "y", "i9")
    stranger.epoch = 1
    assert stranger.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert first.beat() == ErrorCode.NONE


def test_a_member_that_left_for_a_while_cannot_go_on_as_if_it_had_not() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    member = Member(harness, "1", "i1")
    member.beat()
    member.leave(-2)
    member.epoch = 1
    assert member.beat() == ErrorCode.FENCED_MEMBER_EPOCH


def test_an_id_that_is_somebody_elses_cannot_take_the_place_of_an_instance() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    first, second = Member(harness, "1", "i1"), Member(harness, "2")
    settle((first, second))
    first.leave(-2)
    second.instance_id, second.epoch = "i1", 0
    assert second.beat() == ErrorCode.INVALID_REQUEST
