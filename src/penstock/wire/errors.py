"""What a client of a cluster can be told, each as a sentence for whoever reads the log.

Rule 1: a message names what was asked, of whom, and what to do about it.
Rule 2: they are made from what they hold, so that they can cross from one process to another.
"""

from penstock.types import Offset, TopicPartition


class WireError(Exception):
    """The cluster cannot do, or did not in time do, what it was asked."""


class Unreachable(WireError):
    """No broker could be talked to in the time that was allowed."""


class TopicUnknown(WireError):
    """A topic or a partition that the cluster does not have."""


class TopicReplaced(WireError):
    """A topic of this name exists, but it is not the one that reading began with."""


class RecordsTooLarge(WireError):
    """The broker takes no batch of this size."""


class RequestRejected(WireError):
    """The broker understood and will not; asking again changes nothing."""


class OffsetOutOfRange(WireError):
    """The records at this offset are not there: retention removed them, or they were never written."""

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
