"""Which failure is tried again, for how long, and what is done before."""

import pytest

from penstock.errors import ErrorCode
from penstock.wire.retry_policy import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    GONE_AFTER_S,
    UNKNOWN_TOPIC_S_MAX,
    Remedy,
    RequestFailure,
    backoff_s,
    failure_of,
    is_gone,
    may_retry,
    remedy_of,
)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Remedy.FIND_LEADER),
        (ErrorCode.FENCED_LEADER_EPOCH, Remedy.FIND_LEADER),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Remedy.FIND_LEADER),
        (ErrorCode.UNKNOWN_TOPIC_ID, Remedy.FIND_LEADER),
        (ErrorCode.KAFKA_STORAGE_ERROR, Remedy.FIND_LEADER),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, Remedy.RETRY),
        (ErrorCode.NOT_ENOUGH_REPLICAS, Remedy.RETRY),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, Remedy.RETRY),
        (ErrorCode.NOT_COORDINATOR, Remedy.FIND_COORDINATOR),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, Remedy.FIND_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, Remedy.GIVE_UP),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, Remedy.GIVE_UP),
        (ErrorCode.CORRUPT_MESSAGE, Remedy.GIVE_UP),
        (ErrorCode.UNKNOWN_SERVER_ERROR, Remedy.GIVE_UP),
    ],
)
def test_each_error_has_its_remedy(code: ErrorCode, remedy: Remedy) -> None:
    assert remedy_of(code) is remedy


def test_an_error_of_a_later_protocol_is_not_tried_again() -> None:
    assert failure_of(32_000) == RequestFailure("error 32000", Remedy.GIVE_UP, 32_000)


def test_the_brokers_own_sentence_is_passed_on_with_advice() -> None:
    failure = failure_of(ErrorCode.MESSAGE_TOO_LARGE, "2000000 bytes.")

    assert failure.what == "MESSAGE_TOO_LARGE (2000000 bytes)"
    assert "max.message.bytes" in failure.advice


def test_what_passes_is_tried_again_until_the_time_is_up() -> None:
    moved = failure_of(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    assert may_retry(moved, spent_s=59.9, timeout_s=60)
    assert not may_retry(moved, spent_s=60, timeout_s=60)


def test_what_does_not_pass_is_not_tried_again() -> None:
    assert not may_retry(failure_of(ErrorCode.INVALID_CONFIG), spent_s=0, timeout_s=60)


def test_an_unknown_topic_has_the_time_that_news_takes_to_spread() -> None:
    unknown = failure_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    assert not is_gone(unknown, was_there=False, absent_s=UNKNOWN_TOPIC_S_MAX - 0.1, timeout_s=60)
    assert is_gone(unknown, was_there=False, absent_s=UNKNOWN_TOPIC_S_MAX, timeout_s=60)
    assert is_gone(unknown, was_there=False, absent_s=2, timeout_s=2)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    ],
)
def test_a_topic_that_was_there_has_the_time_that_a_broker_takes_to_catch_up(code: ErrorCode) -> None:
    lacking = failure_of(code)

    assert not is_gone(lacking, was_there=True, absent_s=GONE_AFTER_S - 0.1, timeout_s=60)
    assert is_gone(lacking, was_there=True, absent_s=GONE_AFTER_S, timeout_s=60)
    assert is_gone(lacking, was_there=True, absent_s=2, timeout_s=2)


def test_trouble_that_says_nothing_of_a_topic_does_not_make_it_gone() -> None:
    moved = failure_of(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    assert not is_gone(moved, was_there=True, absent_s=59, timeout_s=60)


def test_pauses_grow_to_a_bound() -> None:
    pauses = [backoff_s(failures) for failures in range(1, 1000)]

    assert pauses[0] == BACKOFF_S_MIN
    assert pauses == sorted(pauses)
    assert pauses[1] == 2 * pauses[0]
    assert pauses[-1] == BACKOFF_S_MAX
