"""What a failure means for whoever asked: try again, look again who leads, or give up. Pure.

Rule 1: whatever passes by itself is tried again, as long as the caller has time; nothing else is.
Rule 2: a topic that no broker knows passes only right after its creation, while the news spreads. That is
        given some seconds and not the whole time, because a misspelt name is the likelier reason.
Rule 3: a topic that was there, and that brokers do not know or have under another id, may be there still: a
        broker may have just started, or may be cut off from the metadata store. It is gone when all answers
        lacked it for `topic_gone_after_s`.
Rule 4: an error this table does not know is not tried again.
"""

from enum import Enum, auto
from typing import Final, NamedTuple

from penstock.errors import ErrorCode
from penstock.types import TopicPartition


class Remedy(Enum):
    RETRY = auto()
    """The same broker, after a pause."""
    FIND_LEADER = auto()
    """Metadata is out of date: ask for it and go where it says."""
    FIND_COORDINATOR = auto()
    """Groups have moved: ask who coordinates."""
    GIVE_UP = auto()


class RequestFailure(NamedTuple):
    """Why an attempt failed."""

    what: str
    remedy: Remedy
    code: int = ErrorCode.NONE
    """The broker's; none if it is the connection that failed."""
    advice: str = ""
    partition: TopicPartition | None = None
    """The partition that it is about, if it is about one."""


BACKOFF_S_MIN: Final = 0.02
BACKOFF_S_MAX: Final = 1.0
_PAUSE_GROWTH: Final = 2
UNKNOWN_TOPIC_S_MAX: Final = 5.0
"""How long a topic is looked for that no broker has described."""
GONE_AFTER_S: Final = 30.0
"""How long all answers have to lack a topic that was there before it counts as gone."""

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,  # the broker is the one whose metadata is old
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_PRODUCER_ID,  # nothing was written; with a new id it will be
    }
)
_UNKNOWN_TOPIC: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
_FIND_LEADER: Final = _UNKNOWN_TOPIC | {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.KAFKA_STORAGE_ERROR,  # leadership may move away from the failed disk
    ErrorCode.LISTENER_NOT_FOUND,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INCONSISTENT_TOPIC_ID,
}
_FIND_COORDINATOR: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})

_ADVICE: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Check the name of the topic and the number of the partition.",
    ErrorCode.UNKNOWN_TOPIC_ID: "The topic may have been deleted.",
    ErrorCode.INCONSISTENT_TOPIC_ID: "Begin again with the topic that has the name now.",
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
    """What a broker's error code means, with its own sentence where it gave one."""
    what = f"{error_name(code)} ({detail.rstrip('.')})" if detail else error_name(code)
    advice = next((advice for known, advice in _ADVICE.items() if known == code), "")
    return RequestFailure(what, remedy_of(code), code, advice)


def is_unknown_topic(failure: RequestFailure) -> bool:
    return failure.code in _UNKNOWN_TOPIC


def is_other_topic(failure: RequestFailure) -> bool:
    return failure.code == ErrorCode.INCONSISTENT_TOPIC_ID


def may_retry(failure: RequestFailure, *, spent_s: float, timeout_s: float) -> bool:
    """`spent_s`: when the next attempt would begin, counted from the first or the last that got somewhere."""
    return failure.remedy is not Remedy.GIVE_UP and spent_s < timeout_s


def topic_gone_after_s(timeout_s: float) -> float:
    """How long all answers have to lack a topic that was there, for callers who have this much time."""
    return min(GONE_AFTER_S, timeout_s)


def is_gone(failure: RequestFailure, *, was_there: bool, absent_s: float, timeout_s: float) -> bool:
    """Whether a topic that brokers lack is not looked for any longer.

    `absent_s`: when the next attempt would begin, counted from the first answer of all those that lacked it.
    """
    if is_other_topic(failure) or (is_unknown_topic(failure) and was_there):
        return absent_s >= topic_gone_after_s(timeout_s)
    return is_unknown_topic(failure) and absent_s >= min(UNKNOWN_TOPIC_S_MAX, timeout_s)


def backoff_s(failures: int) -> float:
    """How long to wait after so many failures in a row; each time twice as long, up to a second."""
    assert failures >= 1
    return float(min(BACKOFF_S_MIN * _PAUSE_GROWTH ** min(failures - 1, 10), BACKOFF_S_MAX))


def error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
