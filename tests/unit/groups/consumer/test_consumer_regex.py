"""Subscriptions by regular expression."""

import time

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.groups.consumer.regex import REGEX_BYTES_MAX, RegexResolver, compile_regex
from penstock.groups.group_context import GroupStateLimits
from tests.unit.groups.consumer.consumer_support import ConsumerGroupHarness, Member, settle, topic

SHORT_TURNS = GroupStateLimits(regex_chunk_work_max=50_000)


def subscribing(harness: ConsumerGroupHarness, member_id: str, regex: str, *names: str) -> Member:
    return Member(harness, member_id, subscribed_topic_names=list(names), subscribed_topic_regex=regex)


def test_a_regular_expression_matches_whole_names() -> None:
    harness = ConsumerGroupHarness(topic("orders", 2), topic("orders-eu", 1), topic("reorders", 1))
    member = subscribing(harness, "m", "orders")
    settle((member,))
    assert member.partitions("orders") == {0, 1}
    assert member.partitions("orders-eu") == member.partitions("reorders") == set()


def test_names_and_an_expression_are_both_subscribed_to() -> None:
    harness = ConsumerGroupHarness(topic("orders", 1), topic("orders-eu", 1), topic("other", 1))
    member = subscribing(harness, "m", "orders.*", "other")
    settle((member,))
    assert all(member.partitions(name) == {0} for name in ("orders", "orders-eu", "other"))


def test_topics_that_match_are_assigned_one_heartbeat_after_those_with_names() -> None:
    harness = ConsumerGroupHarness(topic("orders", 1), topic("other", 1))
    member = subscribing(harness, "m", "orders.*", "other")
    member.beat()
    assert (member.partitions("other"), member.partitions("orders")) == ({0}, set())
    assert member.interval_ms == harness.config.consumer.heartbeat_rebalancing_ms
    member.beat()
    assert (member.partitions("other"), member.partitions("orders")) == ({0}, {0})


@pytest.mark.parametrize("regex", ["(", r"(a)\1", "(?=a)b", "a{2000}", "x" * (REGEX_BYTES_MAX + 1)])
def test_what_is_no_expression_of_re2_is_refused(regex: str) -> None:
    harness = ConsumerGroupHarness(topic("a", 1))
    assert subscribing(harness, "m", regex).beat() == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert harness.place.group is None


def test_an_empty_expression_ends_the_subscription_by_expression() -> None:
    harness = ConsumerGroupHarness(topic("a", 1), topic("b", 1))
    member = subscribing(harness, "m", "b", "a")
    settle((member,))
    member.beat(subscribed_topic_regex="")
    settle((member,))
    assert (member.partitions("a"), member.partitions("b")) == ({0}, set())
    assert not harness.group.regexes


def test_a_topic_that_is_made_later_is_found() -> None:
    harness = ConsumerGroupHarness(topic("logs-1", 1))
    first, second = subscribing(harness, "1", "logs-.*"), subscribing(harness, "2", "logs-.*")
    settle((first, second))
    harness.set_topics(topic("logs-1", 1), topic("logs-2", 1))
    settle((first, second))
    parse_assignment = [
        member.partitions("logs-1") | member.partitions("logs-2") for member in (first, second)
    ]
    assert parse_assignment == [{0}, {0}]


def test_a_topic_that_is_deleted_is_subscribed_to_no_longer() -> None:
    harness = ConsumerGroupHarness(topic("logs-1", 1), topic("logs-2", 1))
    first, second = subscribing(harness, "1", "logs-.*"), subscribing(harness, "2", ".*", "logs-2")
    settle((first, second))
    assert harness.group.subscribed_topics == {"logs-1", "logs-2"}
    harness.set_topics(topic("logs-2", 1), topic("other", 1))
    settle((first, second))
    assert harness.group.subscribed_topics == {"logs-2", "other"}
    second.leave()
    settle((first,))
    assert harness.group.subscribed_topics == {"logs-2"}


