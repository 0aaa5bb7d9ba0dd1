"""One replica of a partition: its log, leader epoch, high watermark, and the requests that wait for it.

Readers, acknowledgements and lookups see nothing past the high watermark. This replica's own records count

    flush policy before_ack     up to the flushed end: an unflushed record is never visible
    flush policy interval, os   up to the end of the log

and the role turns that own end into the high watermark:

    the only replica   the own end
    leading            the smallest of it and of the ends of the in-sync followers (replication/leading.py)
    following          the smaller of it and of the leader's high watermark (replication/following.py)

Rule 1: the high watermark never moves back while this process leads.
Rule 2: a partition with lost or corrupt data on disk is damaged, and offline. It answers KAFKA_STORAGE_ERROR,
        changes nothing, and takes part in no later leader epoch.
Rule 3: an object has one leader epoch. For the next epoch another object takes over the log, and every
        request that waits here fails with NOT_LEADER_OR_FOLLOWER (`resign`).
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.config.topic import FlushPolicy, TopicConfig
from penstock.errors import ApiError, ErrorCode
from penstock.host.keyed_jobs import KeyedJobQueue
from penstock.limits import INDEX_BYTES_MAX, INDEX_INTERVAL_BYTES_MAX
from penstock.log.deep_validation import (
    DeepValidation,
    ValidatedBatch,
    needs_deep_validation,
    requires_record_checks,
)
from penstock.log.partition_log import Flush, LogSettings, PartitionLog
from penstock.log.reading.cold_reading import BatchesRead, ColdRead, LoadedIndexes
from penstock.log.reading.time_lookup import TimedSegment, TimeLookup
from penstock.log.validation import FastCheckLimits, check_batch_header, passes_fast_checks, read_batch
from penstock.protocol.batches import BatchHeader, parse_header
from penstock.protocol.control_batches import EndTransactionMarker, marker_batch
from penstock.protocol.messages.fetch import EpochEndOffset, FetchPartition, PartitionData
from penstock.replication.following import Applied, FetchOutcome, FetchPosition, FollowerRole, Ignored
from penstock.replication.leading import (
    CommittedPartitionState,
    FollowerFetchResult,
    FollowerFetchState,
    IsrProposal,
    LeaderRole,
)
from penstock.replication.produce_waits import ProduceWaits
from penstock.replication.uncommitted_ends import UncommittedEnds
from penstock.types import NO_EPOCH, NO_TIMESTAMP, LeaderEpoch, Offset, TopicId, TopicPartition

# A constant: looking an enum member up in its class costs as much as all the rest of a comparison.
BEFORE_ACK = FlushPolicy.BEFORE_ACK


class Appended(msgspec.Struct, frozen=True, gc=False):
    base_offset: Offset
    end_offset: Offset
    log_append_time_ms: int
    """-1 unless the topic uses log append time."""


class Partition:
    __slots__ = (
        "_config",
        "_fast_check_limits",
        "_needs_deep_validation",
        "_on_dirty",
        "_requires_record_checks",
        "_uncommitted",
        "batches_waiting",
        "committed_bytes",
        "disk_error",
        "fetch_waits",
        "flush_policy",
        "follower_waits",
        "following",
        "high_watermark",
        "high_watermark_waits",
        "is_damaged",
        "job_queue",
        "leader_epoch",
        "leading",
        "log",
        "min_isr_error",
        "name",
        "offline_error",
        "own_end_waits",
        "partition_count",
        "read_only_error",
        "replica_waits",
        "topic_id",
    )

    def __init__(
        self,
        name: TopicPartition,
        topic_id: TopicId,
        leader_epoch: LeaderEpoch,
        log: PartitionLog,
        config: TopicConfig,
        on_dirty: Callable[["Partition"], None],
        role: LeaderRole | FollowerRole | None = None,
    ) -> None:
        """`role`: None if this is the only replica."""
        self.name = name
        self.topic_id = topic_id
        self.leader_epoch: Final = leader_epoch
        """Never changes: what was derived for this epoch stays valid for this object."""
        self.log = log
        self.offline_error: ApiError | None = None
        """Reason why this partition cannot be used; None while it is online."""
        self.is_damaged = False
        """Offline for good, because of the data on its disk. No leader epoch makes it usable."""
        self.read_only_error: ApiError | None = None
        """Reason why producers are rejected; committed records can still be read."""
        self.disk_error: ApiError | None = None
        """Disk failure; None while the disk works."""
        self.min_isr_error: ApiError | None = None
        """Reason why a produce with acks=all is rejected."""
        self.high_watermark_waits = ProduceWaits()
        """Produce requests that wait for the high watermark to pass their records."""
        self.own_end_waits = self.high_watermark_waits
        """Produce requests (acks=1) that wait until this leader alone has their records; the same object as
        `high_watermark_waits` if this is the only replica."""
        self._uncommitted = UncommittedEnds()
        self.leading: LeaderRole | None = None
        """State of a leader that has followers. None: this replica follows, or is the only one and leads
        (`is_only_replica`)."""
        self.following: FollowerRole | None = None
        """State of a follower; None: this replica leads."""
        self.fetch_waits: dict[Callable[[int], None], int] = {}
        """Called with the number when there is more to read, or on a failure. Ordered, for fairness."""
        self.follower_waits: dict[Callable[[int], None], int] = {}
        """The same for fetches of followers, which read to the end of the log."""
        self.replica_waits: dict[Callable[[], None], None] = {}
        """Called when what the leader knows of a replica changed, or the partition failed. DeleteRecords
        waits here; fetches of followers wait in `follower_waits`."""
        self.committed_bytes = 0
        """Bytes that came below the high watermark since this process leads."""
        self.partition_count = 1
        self._on_dirty = on_dirty
        """Called when there is something to sync: `Storage._written`, which asks the flusher for it."""
        self.job_queue: KeyedJobQueue | None = None
        """Runs long validations; None: all run at once."""
        self.batches_waiting = 0
        """Batches that were offered and are not stored yet."""
        self._needs_deep_validation = self._requires_record_checks = False
        self.high_watermark = log.flushed_end_offset
        self._configure(config)
        if isinstance(role, FollowerRole):
            self._follow(role)
        elif role is not None:
            self.lead(role)
        self.advance()
        log.transactions.settle(self.high_watermark)
        if role is not None and (log.flushed_end_offset < log.log_end_offset or log.needs_checkpoint):
            on_dirty(self)  # the flush requests of the previous object may be lost

    # Role

    def lead(self, leading: LeaderRole) -> None:
        """Lead a partition that has other replicas, or may get them."""
        self.leading = leading
        self.own_end_waits = ProduceWaits()
        self.high_watermark = leading.high_watermark
        self._check_min_isr(leading)

    def _follow(self, following: FollowerRole) -> None:
        self.following = following
        self.high_watermark = self._clamp_to_log(following.high_watermark_before)
        self.read_only_error = ApiError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {following.leader_id} leads {self.name}"
        )

    def _clamp_to_log(self, offset: Offset) -> Offset:
        return min(max(offset, self.log.log_start_offset), self.log.log_end_offset)

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads, with followers or as the only one."""
        return self.following is None

    @property
    def is_only_replica(self) -> bool:
        """Whether this replica leads and no other exists, so that its own end is the high watermark."""
        return self.leading is None and self.following is None

    def require_leader(self) -> None:
        if self.following is not None:
            assert self.read_only_error is not None, "a follower takes nothing from producers"
            raise self.read_only_error.again()

    def require_end_known(self) -> None:
        """Raise ApiError while an earlier leader may have made more visible than this one does (KIP-207)."""
        if self.leading is not None and not self.leading.is_caught_up:
            raise ApiError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"followers have not confirmed everything below {self.leading.epoch_start} yet",
            )

    def resign(self) -> None:
        """Fail all waits: another object takes over the log."""
        self.go_offline(
            f"leader epoch {self.leader_epoch} of {self.name} is over", ErrorCode.NOT_LEADER_OR_FOLLOWER
        )

    # Configuration

    @property
    def config(self) -> TopicConfig:
        return self._config

    def reconfigure(self, config: TopicConfig) -> None:
        before = self.flush_policy
        self._configure(config)
        if before is not self.flush_policy and self.flush_policy is BEFORE_ACK and self.log.is_dirty:
            # Records acknowledged before the change may not be on disk, and from now on the cluster assumes
            # they are (metadata/durability.py). A follower fetches nothing until they are flushed.
            self._on_dirty(self)

    def _configure(self, config: TopicConfig) -> None:
        self._config = config
        self._needs_deep_validation, self._requires_record_checks = (
            needs_deep_validation(config),
            requires_record_checks(config),
        )
        self._fast_check_limits = FastCheckLimits.of(config)
        self.flush_policy = config.flush_policy
        self.log.settings = log_settings(config)

    # Writing

    def append_now(self, payload: memoryview | None, now_ms: int) -> Appended:
        """Append one batch as leader without a queue, for coordinators. Writes into `payload`.

        ApiError: rejected. StorageFull: no space, nothing changed. StorageFailed: the disk failed.
        """
        answer = self.try_append(payload, now_ms)
        return self.append_validated(answer.run()) if isinstance(answer, DeepValidation) else answer

    def try_append(
        self, payload: memoryview | None, now_ms: int, *, allows_transactions: bool = False
    ) -> Appended | DeepValidation:
        """Append the batch if that is quick; else return a DeepValidation to run elsewhere and to store.

        While one batch is in validation, every later one gets a DeepValidation too: the caller stores them in
        the order in which they arrived, so that sequence numbers stay in order.
        """
        if (refusal := self.offline_error or self.read_only_error) is not None:
            raise refusal.again()
        header, payload = read_batch(payload)
        config = self._config
        is_valid = passes_fast_checks(payload, header, self._fast_check_limits, now_ms)
        has_future_timestamp = not is_valid and check_batch_header(
            payload, header, config, now_ms, allows_transactions=allows_transactions
        )
        if not is_valid and header.is_transactional:
            self.log.transactions.require_room()
        if has_future_timestamp or self._needs_deep_validation or self.batches_waiting:
            validation = DeepValidation(
                payload, header, config, now_ms, has_future_timestamp or self._requires_record_checks
            )
            if self.job_queue is not None and (self.batches_waiting or validation.is_long):
                return validation
            return self.append_validated(validation.run())
        return self._write(payload, header, NO_TIMESTAMP)

    def append_marker(self, marker: EndTransactionMarker, now_ms: int, *, must_be_newer: bool) -> Appended:
        """Append the marker that ends a transaction, as leader. A marker that is in the log is not repeated.

        Raises as `append_now`. `must_be_newer`: see `Producers.check_marker`.
        """
        if (refusal := self.offline_error or self.read_only_error) is not None:
            raise refusal.again()
        if not self.log.producers.check_marker(marker, must_be_newer=must_be_newer):
            self._on_dirty(self)  # so that the wait for replicas ends at its deadline
            end = self.log.log_end_offset  # the marker lies below it
            return Appended(end, end, NO_TIMESTAMP)
        batch = marker_batch(marker, now_ms)
        return self._write(batch, parse_header(batch), NO_TIMESTAMP)

    def append_validated(self, validated: ValidatedBatch) -> Appended:
        """Append a validated batch."""
        # the role may have changed since the batch was offered
        if (refusal := self.offline_error or self.read_only_error) is not None:
            raise refusal.again()
        return self._write(*validated)

    def _write(self, batch: bytearray | memoryview, header: BatchHeader, log_append_time_ms: int) -> Appended:
        # A retry of a batch that is in the log: reply with its first offset and append nothing (idempotence).
        if header.producer_id >= 0 and (repeated := self.log.producers.check(header)) is not None:
            return Appended(repeated.base_offset, Offset(repeated.last_offset + 1), repeated.timestamp)
        log = self.log
        base_offset = log.append(batch, header, self.leader_epoch)
        self._on_dirty(self)
        if self.flush_policy is not BEFORE_ACK:
            # `is_only_replica` without its call, for every batch: a follower takes none from producers.
            if self.leading is None:
                self._set_high_watermark(log.log_end_offset, log.appended_bytes)
            else:
                self.advance()
        if self.follower_waits:
            _wake(self.follower_waits)
        return Appended(base_offset, log.log_end_offset, log_append_time_ms)

    # The high watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Readers with isolation level read_committed see nothing from here on (log/transactions)."""
        unstable = self.log.transactions.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return min(max(unstable, self.log.log_start_offset), self.high_watermark)

    def flushed(self, flush: Flush) -> None:
        """Record that the files named by `log.begin_flush` are synced."""
        self.log.end_flush(flush)
        if self.disk_error is None:  # after a failed sync no later success proves anything
            self.advance()

    def advance(self) -> None:
        """Move the high watermark as far as it may go, and release the requests that wait for it."""
        log = self.log
        if self.flush_policy is BEFORE_ACK:
            end, own_bytes = log.flushed_end_offset, log.flushed_bytes
        else:
            end, own_bytes = log.log_end_offset, log.appended_bytes
        if self.leading is not None:
            self.own_end_waits.release(end)
            self._uncommitted.note(end, own_bytes, self.high_watermark)
            self._advance_high_watermark(self.leading.reached(end))
        elif self.following is not None:
            self._set_high_watermark(self.following.high_watermark(end), own_bytes)
        else:  # the only replica
            self._set_high_watermark(end, own_bytes)

    def _advance_high_watermark(self, high_watermark: Offset) -> None:
        """Set the high watermark and count the leader's bytes below it."""
        self._set_high_watermark(high_watermark, self._uncommitted.committed_bytes(high_watermark))

    def _set_high_watermark(self, offset: Offset, committed_bytes: int) -> None:
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        if self.log.transactions.ended:
            self.log.transactions.settle(offset)
        if committed_bytes > self.committed_bytes:
            self.committed_bytes = committed_bytes
        if self.high_watermark_waits.queue:
            self.high_watermark_waits.release(offset)
        if self.fetch_waits:
            _wake(self.fetch_waits)

    def go_offline(self, reason: str, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        """Reject every request from now on, including those that wait."""
        # Set first: the callbacks of the waits below must find the partition offline.
        self.offline_error = ApiError(code, reason)
        self._fail_waits(code)
        _wake(self.fetch_waits)
        _wake(self.follower_waits)
        self._wake_replica_waits()

    def mark_damaged(self, reason: str) -> None:
        """Take the partition offline for good: the data on its disk cannot be relied on."""
        self.is_damaged = True
        self.go_offline(reason)

    def stop_writes(self, reason: str) -> None:
        """Reject writes after a disk failure. Records that were not yet committed are never acknowledged."""
        self.read_only_error = self.disk_error = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        self._fail_waits(ErrorCode.KAFKA_STORAGE_ERROR)

    def _fail_waits(self, code: ErrorCode) -> None:
        self.high_watermark_waits.fail(code)
        if self.own_end_waits is not self.high_watermark_waits:
            self.own_end_waits.fail(code)

    def expire_waits(self, now: float) -> bool:
        """Answer the requests whose deadline has passed. Returns whether any request still waits."""
        self.high_watermark_waits.expire(now)
        self.own_end_waits.expire(now)
        return bool(self.high_watermark_waits.queue or self.own_end_waits.queue)

    def require_online(self) -> None:
        if self.offline_error is not None:
            raise self.offline_error.again()

    # Reading

    def read(
        self, offset: Offset, bytes_max: int, *, at_least_one: bool, end: Offset | None = None
    ) -> BatchesRead | ColdRead:
        """Read whole batches below `end`, or below the high watermark. A ColdRead is for a worker thread."""
        self.require_online()
        self._require_in_log(offset)
        end_offset = self.high_watermark if end is None else end
        if offset >= end_offset:
            return BatchesRead(b"", offset, 0)
        return self.log.read(offset, end_offset, bytes_max, at_least_one=at_least_one)

    def _require_in_log(self, offset: Offset) -> None:
        log = self.log
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {log.log_start_offset} to {log.log_end_offset}",
            )

    def keep_indexes(self, loaded: Sequence[LoadedIndexes]) -> None:
        """Keep indexes that a worker thread loaded; rebuilt ones are scheduled for disk."""
        for each in loaded:
            self.log.keep_indexes(each)
        if self.disk_error is None and not all(each.indexes.are_stored for each in loaded):
            self._on_dirty(self)

    def check_epoch(self, epoch: int) -> None:
        """Fence a client whose leader epoch is older or newer than this one. -1 skips the check."""
        if epoch < 0 or epoch == self.leader_epoch:
            return
        older = epoch < self.leader_epoch
        code = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
        raise ApiError(code, f"the leader epoch is {self.leader_epoch}, the request has {epoch}")

    def end_of_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """End offset of `epoch`, or of the latest known epoch before it. (-1, -1): none is known."""
        if epoch == self.leader_epoch:
            return epoch, self.log.log_end_offset
        return self.log.epochs.end_of(epoch, self.log.log_end_offset)

    def diverging(self, params: FetchPartition) -> EpochEndOffset | None:
        """End of the last common epoch; None if this log begins with all that the reader has fetched."""
        asked = LeaderEpoch(params.last_fetched_epoch)
        if asked == NO_EPOCH:
            return None  # the reader has no records
        epoch, end = self.end_of_epoch(asked)
        if epoch == NO_EPOCH:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"nothing is known of leader epoch {asked}")
        return None if epoch == asked and end >= params.fetch_offset else EpochEndOffset(epoch, end)

    def time_lookup(self, *, is_committed: bool = False) -> TimeLookup:
        """Collect the values with which a worker thread finds an offset by timestamp."""
        log = self.log
        segments = [
            TimedSegment(log.view(segment), segment) for segment in log.segments if segment.size_bytes
        ]
        end = self.last_stable_offset if is_committed else self.high_watermark
        return TimeLookup(segments, log.log_start_offset, end)

    # As the leader of followers

    def follower_fetched(
        self, params: FetchPartition, fetched: FollowerFetchState, now: float
    ) -> FollowerFetchResult:
        """Record a follower's progress. ApiError if the follower may not fetch from this offset or epoch."""
        self.require_online()
        self.require_leader()
        leading, log, offset = self.leading, self.log, Offset(params.fetch_offset)
        if leading is None or not leading.is_replica(fetched.broker_id):
            detail = f"broker {fetched.broker_id} has no replica of {self.name}"
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, detail)
        if params.current_leader_epoch < 0:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, "a follower's fetch must name its leader epoch")
        self.check_epoch(params.current_leader_epoch)
        diverging = self.diverging(params)
        if diverging is not None:
            return FollowerFetchResult(diverging, None)
        self._require_in_log(offset)
        # Before `fetched`, which compares the follower's log start with it before the follower may join the
        # ISR.
        leading.own_start = log.stored_start
        proposal = leading.fetched(fetched, log.log_end_offset, now)
        self._advance_high_watermark(leading.high_watermark)
        self._wake_replica_waits()
        return FollowerFetchResult(None, proposal)

    def read_for_follower(
        self, offset: Offset, bytes_max: int, *, at_least_one: bool
    ) -> BatchesRead | ColdRead:
        """Read whole batches, committed or not. A ColdRead is for a worker thread."""
        log = self.log
        return log.read(offset, log.log_end_offset, bytes_max, at_least_one=at_least_one)

    def committed_state_changed(self, state: CommittedPartitionState, now: float) -> None:
        """Apply a newer state from the metadata store, under the same leader."""
        assert self.leading is not None, "only a leader counts the ISR"
        self._advance_high_watermark(self.leading.changed(state, now))
        self._check_min_isr(self.leading)

    def proposal_committed(self, proposal: IsrProposal, version: int) -> None:
        assert self.leading is not None, "only a leader proposes"
        self._advance_high_watermark(self.leading.committed(proposal, version))
        self._check_min_isr(self.leading)

    def proposal_rejected(self, proposal: IsrProposal) -> None:
        assert self.leading is not None, "only a leader proposes"
        self._advance_high_watermark(self.leading.rejected(proposal))

    def _wake_replica_waits(self) -> None:
        for wake in tuple(self.replica_waits):
            wake()

    def _check_min_isr(self, leading: LeaderRole) -> None:
        """Set or clear `min_isr_error`. Below the minimum, waiting requests fail: nothing is committed."""
        self._wake_replica_waits()
        if leading.meets_min_isr:
            self.min_isr_error = None
            return
        self.min_isr_error = ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{len(leading.isr)} of the at least {leading.min_isr} replicas of {self.name} are in sync",
        )
        self.high_watermark_waits.fail(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    # As a follower

    def fetch_position(self) -> FetchPosition | None:
        """Position of the next fetch from the leader; None: no fetch is possible now."""
        if self.following is None or self.offline_error is not None or self.disk_error is not None:
            return None
        return self.following.fetch_position(flushed_only=self.flush_policy is BEFORE_ACK)

    def handle_fetch_response(self, fetch_position: FetchPosition, answer: PartitionData) -> FetchOutcome:
        """Apply the leader's reply. The caller runs and ends a truncation, then calls `truncated`.

        CorruptData: no leader can have stored these records. StorageFull, StorageFailed: this broker's disk.
        """
        if self.following is None or self.offline_error is not None or self.disk_error is not None:
            return Ignored.STALE
        before = self.log.log_start_offset, self.log.log_end_offset
        try:
            step = self.following.handle_fetch_response(fetch_position, answer)
        finally:
            if (self.log.log_start_offset, self.log.log_end_offset) != before:
                self._on_dirty(self)
        if isinstance(step, Applied):
            self.advance()
        return step

    def truncated(self) -> None:
        """Adapt to a log whose end was truncated. No visible record was removed, except after an unclean
        election: then records that clients have seen are no longer there.
        """
        self.high_watermark = self._clamp_to_log(self.high_watermark)
        self.log.transactions.settle(self.high_watermark)
        if self.log.is_dirty:
            self._on_dirty(self)
        _wake(self.fetch_waits)

    # Deleting records

    def require_deletable(self, offset: Offset) -> None:
        """Raise ApiError unless records may be deleted up to `offset`."""
        if not 0 <= offset <= self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete up to offset {offset}; the high watermark is {self.high_watermark}",
            )

    def delete_before(self, offset: Offset) -> None:
        """Move the log start to `offset`. The caller has stored it durably."""
        self.require_deletable(offset)
        self.log.start_stored(offset)
        _wake(self.follower_waits)

    def is_deleted(self, offset: Offset) -> bool:
        """Whether records below stay deleted under any next leader. ApiError: this replica does not lead."""
        self.require_online()
        is_deleted_here = self.log.stored_start >= offset
        # Without a `LeaderRole` this is the only replica: DeleteRecords waits at leaders only.
        return is_deleted_here and (self.leading is None or self.leading.is_deleted(offset))

    def __repr__(self) -> str:
        state = f"offline: {self.offline_error}" if self.offline_error else f"high={self.high_watermark}"
        role = self.leading or self.following
        if role is not None:
            state = f"{state} {role}"
        return f"<Partition {self.name} epoch={self.leader_epoch} end={self.log.log_end_offset} {state}>"


def _wake(waits: dict[Callable[[int], None], int]) -> None:
    for wake, number in tuple(waits.items()):
        wake(number)


def log_settings(config: TopicConfig) -> LogSettings:
    return LogSettings(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        index_interval_bytes=min(config.index_interval_bytes, INDEX_INTERVAL_BYTES_MAX),
        index_bytes_max=INDEX_BYTES_MAX,
    )
