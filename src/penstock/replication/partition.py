"""A replica: its log, its leader epoch, its high watermark, and who waits for it.

The high watermark is what counts. Readers, acknowledgements and lookups see nothing past it.

    flush policy before_ack     it is where the log is flushed to: an unflushed record is never shown
    flush policy interval, os   it is where the log ends

Rule 1: the high watermark never goes back while this process leads.
Rule 2: a partition whose disk lied is offline. It answers KAFKA_STORAGE_ERROR and changes nothing.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.config.topic import FlushPolicy, TopicConfig
from penstock.errors import ApiError, ErrorCode
from penstock.host.turns import Turns
from penstock.limits import INDEX_BYTES_MAX
from penstock.log.inspection import Inspected, Inspection, is_inspected, is_opened
from penstock.log.partition_log import Flush, LogSettings, PartitionLog
from penstock.log.reading import ColdRead, ColdResult, Found
from penstock.log.retention import SegmentFacts
from penstock.log.time_lookup import TimedSegment, TimeLookup
from penstock.log.validation import PlainLimits, check_batch, is_plain, read_batch
from penstock.protocol.batches import BatchHeader
from penstock.protocol.messages.fetch import ReadyPartitionData
from penstock.replication.waiting import ProduceWaits
from penstock.types import NO_TIMESTAMP, LeaderEpoch, Offset, TopicId, TopicPartition

# Looking a member up in its class costs as much as all the rest of a comparison.
BEFORE_ACK = FlushPolicy.BEFORE_ACK


class Appended(msgspec.Struct, frozen=True, gc=False):
    base_offset: Offset
    end_offset: Offset
    log_append_time_ms: int
    """-1 unless the broker's time is what the records carry."""


