"""Reads for one fetch: decides which bytes of which partitions go into the reply.

Partitions are read in the order of the request until the byte limit is used up. The first partition with data
returns at least one whole batch, however small the limit: otherwise a batch larger than the limit would stop
its consumer for ever (KIP-74).

Bytes in memory are read at once. If the bytes of any partition are not in memory, the whole fetch is read
through a worker thread and is answered when every partition has been read.
"""

import asyncio
from collections.abc import Iterable
from struct import Struct as Layout
from typing import Final, NamedTuple, Protocol

from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_sessions import FetchPartitionKey, FetchTarget
from penstock.broker.network.memory_budget import MemoryBudget
from penstock.broker.storage.cold_reads import ColdReads, SegmentsChanged
from penstock.errors import ApiError, CorruptData, ErrorCode, StorageFailed, StorageFull
from penstock.limits import BATCH_BYTES_MAX, FETCH_BYTES_TOTAL_MAX
from penstock.log.reading.cold_reading import BatchesRead, ColdRead
from penstock.metadata.cluster_image import NO_NODE
from penstock.protocol.messages.fetch import (
    FETCH,
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    PartitionData,
    ReadyPartitionData,
)
from penstock.replication.following import UNKNOWN_LEADER, FollowerRole
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.types import LeaderEpoch, Offset

READ_COMMITTED = 1
NOT_FOUND = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)


NO_RECORDS = BatchesRead(b"", Offset(0), 0)
NOT_CACHEABLE = -1
NO_REPLICA_EPOCH = -1
_pack_empty_reply = Layout(">ihqqqBiBx").pack
"""Encoder of a partition without records in flexible versions: index, error code, high watermark, last stable
offset, log start offset, aborted transactions, preferred read replica, records, tags.
"""


class FetchLimits(NamedTuple):
    bytes_max: int
    isolation_level: int
    replica_id: int
    replica_epoch: int = NO_REPLICA_EPOCH
    may_read_from_follower: bool = False
    """Whether a follower may reply to the fetch, too."""
    rack: str = ""
    """The rack of the client, for choosing the replica to read from. Empty: the client sent none."""


class Followers(Protocol):
    """The followers of the partitions that this broker leads."""

    def leadership_confirmed(self, partition: Partition, claim: str) -> bool:
        """Whether the leader may return an error that would be wrong if another broker led
        (`leadership_check.py`).
        """
        ...

    @property
    def is_rack_aware(self) -> bool:
        """Whether clients are sent to a replica in their own rack."""
        ...

    def nearest(self, partition: Partition, rack: str, offset: Offset) -> int:
        """The replica in this rack to read from at `offset`; NO_NODE: the leader itself."""
        ...

    def require_session(self, broker_id: int, broker_epoch: int) -> None:
        """Raise ApiError unless the fetch comes from the current process of that broker (id and broker
        epoch).
        """
        ...

    def fetched(
        self, partition: Partition, params: FetchPartition, limits: FetchLimits
    ) -> EpochEndOffset | None:
        """Record a follower's fetch. Returns where the follower's log diverges from the leader's, if it does.
        ApiError: the sender may not fetch this partition as a follower.
        """
        ...


class NoFollowers:
    """The followers of a standalone broker: none."""

    is_rack_aware = False

    def leadership_confirmed(self, partition: Partition, claim: str) -> bool:
        return True

    def nearest(self, partition: Partition, rack: str, offset: Offset) -> int:
        return NO_NODE

    def require_session(self, broker_id: int, broker_epoch: int) -> None:
        pass

    def fetched(
        self, partition: Partition, params: FetchPartition, limits: FetchLimits
    ) -> EpochEndOffset | None:
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker has no followers")


NO_FOLLOWERS: Final = NoFollowers()


class FetchResult:
    """The partitions read so far for one fetch."""

    __slots__ = (
        "answers",
        "bytes_left",
        "empty_reply_key",
        "has_diverged",
        "has_error",
        "is_cold",
        "limits",
        "size",
    )

    def __init__(self, limits: FetchLimits, empty_reply_key: int = NOT_CACHEABLE) -> None:
        self.limits = limits
        self.empty_reply_key = empty_reply_key
        """Key of the pre-encoded empty replies that this fetch can use; NOT_CACHEABLE: none."""
        self.bytes_left = limits.bytes_max
        self.answers: list[PartitionData] = []
        """Partition responses, in the order of the fetch targets."""
        self.size = 0
        self.has_error = False
        self.has_diverged = False
        """Whether the log of some partition diverges from what its reader has fetched before."""
        self.is_cold = False
        """Whether reading stopped at a partition whose bytes are not in memory."""


