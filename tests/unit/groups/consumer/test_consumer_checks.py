"""Who may commit and read offsets in the name of a consumer group, and what is shown of the group."""

import pytest

from penstock.errors import ApiError, ErrorCode
from penstock.groups.consumer.describe import describe
from penstock.groups.consumer.request_validation import validate_commit, validate_fetch
from penstock.protocol.messages.consumer_group_describe import DescribedTopicPartitions
from tests.unit.groups.consumer.consumer_support import GROUP, Member, World, settle, topic, topic_id


@pytest.fixture
def world() -> World:
    world = World(topic("a", 4), topic("b", 1))
    first, second = Member(world, "1"), Member(world, "2", "i2", rack_id="r", server_assignor="range")
    settle((first, second))
    return world


def refused(code: ErrorCode) -> "pytest.RaisesExc[ApiError]":
    return pytest.raises(ApiError, check=lambda refusal: refusal.code is code)


def test_a_member_commits_at_its_epoch(world: World) -> None:
    validate_commit(world.group, "1", world.group.members["1"].epoch, 9)


@pytest.mark.parametrize("epoch", [-1, 0, 1, 99])
def test_a_commit_at_another_epoch_is_stale(world: World, epoch: int) -> None:
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        validate_commit(world.group, "1", epoch, 9)
    with refused(ErrorCode.STALE_MEMBER_EPOCH):
        validate_fetch(world.group, "1", epoch)


def test_a_commit_that_could_not_be_told_that_it_is_stale_is_refused(world: World) -> None:
    with refused(ErrorCode.UNSUPPORTED_VERSION):
        validate_commit(world.group, "1", 2, 8)


def test_nobody_else_commits_while_there_are_members(world: World) -> None:
    for member_id in ("", "x"):
        with refused(ErrorCode.UNKNOWN_MEMBER_ID):
            validate_commit(world.group, member_id, -1, 9)


def test_anybody_commits_to_an_empty_group() -> None:
    world = World(topic("a", 4))
    member = Member(world, "m")
    member.beat()
    member.leave()
    validate_commit(world.group, "", -1, 2)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        validate_commit(world.group, "m", 1, 9)


def test_offsets_are_read_by_anybody_who_does_not_claim_to_be_a_member(world: World) -> None:
    validate_fetch(world.group, None, -1)
    validate_fetch(world.group, "1", world.group.members["1"].epoch)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        validate_fetch(world.group, "x", 2)


def test_a_static_member_that_is_away_does_not_commit(world: World) -> None:
    away = Member(world, "2", "i2")
    away.leave(-2)
    for epoch in (-2, 2):
        with refused(ErrorCode.STALE_MEMBER_EPOCH):
            validate_commit(world.group, "2", epoch, 9)


def test_a_group_is_shown_with_what_everybody_reads_and_shall_read(world: World) -> None:
    shown = describe(world.group, world.topics, world.config.consumer.assignors)
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


def test_topics_that_are_gone_are_not_shown(world: World) -> None:
    world.set_topics(topic("b", 1))
    shown = describe(world.group, world.topics, ("uniform",))
    assert all(not member.assignment.topic_partitions for member in shown.members)


def test_a_group_says_what_it_subscribes_to(world: World) -> None:
    assert world.group.subscribed_topics == {"a"}