def test_an_expression_that_matches_nothing_new_begins_no_epoch() -> None:
    harness = ConsumerGroupHarness(topic("logs-1", 1))
    member = subscribing(harness, "m", "logs-.*")
    settle((member,))
    epoch, written = harness.group.epoch, len(harness.log)
    harness.set_topics(topic("logs-1", 1), topic("other", 1))
    settle((member,))
    assert (harness.group.epoch, len(harness.log)) == (epoch, written)


def test_topics_that_the_client_may_not_know_of_do_not_match() -> None:
    harness = ConsumerGroupHarness(topic("logs-1", 1), topic("logs-secret", 1))
    member = subscribing(harness, "m", "logs-.*")
    for _ in range(2):
        member.take(harness.ask(member.request(), can_describe=lambda name: name != "logs-secret"))
    assert member.partitions("logs-1") == {0}
    assert member.partitions("logs-secret") == set()


def test_what_an_expression_means_is_forgotten_with_its_last_subscriber() -> None:
    harness = ConsumerGroupHarness(topic("logs-1", 2))
    first, second = subscribing(harness, "1", "logs-.*"), subscribing(harness, "2", "logs-.*")
    settle((first, second))
    first.leave()
    assert harness.group.regexes.keys() == {"logs-.*"}
    second.leave()
    assert not harness.group.regexes


def test_after_a_restart_expressions_are_looked_at_again() -> None:
    harness = ConsumerGroupHarness(topic("logs-1", 1))
    member = subscribing(harness, "m", "logs-.*")
    settle((member,))
    harness.topics = ConsumerGroupHarness(topic("logs-1", 1), topic("logs-2", 1)).topics
    harness.restart()
    settle((member,))
    assert member.partitions("logs-2") == {0}


def test_with_many_topics_an_expression_is_resolved_in_turns() -> None:
    harness = ConsumerGroupHarness(*(topic(f"logs-{number}", 1) for number in range(50)))
    harness.context.limits = SHORT_TURNS
    member = subscribing(harness, "m", "logs-.*")
    member.beat()
    assert not member.owned
    assert member.interval_ms == harness.config.consumer.heartbeat_rebalancing_ms
    settle((member,), 10)
    assert len(member.owned) == 50
    assert not harness.group.resolving


def test_a_topic_that_is_created_while_an_expression_is_resolved_is_found() -> None:
    topics = [topic(f"logs-{number}", 1) for number in range(50)]
    harness = ConsumerGroupHarness(*topics)
    harness.context.limits = SHORT_TURNS
    member = subscribing(harness, "m", "logs-.*")
    member.beat()
    assert harness.group.resolving
    harness.set_topics(*topics, topic("logs-late", 1))
    settle((member,), 12)
    assert member.partitions("logs-late") == {0}
    assert len(member.owned) == 51


def test_a_resolution_that_nobody_waits_for_is_given_up() -> None:
    harness = ConsumerGroupHarness(topic("a", 1), *(topic(f"logs-{number}", 1) for number in range(50)))
    harness.context.limits = SHORT_TURNS
    first, second = Member(harness, "1"), subscribing(harness, "2", "logs-.*")
    first.beat()
    second.beat()
    assert harness.group.resolving
    second.leave()
    assert not harness.group.resolving
    first.beat()
    assert first.interval_ms == harness.config.consumer.heartbeat_ms


@pytest.mark.parametrize(
    "regex", [".*a.{200}", "(.*a.{100}b.*|.*b.{120}a.*)", "(a|b|ab|ba)*a.{150}(a|b|ab)*c", "(x+x+)+y"]
)
def test_no_expression_keeps_the_loop_for_long(regex: str) -> None:
    names = [f"{'ab' * 120}{number:09}" for number in range(20_000)]
    resolving = RegexResolver(regex, names)
    began = time.process_time()
    assert not resolving.run_chunk()
    assert time.process_time() - began < 0.5  # twenty milliseconds, on a machine that does nothing else


def test_an_expression_is_said_to_be_wrong_in_words() -> None:
    with pytest.raises(ApiError, match="missing"):
        compile_regex("(")