class FetchReader:
    def __init__(
        self,
        partitions: ReplicaManager,
        cold_reads: ColdReads,
        followers: Followers = NO_FOLLOWERS,
        bytes_total_max: int = FETCH_BYTES_TOTAL_MAX,
    ) -> None:
        """`bytes_total_max`: how many bytes may be read from the device at once, over all fetches."""
        self._partitions = partitions
        self._cold_reads = cold_reads
        self._followers = followers
        self._cold_budget = MemoryBudget(bytes_total_max)

    @property
    def is_rack_aware(self) -> bool:
        return self._followers.is_rack_aware

    def session_error(self, broker_id: int, broker_epoch: int) -> ErrorCode | None:
        """The error that rejects a follower's whole fetch; None: each partition is checked on its own."""
        try:
            self._followers.require_session(broker_id, broker_epoch)
        except ApiError as rejection:
            return rejection.code
        return None

    def find(self, key: FetchPartitionKey) -> Partition | None:
        if key.topic:
            return self._partitions.find(key.topic, key.partition)
        return self._partitions.find_by_id(key.topic_id, key.partition)

    def gather(self, targets: list[FetchTarget], limits: FetchLimits, context: RequestContext) -> FetchResult:
        """Read what is in memory. Stops at the first partition whose bytes are not."""
        empty_reply_key = _empty_reply_key(limits, context)
        fetch_result = FetchResult(limits, empty_reply_key)
        add = fetch_result.answers.append
        for entry in targets:
            partition = entry.partition
            # Hot path: most partitions of a large fetch are read to their end, and were at the previous
            # fetch. Every field that the pre-encoded reply depends on is compared, so a reply of another
            # state is never sent.
            if (
                partition is not None
                and (ready := partition.cached_empty_reply) is not None
                and ready.high_watermark == entry.fast_path_offset
                and ready.isolation_level == empty_reply_key
                and ready.log_start_offset == partition.log.log_start_offset
            ):
                add(ready)
                continue
            data = self._read(entry, fetch_result, context)
            if isinstance(data, ColdRead):
                fetch_result.is_cold = True
                return fetch_result
            add(data)
        return fetch_result

    def gather_again(
        self, targets: list[FetchTarget], idle: FetchResult, moved: Iterable[int], context: RequestContext
    ) -> FetchResult:
        """Repeat a `gather` that found no records, reading only the partitions that changed since, by their
        index.
        """
        fetch_result = FetchResult(idle.limits, idle.empty_reply_key)
        fetch_result.answers = idle.answers.copy()
        for number in sorted(moved):
            data = self._read(targets[number], fetch_result, context)
            if isinstance(data, ColdRead):
                fetch_result.is_cold = True
                return fetch_result
            fetch_result.answers[number] = data
        return fetch_result

    async def gather_cold(
        self, targets: list[FetchTarget], limits: FetchLimits, context: RequestContext
    ) -> FetchResult:
        """Read every partition, first waiting for memory and then for the device."""
        # The first batch is read whole even if the request's limit is smaller.
        need = max(limits.bytes_max, BATCH_BYTES_MAX)
        await self._take_memory(need)
        try:
            fetch_result = FetchResult(limits, _empty_reply_key(limits, context))
            for entry in targets:
                data = self._read(entry, fetch_result, context)
                while isinstance(data, ColdRead):
                    try:
                        data = await self._read_cold(entry, data, fetch_result)
                    # The same position is looked up again in the segments that the log has now.
                    except SegmentsChanged:
                        data = self._read(entry, fetch_result, context)
                fetch_result.answers.append(data)
            return fetch_result
        finally:
            self._cold_budget.release(need)

    async def _take_memory(self, need: int) -> None:
        if self._cold_budget.take(need):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        was_granted = False

        def granted() -> None:
            nonlocal was_granted
            was_granted = True
            if not turn.done():  # already cancelled, but the cancellation has not been delivered yet
                turn.set_result(None)

        self._cold_budget.wait(need, granted)
        try:
            await turn
        except asyncio.CancelledError:
            self._cold_budget.forget(granted)
            # The grant and the cancellation can cross. The bytes were taken for this fetch, so they are given
            # back.
            if was_granted:
                self._cold_budget.release(need)
            raise

    def _read(
        self, entry: FetchTarget, fetch_result: FetchResult, context: RequestContext
    ) -> PartitionData | ColdRead:
        try:
            partition = entry.partition
            if partition is None or partition.offline is not None or context.denied:
                partition = self._authorised(entry.key, context)
                entry.find(partition)
            found = self._found_in(partition, entry.params, fetch_result)
        except ApiError as rejection:
            fetch_result.has_error = True
            # Only OFFSET_OUT_OF_RANGE needs a check of leadership; other errors are retriable or correct
            # anyway.
            if rejection.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                return _rejected(entry.key.partition, rejection.code)
            assert partition is not None, "it was looked into"
            return self._out_of_range(entry, partition, fetch_result.limits, context.peer)
        except (StorageFailed, StorageFull) as problem:  # the file was closed, and cannot be opened again
            fetch_result.has_error = True
            assert partition is not None, "it was looked into"
            if isinstance(problem, StorageFailed):
                self._cold_reads.report_failed_read(partition, problem)
            return _rejected(entry.key.partition, ErrorCode.KAFKA_STORAGE_ERROR)
        if (
            found is NO_RECORDS
            and fetch_result.empty_reply_key != NOT_CACHEABLE
            and partition.following is None
        ):
            # A follower's reply is not cached: the fast path of `gather` skips the check whether it may
            # serve.
            return _cache_empty_reply(partition, fetch_result.empty_reply_key)
        if isinstance(found, PartitionData):
            fetch_result.has_diverged = True
            return found
        return found if isinstance(found, ColdRead) else _answer(partition, found, fetch_result)

    def _out_of_range(
        self, entry: FetchTarget, partition: Partition, limits: FetchLimits, peer: str
    ) -> PartitionData:
        params, is_follower = entry.params, limits.replica_id >= 0
        # Below the log start the records are certainly gone. Beyond the end, the records may exist on another
        # leader: a consumer with auto.offset.reset=earliest would start over because of a deposed leader's
        # reply.
        is_beyond = (
            params.fetch_offset > partition.log.log_end_offset
            or params.last_fetched_epoch > partition.leader_epoch
        )
        claim = f"{params.fetch_offset} is out of range for {peer}"
        if is_beyond and not is_follower and not self._followers.leadership_confirmed(partition, claim):
            return _rejected(entry.key.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        answer = _rejected(entry.key.partition, ErrorCode.OFFSET_OUT_OF_RANGE)
        if is_follower:
            # Where the follower restarts after a full truncation.
            answer.log_start_offset = partition.log.log_start_offset
        return answer

    def _authorised(self, key: FetchPartitionKey, context: RequestContext) -> Partition:
        partition = self.find(key)
        if context.denied and (partition.name.topic if partition else key.topic) in context.denied:
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if partition is None:
            raise self._partitions.missing_partition_error(*key)
        return partition

    def _found_in(
        self, partition: Partition, params: FetchPartition, fetch_result: FetchResult
    ) -> BatchesRead | ColdRead | PartitionData:
        if fetch_result.limits.replica_id >= 0:
            return self._found_for_follower(partition, params, fetch_result)
        # Fences a client with a stale leader epoch before anything is read (KIP-320).
        partition.check_epoch(params.current_leader_epoch)
        if partition.following is not None:
            partition.require_online()
            if not fetch_result.limits.may_read_from_follower or not _may_serve(
                partition.following, partition, params
            ):
                partition.require_leader()
        elif (
            fetch_result.limits.rack
            and (sent := self._sent_elsewhere(partition, params, fetch_result)) is not None
        ):
            return sent
        # Truncation detection (KIP-595): a reader that fetched records of a diverged log must truncate first.
        if params.last_fetched_epoch >= 0 and (diverged := _divergence(partition, params)) is not None:
            return diverged
        offset = Offset(params.fetch_offset)
        if offset == partition.high_watermark and partition.offline is None:
            return NO_RECORDS  # usual case: the consumer has read everything that is visible
        limit = min(params.partition_max_bytes, fetch_result.bytes_left)
        return partition.read(offset, limit, at_least_one=fetch_result.size == 0)

    def _sent_elsewhere(
        self, partition: Partition, params: FetchPartition, fetch_result: FetchResult
    ) -> PartitionData | None:
        """The reply that sends the client to the replica in its rack; None: this broker serves the fetch."""
        node = self._followers.nearest(partition, fetch_result.limits.rack, Offset(params.fetch_offset))
        if node == NO_NODE:
            return None
        answer = _diverging_reply(partition, params, EpochEndOffset())
        answer.preferred_read_replica = node
        return answer

    def _found_for_follower(
        self, partition: Partition, params: FetchPartition, fetch_result: FetchResult
    ) -> BatchesRead | ColdRead | PartitionData:
        # The fetch offset acknowledges everything below it, so it is recorded before records are read.
        diverging = self._followers.fetched(partition, params, fetch_result.limits)
        if diverging is not None:
            return _diverging_reply(partition, params, diverging)
        limit = min(params.partition_max_bytes, fetch_result.bytes_left)
        offset = Offset(params.fetch_offset)
        if offset == partition.log.log_end_offset:
            return NO_RECORDS
        return partition.read_for_follower(offset, limit, at_least_one=fetch_result.size == 0)

    async def _read_cold(
        self, entry: FetchTarget, read: ColdRead, fetch_result: FetchResult
    ) -> PartitionData:
        partition = entry.partition
        assert partition is not None, "the read was planned for it"
        try:
            result = await self._cold_reads.run(partition, read)
        except ApiError as rejection:
            fetch_result.has_error = True
            return _rejected(entry.key.partition, rejection.code)
        except (CorruptData, StorageFailed, StorageFull):
            fetch_result.has_error = True
            return _rejected(entry.key.partition, ErrorCode.KAFKA_STORAGE_ERROR)
        return _answer(partition, result.found, fetch_result)


def _may_serve(following: FollowerRole, partition: Partition, params: FetchPartition) -> bool:
    """Whether a follower may serve this fetch (KIP-392).

    A follower without a known leader receives no new records, so a consumer that stays with it would stall.
    And a follower whose log ends below the fetch offset must not return OFFSET_OUT_OF_RANGE: only the leader
    knows whether the offset exists.
    """
    return following.leader_id != UNKNOWN_LEADER and params.fetch_offset <= partition.log.log_end_offset


def _divergence(partition: Partition, params: FetchPartition) -> PartitionData | None:
    """The end of the client's last fetched epoch in this log if the two diverge; None if this log has all
    that the client fetched.
    """
    asked = params.last_fetched_epoch
    if asked > partition.leader_epoch:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"leader epoch {asked} has not begun")
    epoch, end_offset = partition.end_of_epoch(LeaderEpoch(asked))
    # The epoch cache has no entry at or below this epoch, so the point of divergence is unknown.
    if end_offset < 0:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"nothing is known of leader epoch {asked}")
    if epoch == asked and end_offset >= params.fetch_offset:
        return None
    return _diverging_reply(partition, params, EpochEndOffset(epoch, end_offset))


