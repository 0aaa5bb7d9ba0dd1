"""The follower side of one partition: its next fetch, and the handling of the leader's reply.

    fetch ──→ data          append it; the next fetch, after the flush, acknowledges it
          ──→ diverging     the two logs diverge: truncate this one to the divergence offset, fetch again
          ──→ out of range  no record of this log is usable: full truncation to the leader's log start
          ──→ wrong epoch   one of the two brokers lacks the latest metadata: wait for it

A fetch offset is a promise: the leader counts every record below it as stored by this follower. So with flush
policy before_ack the fetch offset is the flushed end, and the follower sends no fetch while anything is
unflushed. The log start offset of a fetch is a promise too: after a crash this log begins there, or later.
The follower reports a moved log start once it is stored (broker/storage/log_start_writer.py).

Rule 1: a log is truncated to the divergence offset, never to the high watermark. The high watermark reaches a
        follower late, and records above it may have been acknowledged to a client (KIP-101).
Rule 2: the high watermark moves only with a reply that confirms that both logs agree up to the fetch offset.
        A reply that reports a divergence changes nothing else (KAFKA-14704).
Rule 3: one `FollowerRole` for one leader epoch. A reply to any fetch but the latest is ignored.
"""

from enum import Enum, auto
from typing import Final, NamedTuple

from penstock.errors import ErrorCode
from penstock.log.follower_append import append_as_follower
from penstock.log.partition_log import PartitionLog
from penstock.log.truncation import FullTruncation, Truncation
from penstock.protocol.messages.fetch import EpochEndOffset, PartitionData
from penstock.types import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset

UNKNOWN_LEADER: Final = -2
"""Leader id of a partition whose leader is unknown: the image still names this broker."""


class FetchPosition(NamedTuple):
    """Position of one fetch, kept to match the reply with it."""

    offset: Offset
    last_fetched_epoch: LeaderEpoch
    log_start_offset: Offset
    """Offset at which this log begins after a crash, if not later."""
    leader_epoch: LeaderEpoch
    truncation_count: int
    """Number of truncations of this log at the time of the fetch. Not sent."""


class Applied(NamedTuple):
    """The reply matched the fetch and was applied."""

    batches: int


class RetryLater(NamedTuple):
    """Fetch again later, or when the metadata has changed."""

    code: ErrorCode


class Ignored(Enum):
    STALE = auto()
    """The reply belongs to a fetch that is no longer the current one."""


FetchOutcome = Applied | Truncation | RetryLater | Ignored
"""A Truncation must be run and ended before the next fetch."""


class FollowerRole:
    """Follower side of one partition in one leader epoch."""

    __slots__ = ("_high_watermark_of_leader", "_log", "high_watermark_before", "leader_epoch", "leader_id")

    def __init__(
        self, leader_id: int, leader_epoch: LeaderEpoch, log: PartitionLog, high_watermark_before: Offset
    ) -> None:
        self.leader_id: Final = leader_id
        self.leader_epoch: Final = leader_epoch
        self.high_watermark_before: Final = high_watermark_before
        """High watermark that this replica knew before it followed this leader."""
        self._log = log
        self._high_watermark_of_leader = NO_OFFSET

    def fetch_position(self, *, flushed_only: bool) -> FetchPosition | None:
        """Position of the next fetch; None: records must first be flushed, or a truncation must end."""
        log = self._log
        if log.is_truncating or (flushed_only and log.flushed_end_offset < log.log_end_offset):
            return None
        has_records = log.log_start_offset < log.log_end_offset
        return FetchPosition(
            log.log_end_offset,
            log.epochs.latest if has_records else NO_EPOCH,
            log.stored_start,
            self.leader_epoch,
            log.truncation_count,
        )

    def handle_fetch_response(self, fetch_position: FetchPosition, answer: PartitionData) -> FetchOutcome:
        """Apply the leader's reply, or return the truncation that it requires.

        CorruptData: no leader can have stored these records. StorageFull, StorageFailed: the disk of this
        broker.
        """
        log = self._log
        if self._is_stale(fetch_position):
            return Ignored.STALE
        code = known_code(answer.error_code)
        # A checkpoint or swap that is under way would bring back the files that a truncation removes.
        if not log.may_truncate and self._changes_files(code, answer):
            return RetryLater(ErrorCode.NONE)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and answer.log_start_offset >= 0:
            return FullTruncation(log, Offset(answer.log_start_offset))
        if code is not ErrorCode.NONE:
            return RetryLater(code)
        if answer.diverging_epoch.end_offset >= 0:
            return self._truncate(answer.diverging_epoch)
        return self._apply(answer)

    def _is_stale(self, fetch_position: FetchPosition) -> bool:
        log = self._log
        is_same = (
            # A reply to a fetch before a truncation describes a log that no longer exists, even where its
            # offset fits again.
            fetch_position.leader_epoch == self.leader_epoch
            and fetch_position.truncation_count == log.truncation_count
        )
        return log.is_truncating or not is_same or fetch_position.offset != log.log_end_offset

    def _changes_files(self, code: ErrorCode, answer: PartitionData) -> bool:
        return (
            code is ErrorCode.OFFSET_OUT_OF_RANGE
            or answer.diverging_epoch.end_offset >= 0
            or self._log.is_empty
        )

    def _truncate(self, diverging: EpochEndOffset) -> FetchOutcome:
        log = self._log
        offset = divergence_offset(log, diverging)
        return Truncation(log, offset) if offset > log.log_start_offset else FullTruncation(log, offset)

    def _apply(self, answer: PartitionData) -> Applied:
        log, batches = self._log, 0
        if answer.records:
            assert isinstance(answer.records, bytes | bytearray | memoryview), "of one piece"
            records = memoryview(answer.records)
            writable = memoryview(bytearray(records)) if records.readonly else records
            batches = append_as_follower(log, writable, self.leader_epoch)
        # After the append: the high watermark must not cover records that are not in this log yet.
        self._high_watermark_of_leader = Offset(answer.high_watermark)
        # The leader's log start may lie past the records fetched so far.
        start = min(Offset(answer.log_start_offset), log.log_end_offset)
        if start > log.log_start_offset:
            log.advance_start(start)
        return Applied(batches)

    def high_watermark(self, own_end: Offset) -> Offset:
        """High watermark of a log whose records count up to `own_end`. NO_OFFSET: not known yet."""
        return min(self._high_watermark_of_leader, own_end)

    def lag(self, log_end_offset: Offset) -> int | None:
        """Number of visible records of the leader, at its last reply, that are missing here; None:
        unknown.
        """
        known = self._high_watermark_of_leader
        return None if known == NO_OFFSET else max(0, known - log_end_offset)

    def __repr__(self) -> str:
        high = self._high_watermark_of_leader
        return f"<Following {self.leader_id} epoch={self.leader_epoch} leader's high={high}>"


def known_code(code: int) -> ErrorCode:
    """Map an error code to ErrorCode. The follower retries after a code of a newer release."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def divergence_offset(log: PartitionLog, leader: EpochEndOffset) -> Offset:
    """Compute up to where this log may agree with the leader's, from the leader's reply.

    `leader` names the leader's latest epoch that is not above the follower's, and its end offset. If this log
    has records of that epoch, both logs agree at most up to the smaller of the two ends. If it has none, all
    its records above the previous epoch differ; the next fetch shows whether older ones do.
    """
    epoch, end = log.epochs.end_of(LeaderEpoch(leader.epoch), log.log_end_offset)
    if epoch == NO_EPOCH:
        return log.log_start_offset
    return max(min(end, Offset(leader.end_offset)), log.log_start_offset)
