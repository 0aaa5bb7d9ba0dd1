"""Coordinator runtime: one shard for each partition of an internal topic that this broker leads.

The runtime makes no decisions. It loads shards from their logs, in chunks that let the event loop run other
callbacks, and calls a shard when its next deadline is due.

Rule 1: the runtime loads a shard up to the log end offset, and only when the whole log is below the high
        watermark. Otherwise the shard would miss records above the high watermark that are committed later.
Rule 2: the runtime loads a broken shard again; until then clients get COORDINATOR_LOAD_IN_PROGRESS and retry.
        A shard that found the disk full is loaded again at once, for reading, and resumes writes when the
        disk has room for the rejected write. If a write still fails, the runtime checks for room with growing
        pauses.
Rule 3: the reads of a load must cover every offset of the log; compaction may have removed records, but no
        offset range. If a range cannot be read, the log is damaged and its shard stays closed, because part
        of a log does not give a correct state. The runtime logs this once and retries with growing pauses. In
        a cluster the broker hands the partition over to an undamaged replica; on a single broker an operator
        repairs it (docs/operations.md).
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.broker.storage.cold_reads import ColdReads, SegmentsChanged
from penstock.broker.task_failures import report_failure
from penstock.coordinator.outcome import Now, StateRecord, WaitingRequest
from penstock.coordinator.shard import Command, Phase, Shard, StateMachine
from penstock.errors import ApiError, CorruptData, ErrorCode, StorageFailed, StorageFull
from penstock.host.backoff import Backoff
from penstock.host.clock import Clock
from penstock.host.tasks import Tasks
from penstock.host.worker import WorkerPool
from penstock.limits import (
    COORDINATOR_RELOAD_MS,
    COORDINATOR_RELOAD_MS_MAX,
    COORDINATOR_ROOM_BYTES,
    COORDINATOR_ROOM_CHECK_MS,
    COORDINATOR_ROOM_CHECK_MS_MAX,
    DECOMPRESSED_BYTES_MAX,
    LOAD_BYTES_AT_ONCE,
    LOAD_RECORDS_PER_CHUNK,
    UNREADABLE_RECORDS_TOLD_MAX,
)
from penstock.log.reading.cold_reading import BatchesRead, ColdRead
from penstock.metadata.cluster_image import ClusterImage
from penstock.observability.logs import Log
from penstock.protocol.batches import split_batches
from penstock.protocol.records import Record, iterate_records
from penstock.replication.partition import Partition
from penstock.replication.produce_waits import ProduceWait
from penstock.replication.replica_manager import ReplicaManager
from penstock.types import NO_OFFSET, Offset, TopicId

State = TypeVar("State", bound=StateMachine)

DAMAGE_HELP = "groups of this partition wait until it is mended: docs/operations.md, A damaged coordinator"


class CoordinatorLimits(NamedTuple):
    """First pause before a broken shard is loaded again, and between checks for room on a full disk."""

    reload_ms: int = COORDINATOR_RELOAD_MS
    space_check_ms: int = COORDINATOR_ROOM_CHECK_MS


COORDINATOR_LIMITS: Final = CoordinatorLimits()


class CoordinatorDependencies(NamedTuple):
    """Dependencies that all coordinators of this broker share."""

    partitions: ReplicaManager
    pool: WorkerPool
    cold_reads: ColdReads
    tasks: Tasks
    clock: Clock
    log: Log
    on_full: Callable[[StorageFull], None]
    on_failed: Callable[[StorageFailed], None]
    load_lock: asyncio.Lock
    """Serializes loads: during a load, the records of the shard are in memory twice."""
    limits: CoordinatorLimits = COORDINATOR_LIMITS


class CoordinatorErrors(NamedTuple):
    """Error counts of the coordinators, for metrics."""

    unreadable: int = 0
    """Records in the logs that cannot be decoded."""
    full: int = 0
    """Shards without disk space to write."""
    unanswered: int = 0
    """Replies that could not be delivered to their client, since the broker started."""
    too_large: int = 0
    """Decisions that were rejected because their records exceed a batch, since the broker started."""


class ErrorCounts:
    """Counters that all shards share, and that outlive a shard."""

    def __init__(self) -> None:
        self.unanswered = 0
        self.too_large = 0


class CoordinatorRuntime(Generic[State]):
    """The shards of one internal topic."""

    def __init__(
        self, topic: str, new_state: Callable[[], State], dependencies: CoordinatorDependencies
    ) -> None:
        self._topic = topic
        self._new_state = new_state
        self._dependencies = dependencies
        self._topic_id: TopicId | None = None
        self._count = 0
        self._shards: dict[int, ShardRunner[State]] = {}
        """Shards of the partitions that this broker leads, by partition number."""
        self._counts = ErrorCounts()

    # Following the topic

    def open(self, image: ClusterImage) -> None:
        """Load the shards of all partitions that this broker leads in the image."""
        topic = image.topics.get(self._topic)
        if topic is None:
            return
        self._topic_id, self._count = topic.id, len(topic.partitions)
        for number in range(self._count):
            self._refresh(number)

    def _refresh(self, number: int) -> None:
        """Compare a shard with the broker's partition, and load or end the shard.

        A new leader epoch has a new Partition object. Its shard is loaded again, because the log may have
        been truncated in between.
        """
        partition = self._dependencies.partitions.find(self._topic, number)
        known = self._shards.get(number)
        if known is not None and known.shard.partition is not partition:
            del self._shards[number]
            known.shard.end()
            known = None
        if known is None and partition is not None and _is_led(partition):
            runner = self._shards[number] = ShardRunner(
                partition, self._new_state, self._dependencies, self._counts
            )
            runner.load()

    async def follow(self, before: ClusterImage, after: ClusterImage) -> None:
        topic = after.topics.get(self._topic)
        # A new topic id means that the topic was deleted and created again: no old state may survive.
        if self._topic_id is not None and (topic is None or topic.id != self._topic_id):
            self.close()
        if topic is not before.topics.get(self._topic) or self._topic_id is None:
            self.open(after)

    def close(self) -> None:
        """End all shards. Waiting clients get NOT_COORDINATOR and look for the new coordinator."""
        shards, self._shards = self._shards, {}
        self._topic_id, self._count = None, 0
        for runner in shards.values():
            runner.shard.end()

    # Commands

    def __len__(self) -> int:
        """Number of shards in the cluster, for the mapping of keys to shards."""
        return self._count

    def local_shards(self) -> list[int]:
        """Partition numbers of the shards on this broker."""
        return sorted(self._shards)

    def execute(self, number: int, command: Command[State], pending: WaitingRequest) -> None:
        runner = self._shards.get(number)
        if number < self._count and (runner is None or not _is_led(runner.shard.partition)):
            # No image announces these two cases: the log was being truncated when this broker became leader,
            # or this broker was deposed.
            self._refresh(number)
            runner = self._shards.get(number)
        if runner is not None:
            runner.shard.execute(command, pending)
        else:
            pending.reject(ErrorCode.NOT_COORDINATOR)

    def states(self) -> Iterator[State]:
        """The states of all shards, read-only. States of shards that are loading are incomplete."""
        for runner in self._shards.values():
            yield runner.shard.state

    def broadcast(self, command: Command[State]) -> None:
        """Execute a command on every active shard after a change of the image.

        Loading shards are skipped: a shard uses the current image when its load ends.
        """
        for runner in tuple(self._shards.values()):
            if runner.shard.phase is Phase.ACTIVE:
                runner.shard.execute(command, _no_client())

    def coordinator_errors(self) -> CoordinatorErrors:
        return CoordinatorErrors(
            unreadable=sum(len(state.unreadable()) for state in self.states()),
            full=sum(runner.shard.is_full for runner in self._shards.values()),
            unanswered=self._counts.unanswered,
            too_large=self._counts.too_large,
        )


def _is_led(partition: Partition) -> bool:
    return partition.is_leader and (
        partition.offline_error is None
        or partition.offline_error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def _no_client() -> WaitingRequest:
    return WaitingRequest(lambda reply: None, lambda code, detail: None)


class ShardRunner(Generic[State]):
    """Host of one shard: clock, timer and loading."""

    def __init__(
        self,
        partition: Partition,
        new_state: Callable[[], State],
        dependencies: CoordinatorDependencies,
        counts: ErrorCounts,
    ) -> None:
        self._dependencies = dependencies
        self._counts = counts
        self._timer: asyncio.TimerHandle | None = None
        self._awaits_space = False
        self._space_check_s = 0.0
        self._space_backoff = Backoff(dependencies.limits.space_check_ms, COORDINATOR_ROOM_CHECK_MS_MAX)
        """Doubles the pause between checks for room if no write succeeds after a check that found room."""
        self._end_at_last_space: int = NO_OFFSET
        """Log end offset when writes last resumed, to detect that no write has succeeded since."""
        self.shard = Shard(partition, new_state, self)

    # ShardHost: what the shard calls

    def now(self) -> Now:
        clock = self._dependencies.clock
        return Now(clock.wall_ms(), clock.monotonic())

    def deadline_changed(self, next_deadline: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_deadline is not None:
            delay = max(0.0, next_deadline - self._dependencies.clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.shard.tick()

    def append_failed(self, reason: Exception) -> None:
        dependencies, after_ms = self._dependencies, self._dependencies.limits.reload_ms
        if self.shard.partition.offline_error is not None and not _is_led(self.shard.partition):
            return  # this broker no longer leads the partition, or in a new epoch: `_refresh` handles both
        dependencies.log.warning(
            "coordinator.broken", partition=self.shard.partition.name, reason=str(reason)
        )
        if isinstance(reason, StorageFull):
            dependencies.on_full(reason)
            if self.shard.partition.log.log_end_offset > self._end_at_last_space:
                self._space_backoff.reset()
            self._space_check_s = self._space_backoff.next_delay_s()
            if not self._awaits_space:
                after_ms = 0  # load at once: reads work while writes are rejected
                self._awaits_space = True
                dependencies.tasks.start(self._await_space(), f"room for {self.shard.partition.name}")
        elif isinstance(reason, StorageFailed):
            dependencies.on_failed(reason)
        self.load(after_ms)

    async def _await_space(self) -> None:
        while self.shard.is_full and self.shard.phase is not Phase.ENDED:
            await asyncio.sleep(self._space_check_s)
            try:
                usable_bytes = await self._dependencies.pool.run(partial(_usable_bytes, self.shard.partition))
            except (StorageFailed, StorageFull):
                continue  # no decision here: the next write reports the failure of the disk
            # A margin above the rejected write: resuming with too little room would break the shard again.
            if usable_bytes >= max(COORDINATOR_ROOM_BYTES, 2 * self.shard.needed_bytes):
                self._end_at_last_space = self.shard.partition.log.log_end_offset
                self.shard.resume_writes()
        self._awaits_space = False

    def too_large(self, size_bytes: int, records: int, limit_bytes: int) -> None:
        self._counts.too_large += 1
        name = self.shard.partition.name
        self._dependencies.log.error(
            "coordinator.too_large",
            partition=name,
            size_bytes=size_bytes,
            records=records,
            limit_bytes=limit_bytes,
        )

    def unanswered(self, reason: Exception) -> None:
        self._counts.unanswered += 1
        report_failure(self._dependencies.log)(f"an answer of {self.shard.partition.name}", reason)

    # Loading

    def load(self, after_ms: int = 0) -> None:
        self._dependencies.tasks.start(self._load(after_ms), f"load {self.shard.partition.name}")

    async def _load(self, after_ms: int) -> None:
        backoff = Backoff(self._dependencies.limits.reload_ms, COORDINATOR_RELOAD_MS_MAX)
        last_reason, delay_s = "", after_ms / 1000
        while True:
            await asyncio.sleep(delay_s)
            if self.shard.phase is Phase.ENDED:
                return
            try:
                records = await self._replay(self.shard.begin_loading())
            except (ApiError, CorruptData, StorageFailed, StorageFull) as problem:
                # The same damage arrives first as CorruptData and later as ApiError of the offline partition.
                # Compare the text, so that it is logged once.
                reason = (problem.detail if isinstance(problem, ApiError) else "") or str(problem)
                if reason != last_reason:
                    last_reason = reason
                    backoff.reset()
                    self._log_load_failure(problem)
                delay_s = backoff.next_delay_s()
                continue
            if self.shard.phase is Phase.LOADING:  # the shard may have ended during the load
                self._log_loaded(records)
                self.shard.end_loading()
            return

    def _log_load_failure(self, problem: Exception) -> None:
        what_to_do = {"help": DAMAGE_HELP} if isinstance(problem, CorruptData) else {}
        name = self.shard.partition.name
        self._dependencies.log.error(
            "coordinator.not_loaded", partition=name, reason=str(problem), **what_to_do
        )

    def _log_loaded(self, records: int) -> None:
        name, log = self.shard.partition.name, self._dependencies.log
        unreadable = self.shard.state.unreadable()
        for number, what in enumerate(unreadable):
            if number < UNREADABLE_RECORDS_TOLD_MAX:
                log.error("coordinator.unreadable", partition=name, record=what)
        if unreadable:
            log.error("coordinator.records_unreadable", partition=name, count=len(unreadable))
        if records:
            log.info("coordinator.loaded", partition=name, records=records)

    async def _replay(self, state: State) -> int:
        """Replay the whole log into `state`. Returns the number of replayed records."""
        count = 0
        end = await _until_committed(self.shard.partition)
        async with self._dependencies.load_lock:
            latest = await self._latest_of_each_key(end)
            for key, (value, timestamp) in latest.items():
                state.replay(StateRecord(key, value), timestamp)
                count += 1
                if count % LOAD_RECORDS_PER_CHUNK == 0:
                    await asyncio.sleep(0)
        return count

    async def _latest_of_each_key(self, end: Offset) -> dict[bytes, tuple[bytes | None, int]]:
        """The last record of each key in log order, which is all that compaction guarantees to keep.

        Earlier records of a key are skipped without being decoded by the state machine.
        """
        partition = self.shard.partition
        offset = partition.log.log_start_offset
        latest: dict[bytes, tuple[bytes | None, int]] = {}
        count = 0
        while offset < end and self.shard.phase is Phase.LOADING:
            found = await self._read(partition, offset)
            if found.next_offset <= offset:
                # No progress below the log end: the log lacks this offset range (Rule 3).
                damage = CorruptData(f"nothing can be read at offset {offset}; the log ends at {end}")
                self._dependencies.cold_reads.on_failure(partition, damage)
                raise damage
            for record in _records(found):
                # A batch may begin below the requested offset.
                if record.key is not None and record.offset >= offset:
                    latest.pop(record.key, None)  # inserted again at the end: the dict keeps log order
                    latest[record.key] = record.value, record.timestamp
                count += 1
                if count % LOAD_RECORDS_PER_CHUNK == 0:
                    await asyncio.sleep(0)
            offset = found.next_offset
        return latest

    async def _read(self, partition: Partition, offset: Offset) -> BatchesRead:
        while True:
            try:
                found = partition.read(offset, LOAD_BYTES_AT_ONCE, at_least_one=True)
            except StorageFailed as failure:
                self._dependencies.cold_reads.report_failed_read(partition, failure)
                raise
            if not isinstance(found, ColdRead):
                return found
            try:
                return (await self._dependencies.cold_reads.run(partition, found)).found
            except SegmentsChanged:
                continue  # compaction or retention replaced segments during the read: plan the read again


def _usable_bytes(partition: Partition) -> int:
    """Free bytes on the disk of a log. Blocks, so a worker thread calls it.

    Uses the parent folder, because the log's own folder may not exist yet.
    """
    log = partition.log
    return log.disk.space(log.folder.rpartition("/")[0]).usable_bytes


def _records(found: BatchesRead) -> Iterator[Record]:
    data = found.data
    for position, header in split_batches(data):
        if not header.is_control:
            yield from iterate_records(
                data[position : position + header.size], limit_bytes=DECOMPRESSED_BYTES_MAX
            )


async def _until_committed(partition: Partition) -> Offset:
    """Wait until the whole log is below the high watermark (Rule 1). Returns the log end offset."""
    partition.require_online()
    end = partition.log.log_end_offset
    if end <= partition.high_watermark:
        return end
    if partition.read_only_error is not None:
        raise partition.read_only_error.again()  # the high watermark cannot advance: waiting would not end
    outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(wait: ProduceWait) -> None:
        if not outcome.cancelled():
            outcome.set_result(wait.errors)

    partition.high_watermark_waits.add(end, ProduceWait(float("inf"), done), 0)
    if errors := await outcome:
        raise ApiError(next(iter(errors.values())), "the disk did not take what is in the log")
    return end