def _diverging_reply(
    partition: Partition, params: FetchPartition, diverging: EpochEndOffset
) -> PartitionData:
    return PartitionData(
        partition_index=params.partition,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.high_watermark,
        log_start_offset=partition.log.log_start_offset,
        diverging_epoch=diverging,
        records=b"",
    )


def _empty_reply_key(limits: FetchLimits, context: RequestContext) -> int:
    is_usual = FETCH.is_flexible(context.version) and not context.denied and limits.replica_id < 0
    is_usual = is_usual and not limits.rack
    return limits.isolation_level if is_usual else NOT_CACHEABLE


def _cache_empty_reply(partition: Partition, isolation_level: int) -> ReadyPartitionData:
    """Pre-encode the reply of a partition that was read to its end. All fetches at the end share it."""
    index, high, start = partition.name.partition, partition.high_watermark, partition.log.log_start_offset
    has_list = isolation_level == READ_COMMITTED
    partition.cached_empty_reply = ready = ReadyPartitionData(
        partition_index=index,
        high_watermark=high,
        last_stable_offset=high,
        log_start_offset=start,
        aborted_transactions=[] if has_list else None,
        records=b"",
        isolation_level=isolation_level,
        encoded=_pack_empty_reply(index, 0, high, high, start, has_list, -1, 1),
    )
    return ready


def _answer(partition: Partition, found: BatchesRead, fetch_result: FetchResult) -> PartitionData:
    size = len(found.data)
    fetch_result.size += size
    fetch_result.bytes_left = max(fetch_result.bytes_left - size, 0)
    high = partition.high_watermark
    return PartitionData(
        partition_index=partition.name.partition,
        high_watermark=high,
        last_stable_offset=high,
        log_start_offset=partition.log.log_start_offset,
        aborted_transactions=[] if fetch_result.limits.isolation_level == READ_COMMITTED else None,
        records=found.data,
    )


def _rejected(index: int, code: ErrorCode) -> PartitionData:
    """The response for a rejected partition. As in Kafka, a partition that was found has a null list of
    aborted transactions, and one that was not found has an empty list.
    """
    aborted: list[AbortedTransaction] | None = [] if code in NOT_FOUND else None
    return PartitionData(index, code, -1, -1, -1, aborted_transactions=aborted, records=b"")
