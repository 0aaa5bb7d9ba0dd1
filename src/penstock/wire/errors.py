"""The errors of the cluster client, each a complete sentence for a log.

Rule 1: a message names the request, its target, and the remedy.
Rule 2: each error is constructed from its own fields, so that it can be pickled between processes.
"""

from penstock.types import Offset, TopicPartition
from penstock.wire.retry_policy import RequestFailure


class WireError(Exception):
    """The cluster rejected a request, or did not complete it in time."""

    failure: RequestFailure | None = None
    """Failure of the last attempt, for callers with words of their own; None if nothing was attempted."""


class Unreachable(WireError):
    """No broker was reachable within the time limit."""


class TopicUnknown(WireError):
    """The topic or partition does not exist in the cluster."""


class TopicReplaced(WireError):
    """The topic was replaced by another topic of the same name since reading began."""


class RecordsTooLarge(WireError):
    """The broker rejects batches of this size."""


class RequestRejected(WireError):
    """The broker rejected the request permanently; a retry changes nothing."""


class OffsetOutOfRange(WireError):
    """The records at this offset do not exist: retention removed them, or they were never written."""

    def __init__(
        self, partition: TopicPartition, requested: Offset, log_start: Offset, log_end: Offset
    ) -> None:
        super().__init__(partition, requested, log_start, log_end)
        self.partition = partition
        self.requested = requested
        self.log_start = log_start
        self.log_end = log_end

    def __str__(self) -> str:
        why = (
            "retention removed it" if self.requested < self.log_start else "it was never written, or was lost"
        )
        return (
            f"offset {self.requested} of {self.partition} is gone: {why}; "
            f"there are offsets {self.log_start} to {self.log_end} (exclusive)"
        )