class Partition:
    __slots__ = (
        "_config",
        "_is_inspected",
        "_is_opened",
        "_on_dirty",
        "_plain",
        "at_end",
        "batches_waiting",
        "fetch_waits",
        "flush_policy",
        "high_watermark",
        "leader_epoch",
        "log",
        "name",
        "offline",
        "partition_count",
        "produce_waits",
        "read_only",
        "shown_bytes",
        "topic_id",
        "turns",
    )

    def __init__(
        self,
        name: TopicPartition,
        topic_id: TopicId,
        leader_epoch: LeaderEpoch,
        log: PartitionLog,
        config: TopicConfig,
        on_dirty: Callable[["Partition"], None],
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.leader_epoch: Final = leader_epoch
        """Who leads anew does so with a new object: what was found out about this one stays true."""
        self.log = log
        self.offline: ApiError | None = None
        """Why this partition cannot be used; None while it can."""
        self.read_only: ApiError | None = None
        """Why nothing may be written; what is safe can still be read."""
        self.high_watermark = log.flushed_end_offset
        self.produce_waits = ProduceWaits()
        self.at_end: ReadyPartitionData | None = None
        """What a fetch at the high watermark was answered last; None since that is no longer so."""
        self.fetch_waits: dict[Callable[[int], None], int] = {}
        """Called with its number whenever there is more to read, or the partition failed. Ordered, to be
        fair."""
        self.shown_bytes = 0
        """How many bytes have come below the high watermark since this process leads."""
        self.partition_count = 1
        self._on_dirty = on_dirty
        self.turns: Turns | None = None
        """Where long inspections are run; None: all are run at once."""
        self.batches_waiting = 0
        """Batches that were offered and not yet stored."""
        self._is_inspected = self._is_opened = False
        self.reconfigure(config)
        self.advance()

    # Configuration

    @property
    def config(self) -> TopicConfig:
        return self._config

    def reconfigure(self, config: TopicConfig) -> None:
        self._config = config
        self._is_inspected, self._is_opened = is_inspected(config), is_opened(config)
        self._plain = PlainLimits.of(config)
        self.flush_policy = config.flush_policy
        self.log.settings = log_settings(config)

    # Writing

    def append(self, payload: memoryview | None, now_ms: int) -> Appended:
        """Append one producer's batch as leader, however long it takes. Writes into `payload`.

        ApiError: refused. StorageFull: no room, nothing changed. StorageFailed: the disk broke.
        """
        answer = self.offer(payload, now_ms)
        return self.store(answer.run()) if isinstance(answer, Inspection) else answer

    def offer(self, payload: memoryview | None, now_ms: int) -> Appended | Inspection:
        """The same, if that takes little; else what must be run elsewhere and then be stored.

        While one batch is looked into, all that come after it get an Inspection too: the caller
        stores them in the order they came.
        """
        if (refusal := self.offline or self.read_only) is not None:
            raise refusal.again()
        header, payload = read_batch(payload)
        config = self._config
        is_plainly_fine = is_plain(payload, header, self._plain, now_ms)
        is_suspect = not is_plainly_fine and check_batch(payload, header, config, now_ms)
        if is_suspect or self._is_inspected or self.batches_waiting:
            inspection = Inspection(payload, header, config, now_ms, is_suspect or self._is_opened)
            if self.turns is not None and (self.batches_waiting or inspection.is_long):
                return inspection
            return self.store(inspection.run())
        return self._write(payload, header, NO_TIMESTAMP)

    def store(self, inspected: Inspected) -> Appended:
        """Append a batch that was looked into."""
        if (refusal := self.offline or self.read_only) is not None:  # since it was offered
            raise refusal.again()
        return self._write(*inspected)

    def _write(self, batch: bytearray | memoryview, header: BatchHeader, log_append_time_ms: int) -> Appended:
        if header.producer_id >= 0 and (repeated := self.log.producers.check(header)) is not None:
            return Appended(repeated.base_offset, Offset(repeated.last_offset + 1), repeated.timestamp)
        log = self.log
        base_offset = log.append(batch, header, self.leader_epoch)
        self._on_dirty(self)
        if self.flush_policy is not BEFORE_ACK:
            self._reach(log.log_end_offset, log.appended_bytes)
        return Appended(base_offset, log.log_end_offset, log_append_time_ms)

    # Becoming safe

    def flushed(self, flush: Flush) -> None:
        """The shell synced what `log.begin_flush` named."""
        self.log.end_flush(flush)
        if self.read_only is None:  # a disk that broke one promise is not believed another
            self.advance()

    def advance(self) -> None:
        """Move the high watermark to where it may be, and tell those who wait for it."""
        log = self.log
        if self.flush_policy is BEFORE_ACK:
            self._reach(log.flushed_end_offset, log.flushed_bytes)
        else:
            self._reach(log.log_end_offset, log.appended_bytes)

    def _reach(self, offset: Offset, shown_bytes: int) -> None:
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        self.at_end = None
        if shown_bytes > self.shown_bytes:
            self.shown_bytes = shown_bytes
        if self.produce_waits.queue:
            self.produce_waits.release(offset)
        if self.fetch_waits:
            self._wake_fetches()

    def go_offline(self, reason: str, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        """Refuse everything from now on, those who wait included."""
        self.offline = ApiError(code, reason)
        self.at_end = None
        self.produce_waits.fail(code)
        self._wake_fetches()

    def stop_writes(self, reason: str) -> None:
        """The disk no longer keeps its promises. What was not yet safe is never acknowledged."""
        self.read_only = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        self.produce_waits.fail(ErrorCode.KAFKA_STORAGE_ERROR)

    def require_online(self) -> None:
        if self.offline is not None:
            raise self.offline.again()

    def _wake_fetches(self) -> None:
        for wake, number in tuple(self.fetch_waits.items()):
            wake(number)

    # Reading

    def read(self, offset: Offset, bytes_max: int, *, at_least_one: bool) -> Found | ColdRead:
        """Whole batches below the high watermark. A ColdRead is for a worker thread."""
        self.require_online()
        log = self.log
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {log.log_start_offset} to {log.log_end_offset}",
            )
        if offset >= self.high_watermark:
            return Found(b"", offset, 0)
        return log.read(offset, self.high_watermark, bytes_max, at_least_one=at_least_one)

    def keep_indexes(self, read: ColdRead, result: ColdResult) -> None:
        """What a worker thread loaded is there for the next reader, and on disk if it was made anew."""
        self.log.keep_indexes(read, result)
        if not result.indexes.are_stored and self.read_only is None:
            self._on_dirty(self)

    def check_epoch(self, epoch: int) -> None:
        """Fence a client whose idea of the leader is older or newer than ours. -1 asks for no check."""
        if epoch < 0 or epoch == self.leader_epoch:
            return
        older = epoch < self.leader_epoch
        code = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
        raise ApiError(code, f"the leader epoch is {self.leader_epoch}, the request has {epoch}")

    def end_of_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """Where records of `epoch`, or of the last one before it, end. (-1, -1): nothing is known."""
        if epoch == self.leader_epoch:
            return epoch, self.log.log_end_offset
        return self.log.epochs.end_of(epoch, self.log.log_end_offset)

    def time_lookup(self) -> TimeLookup:
        """What a worker thread needs to find an offset by its time."""
        log = self.log
        segments = [
            TimedSegment(log.view(segment), segment) for segment in log.segments if segment.size_bytes
        ]
        return TimeLookup(segments, log.log_start_offset, self.high_watermark)

    # Removing

    def require_deletable(self, offset: Offset) -> None:
        """ApiError unless records may be deleted up to `offset`."""
        if not 0 <= offset <= self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete up to offset {offset}; the high watermark is {self.high_watermark}",
            )

    def delete_before(self, offset: Offset) -> None:
        """The log begins here from now on. The shell has made that survive a crash."""
        self.require_deletable(offset)
        if offset > self.log.log_start_offset:
            self.log.advance_start(offset)

    def segment_facts(self) -> list[SegmentFacts]:
        segments = tuple(self.log.segments)  # a worker thread may ask while the log rolls
        ends = [following.base_offset for following in segments[1:]] + [self.log.log_end_offset]
        return [
            SegmentFacts(segment.base_offset, end, segment.size_bytes, segment.newest_timestamp)
            for segment, end in zip(segments, ends, strict=True)
        ]

    def __repr__(self) -> str:
        state = f"offline: {self.offline}" if self.offline else f"high={self.high_watermark}"
        return f"<Partition {self.name} epoch={self.leader_epoch} end={self.log.log_end_offset} {state}>"


def log_settings(config: TopicConfig) -> LogSettings:
    return LogSettings(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        index_interval_bytes=config.index_interval_bytes,
        index_bytes_max=INDEX_BYTES_MAX,
    )
