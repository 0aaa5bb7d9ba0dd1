"""The retry policy: decides whether to retry a failure, look up the leader again, or give up. Pure.

Rule 1: transient failures are retried as long as the caller has time; other failures are not.
Rule 2: a topic that no broker knows is transient only right after its creation, while metadata spreads. It
        is retried for some seconds and not the whole time, because a misspelt name is the likelier cause.
Rule 3: a topic that was seen before, and that brokers no longer know or have with another id, may still
        exist: a broker may have just started, or may be partitioned from the metadata store. The topic
        counts as gone when all replies lacked it for `topic_gone_after_s`.
Rule 4: an error code that is not in this table is not retried.
"""

from enum import Enum, auto
from typing import Final, NamedTuple

from penstock.errors import ErrorCode
from penstock.types import TopicPartition


class Remedy(Enum):
    RETRY = auto()
    """Retry on the same broker after a pause."""
    FIND_LEADER = auto()
    """Metadata is stale: refresh it and use the new leader."""
    FIND_COORDINATOR = auto()
    """The group's coordinator moved: look it up again."""
    GIVE_UP = auto()


class RequestFailure(NamedTuple):
    """The failure of one attempt."""

    what: str
    remedy: Remedy
    code: int = ErrorCode.NONE
    """Error code of the broker; NONE if the connection failed."""
    advice: str = ""
    partition: TopicPartition | None = None
    """Partition of the failure, if it concerns one."""


BACKOFF_S_MIN: Final = 0.02
BACKOFF_S_MAX: Final = 1.0
_PAUSE_GROWTH: Final = 2
UNKNOWN_TOPIC_S_MAX: Final = 5.0
"""Retry time for a topic that no broker has described."""
GONE_AFTER_S: Final = 30.0
"""Time for which all replies must lack a known topic before it counts as gone."""

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,  # it is the broker whose metadata is stale
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_PRODUCER_ID,  # nothing was written; a retry uses a new id
    }
)
_UNKNOWN_TOPIC: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
_FIND_LEADER: Final = _UNKNOWN_TOPIC | {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.KAFKA_STORAGE_ERROR,  # leadership may move to a broker with a working disk
    ErrorCode.LISTENER_NOT_FOUND,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INCONSISTENT_TOPIC_ID,
}
_FIND_COORDINATOR: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})

_ADVICE: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Check the name of the topic and the number of the partition.",
    ErrorCode.UNKNOWN_TOPIC_ID: "The topic may have been deleted.",
    ErrorCode.INCONSISTENT_TOPIC_ID: "Begin again with the new topic of this name.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Ask for access to the topic.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Ask for access to the group.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Ask for access to the cluster.",
    ErrorCode.MESSAGE_TOO_LARGE: "Write smaller batches, or raise max.message.bytes of the topic.",
    ErrorCode.RECORD_LIST_TOO_LARGE: "Write smaller batches, or raise segment.bytes of the topic.",
    ErrorCode.KAFKA_STORAGE_ERROR: "See the broker's log: its disk failed or is full.",
    ErrorCode.UNKNOWN_MEMBER_ID: "The group has members; only they may commit. Use another group.",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (
        "The partition lacks records of this producer that were acknowledged, as after an unclean leader "
        "election: compare what was written. The next write begins with a new producer id."
    ),
    ErrorCode.INVALID_PRODUCER_EPOCH: "Another producer has this id. The next write begins with a new one.",
    ErrorCode.INVALID_RECORD: "A compacted topic takes only records that have a key.",
}


def remedy_of(code: int) -> Remedy:
    if code in _FIND_LEADER:
        return Remedy.FIND_LEADER
    if code in _FIND_COORDINATOR:
        return Remedy.FIND_COORDINATOR
    return Remedy.RETRY if code in _RETRIABLE else Remedy.GIVE_UP


def failure_of(code: int, detail: str | None = None) -> RequestFailure:
    """Describe a broker's error code, with the broker's message if it sent one."""
    what = f"{error_name(code)} ({detail.rstrip('.')})" if detail else error_name(code)
    advice = next((advice for known, advice in _ADVICE.items() if known == code), "")
    return RequestFailure(what, remedy_of(code), code, advice)


def is_unknown_topic(failure: RequestFailure) -> bool:
    return failure.code in _UNKNOWN_TOPIC


def is_other_topic(failure: RequestFailure) -> bool:
    return failure.code == ErrorCode.INCONSISTENT_TOPIC_ID


def may_retry(failure: RequestFailure, *, spent_s: float, timeout_s: float) -> bool:
    """Whether to retry. `spent_s`: time from the first attempt, or the last progress, to the next attempt."""
    return failure.remedy is not Remedy.GIVE_UP and spent_s < timeout_s


def topic_gone_after_s(timeout_s: float) -> float:
    """Time for which all replies must lack a known topic, for a call with this timeout."""
    return min(GONE_AFTER_S, timeout_s)


def is_gone(failure: RequestFailure, *, was_there: bool, absent_s: float, timeout_s: float) -> bool:
    """Whether to stop retrying a topic that brokers lack.

    `absent_s`: time from the first of the replies that lacked the topic to the next attempt.
    """
    if is_other_topic(failure) or (is_unknown_topic(failure) and was_there):
        return absent_s >= topic_gone_after_s(timeout_s)
    return is_unknown_topic(failure) and absent_s >= min(UNKNOWN_TOPIC_S_MAX, timeout_s)


def backoff_s(failures: int) -> float:
    """Pause after this many failures in a row; it doubles each time, up to a second."""
    assert failures >= 1
    return float(min(BACKOFF_S_MIN * _PAUSE_GROWTH ** min(failures - 1, 10), BACKOFF_S_MAX))


def error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
