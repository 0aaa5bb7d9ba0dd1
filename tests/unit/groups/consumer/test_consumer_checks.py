"""Who may commit and read offsets in the name of a consumer group, and what is shown of the group."""

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.groups.consumer.describe import describe
from penstock.groups.consumer.request_validation import validate_commit, validate_fetch
from penstock.protocol.messages.consumer_group_describe import DescribedTopicPartitions
from tests.unit.groups.consumer.consumer_support import (
    GROUP,
    ConsumerGroupHarness,
    Member,
    settle,
    topic,
    topic_id,
)


@pytest.fixture
def harness() -> ConsumerGroupHarness:
    harness = ConsumerGroupHarness(topic("a", 4), topic("b", 1))
    first, second = Member(harness, "1"), Member(harness, "2", "i2", rack_id="r", server_assignor="range")
    settle((first, second))
    return harness


def refused(code: ErrorCode) -> "pytest.RaisesExc[ApiError]":
    return pytest.raises(ApiError, check=lambda rejection: rejection.code is code)


def test_a_member_commits_at_its_epoch(harness: ConsumerGroupHarness) -> None:
    validate_commit(harness.group, "1", harness.group.members["1"].epoch, 9)


@pytest.mark.parametrize("epoch", [-1, 0, 1, 99])
def test_a_commit_at_another_epoch_is_stale(harness: ConsumerGroupHarness, epoch: int) -> None:
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        validate_commit(harness.group, "1", epoch, 9)
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        validate_fetch(harness.group, "1", epoch)


def test_a_commit_that_could_not_be_told_that_it_is_stale_is_refused(harness: ConsumerGroupHarness) -> None:
    with refused(ErrorCode.UNSUPPORTED_VERSION):
        validate_commit(harness.group, "1", 2, 8)


def test_nobody_else_commits_while_there_are_members(harness: ConsumerGroupHarness) -> None:
    for member_id in ("", "x"):
        with refused(ErrorCode.UNKNOWN_MEMBER_ID):
            validate_commit(harness.group, member_id, -1, 9)


def test_anybody_commits_to_an_empty_group() -> None:
    harness = ConsumerGroupHarness(topic("a", 4))
    member = Member(harness, "m")
    member.beat()
    member.leave()
    validate_commit(harness.group, "", -1, 2)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        validate_commit(harness.group, "m", 1, 9)


def test_offsets_are_read_by_anybody_who_does_not_claim_to_be_a_member(harness: ConsumerGroupHarness) -> None:
    validate_fetch(harness.group, None, -1)
    validate_fetch(harness.group, "1", harness.group.members["1"].epoch)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        validate_fetch(harness.group, "x", 2)


def test_a_static_member_that_is_away_does_not_commit(harness: ConsumerGroupHarness) -> None:
    left_temporarily = Member(harness, "2", "i2")
    left_temporarily.leave(-2)
    for epoch in (-2, 2):
        with refused(ErrorCode.STALE_MEMBER_EPOCH):
            validate_commit(harness.group, "2", epoch, 9)


def test_a_group_is_shown_with_what_everybody_reads_and_shall_read(harness: ConsumerGroupHarness) -> None:
    shown = describe(harness.group, harness.topics, harness.config.consumer.assignors)
    assert (shown.group_id, shown.group_state, shown.assignor_name) == (GROUP, "Stable", "range")
    assert (shown.group_epoch, shown.assignment_epoch) == (2, 2)
    members = {member.member_id: member for member in shown.members}
    assert members["2"].instance_id == "i2"
    assert members["2"].rack_id == "r"
    assert members["2"].subscribed_topic_names == ["a"]
    assert members["2"].member_type == 1
    given = DescribedTopicPartitions(topic_id("a"), "a", [0, 1])
    assert members["2"].assignment.topic_partitions == [given]
    assert members["2"].target_assignment.topic_partitions == [given]


def test_topics_that_are_gone_are_not_shown(harness: ConsumerGroupHarness) -> None:
    harness.set_topics(topic("b", 1))
    shown = describe(harness.group, harness.topics, ("uniform",))
    assert all(not member.assignment.topic_partitions for member in shown.members)


def test_a_group_says_what_it_subscribes_to(harness: ConsumerGroupHarness) -> None:
    assert harness.group.subscribed_topics == {"a"}
