"""What a follower asks its leader next, and what it does with the answer.

    ask ──→ data          append it; the next ask, after the flush, acknowledges it
        ──→ diverging     our history and the leader's part: cut ours there, and ask again
        ──→ out of range  nothing of ours is of use to this leader: begin anew where its log starts
        ──→ wrong epoch   one of us has not heard of the latest leader yet: wait for metadata

A fetch offset is a promise: the leader counts everything below it as stored here. So with flush policy
before_ack it is the flushed end, and while anything is unflushed nothing is asked. The log start of a fetch
is a promise, too: after a crash this log begins there, or later. A start that has moved is reported when it
is stored (broker/storage/log_start_writer.py).

Rule 1: a log is cut where lineages part, never at the high watermark: that comes late to a follower, and
        what lies above it may have been acknowledged to a client (KIP-101).
Rule 2: the high watermark moves only with an answer that says our histories are one up to the offset
        we asked for; an answer that says they part changes nothing else (KAFKA-14704).
Rule 3: one object for one leader epoch. An answer to another ask than the last is passed over.
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
"""Leads, and we are not told who: the image still has ourselves."""


class FetchPosition(NamedTuple):
    offset: Offset
    last_fetched_epoch: LeaderEpoch
    log_start_offset: Offset
    """Where our log begins after a crash, if not later."""
    leader_epoch: LeaderEpoch
    truncation_count: int
    """How often our log had been cut then. It is not sent."""


class Applied(NamedTuple):
    """The answer was ours and is used up."""

    batches: int


class RetryLater(NamedTuple):
    """Ask again later, or when the metadata has changed."""

    code: ErrorCode


class Ignored(Enum):
    STALE = auto()
    """The answer was to something that we no longer ask."""


FetchOutcome = Applied | Truncation | FullTruncation | RetryLater | Ignored
"""A Truncation or BeginningAnew is to be run and ended before the next ask."""


class FollowerRole:
    __slots__ = ("_high_watermark_of_leader", "_log", "high_watermark_before", "leader_epoch", "leader_id")

    def __init__(
        self, leader_id: int, leader_epoch: LeaderEpoch, log: PartitionLog, high_watermark_before: Offset
    ) -> None:
        self.leader_id: Final = leader_id
        self.leader_epoch: Final = leader_epoch
        self.high_watermark_before: Final = high_watermark_before
        """The high watermark that was known before this leader."""
        self._log = log
        self._high_watermark_of_leader = NO_OFFSET

    def fetch_position(self, *, flushed_only: bool) -> FetchPosition | None:
        """None: something must become durable, or be cut, before."""
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
        """CorruptData: no leader can have stored what came. StorageFull, StorageFailed: our disk."""
        log = self._log
        if self._is_stale(fetch_position):
            return Ignored.STALE
        code = known_code(answer.error_code)
        if log.is_busy and self._changes_files(code, answer):
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
        self._high_watermark_of_leader = Offset(answer.high_watermark)
        start = min(Offset(answer.log_start_offset), log.log_end_offset)
        if start > log.log_start_offset:
            log.advance_start(start)
        return Applied(batches)

    def high_watermark(self, own_end: Offset) -> Offset:
        """What may be shown of a log whose records count up to `own_end`. NO_OFFSET: not known yet."""
        return min(self._high_watermark_of_leader, own_end)

    def lag(self, log_end_offset: Offset) -> int | None:
        """How many records the leader had shown that are not here, when it answered last; None: not known."""
        known = self._high_watermark_of_leader
        return None if known == NO_OFFSET else max(0, known - log_end_offset)

    def __repr__(self) -> str:
        high = self._high_watermark_of_leader
        return f"<Following {self.leader_id} epoch={self.leader_epoch} leader's high={high}>"


def known_code(code: int) -> ErrorCode:
    """A leader of a newer release may have codes that this one does not know: asked again, it may not."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def divergence_offset(log: PartitionLog, leader: EpochEndOffset) -> Offset:
    """Up to where our records may be the leader's, who says where its latest epoch not above ours ends.

    Where we have records of that epoch, the shorter of the two is what both have. Where we have none,
    all of ours above the epoch before it are others'; the next ask tells whether those below are not.
    """
    epoch, end = log.epochs.end_of(LeaderEpoch(leader.epoch), log.log_end_offset)
    if epoch == NO_EPOCH:
        return log.log_start_offset
    return max(min(end, Offset(leader.end_offset)), log.log_start_offset)
