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
from penstock.limits import BATCH_BYTES_MAX, FETCH_BYTES_TOTAL_MAX, FETCH_WAIT_MS_MAX
from penstock.log.reading.cold_reading import BatchesRead, ColdRead
from penstock.metadata.cluster_image import NO_NODE
from penstock.protocol.messages.fetch import (
    FETCH,
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    PartitionData,
    ReadyPartitionData,
)
from penstock.replication.following import UNKNOWN_LEADER, FollowerRole
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.types import Offset

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
FOLLOWER_REPLY = 2
"""Key of an empty reply to a follower, where those of consumers have their isolation level."""
NO_REPLICA_EPOCH = -1
NOT_DIVERGING: Final = EpochEndOffset()
RACKS_SINCE: Final = 11
_pack_empty_reply = Layout(">ihqqqBiBx").pack
"""Encoder of a partition without records in flexible versions: index, error code, high watermark, last stable
offset, log start offset, aborted transactions, preferred read replica, records, tags.
"""


class FetchParams(NamedTuple):
    """Parameters of a fetch request, apart from its partitions."""

    bytes_max: int
    isolation_level: int
    replica_id: int
    replica_epoch: int = NO_REPLICA_EPOCH
    may_read_from_follower: bool = False
    """Whether the client supports reading from followers (KIP-392)."""
    rack: str = ""
    """Rack of the client, for choosing the replica to read from. Empty: the leader serves every client."""
    wait_ms: int = 0
    bytes_min: int = 0

    @classmethod
    def of(cls, request: FetchRequest, version: int, *, is_rack_aware: bool) -> "FetchParams":
        state = request.replica_state
        return cls(
            bytes_max=request.max_bytes,
            isolation_level=request.isolation_level,
            replica_id=request.replica_id if request.replica_id >= 0 else state.replica_id,
            replica_epoch=state.replica_epoch,
            may_read_from_follower=version >= RACKS_SINCE,
            rack=request.rack_id if is_rack_aware else "",
            wait_ms=min(request.max_wait_ms, FETCH_WAIT_MS_MAX),
            bytes_min=request.min_bytes,
        )


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

    def require_session(self, sender: "FetchParams") -> None:
        """Raise ApiError unless the fetch comes from the current process of that broker (id and broker
        epoch).
        """
        ...

    def fetched(
        self, partition: Partition, params: FetchPartition, sender: FetchParams
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

    def require_session(self, sender: "FetchParams") -> None:
        pass

    def fetched(
        self, partition: Partition, params: FetchPartition, sender: FetchParams
    ) -> EpochEndOffset | None:
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker has no followers")


NO_FOLLOWERS: Final = NoFollowers()


class FetchResult:
    """The partitions read so far for one fetch."""

    __slots__ = ("answers", "bytes_left", "empty_reply_key", "ends_wait", "is_cold", "params", "size")

    def __init__(self, params: FetchParams, empty_reply_key: int = NOT_CACHEABLE) -> None:
        self.params = params
        self.empty_reply_key = empty_reply_key
        """Key of the pre-encoded empty replies that this fetch can use; NOT_CACHEABLE: none."""
        self.bytes_left = params.bytes_max
        self.answers: list[PartitionData] = []
        """Partition responses, in the order of the fetch targets."""
        self.size = 0
        self.ends_wait = False
        """Whether the client must be told something other than records at once: an error, a diverging log, or
        another replica to read from.
        """
        self.is_cold = False
        """Whether reading stopped at a partition whose bytes are not in memory."""

    def records_of(self, partition: Partition, offset: Offset, found: BatchesRead) -> PartitionData:
        """The response with these batches, for a fetch from `offset`."""
        size = len(found.data)
        self.size += size
        self.bytes_left = max(self.bytes_left - size, 0)
        return PartitionData(
            partition_index=partition.name.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            aborted_transactions=self._aborted(partition, offset, found),
            records=found.data,
        )

    def _aborted(
        self, partition: Partition, offset: Offset, found: BatchesRead
    ) -> list[AbortedTransaction] | None:
        """Aborted transactions whose records the reader drops; None: the reader wants all records."""
        if self.params.isolation_level != READ_COMMITTED:
            return None
        if not found.data:
            return []
        return [
            AbortedTransaction(entry.producer_id, entry.first_offset)
            for entry in partition.log.transactions.aborted.overlapping(offset, found.next_offset)
        ]

    def rejected(self, index: int, code: ErrorCode) -> PartitionData:
        """The response for a rejected partition. As in Kafka, a partition that was found has a null list of
        aborted transactions, and one that was not found has an empty list.
        """
        self.ends_wait = True
        aborted: list[AbortedTransaction] | None = [] if code in NOT_FOUND else None
        return PartitionData(index, code, -1, -1, -1, aborted_transactions=aborted, records=b"")


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
        self.cold_budget = MemoryBudget(bytes_total_max)

    def find(self, key: FetchPartitionKey) -> Partition | None:
        if key.topic:
            return self._partitions.find(key.topic, key.partition)
        return self._partitions.find_by_id(key.topic_id, key.partition)

    def gather(self, targets: list[FetchTarget], params: FetchParams, context: RequestContext) -> FetchResult:
        """Read what is in memory. Stops at the first partition whose bytes are not."""
        if params.replica_id >= 0:
            return self._gather_for_follower(targets, params, context)
        empty_reply_key = _empty_reply_key(params, context)
        result = FetchResult(params, empty_reply_key)
        add = result.answers.append
        for target in targets:
            partition = target.partition
            # Hot path: most partitions of a large fetch are read to their end, and were at the previous
            # fetch. Everything that can change about the pre-encoded reply is compared, so a reply of another
            # state is never sent. The last stable offset moves only together with one of the two others
            # (log/transactions/log_transactions.py, rule 2).
            if (
                partition is not None
                and (ready := target.empty_reply) is not None
                and ready.high_watermark == partition.high_watermark
                and ready.key == empty_reply_key
                and ready.log_start_offset == partition.log.log_start_offset
                and partition.offline_error is None
            ):
                add(ready)
                continue
            data = self._read(target, result, context)
            if isinstance(data, ColdRead):
                result.is_cold = True
                return result
            add(data)
        return result

    def _gather_for_follower(
        self, targets: list[FetchTarget], params: FetchParams, context: RequestContext
    ) -> FetchResult:
        """As `gather`. Few partitions of a session are written to between two fetches. The others are not
        read again: the follower's fetch offset was recorded when it reached the end of the log.
        """
        result = FetchResult(params, _empty_reply_key(params, context))
        add = result.answers.append
        for target in targets:
            partition = target.partition
            if (
                partition is not None
                and (ready := target.empty_reply) is not None
                and partition.log.log_end_offset == target.params.fetch_offset
                and ready.log_start_offset == partition.log.log_start_offset
                and ready.key == result.empty_reply_key
                and partition.offline_error is None
            ):
                if ready.high_watermark != partition.high_watermark:
                    target.empty_reply = ready = _empty_reply(partition, FOLLOWER_REPLY)
                add(ready)
                continue
            data = self._read(target, result, context)
            if isinstance(data, ColdRead):
                result.is_cold = True
                return result
            add(data)
        return result

    def gather_again(
        self,
        targets: list[FetchTarget],
        params: FetchParams,
        context: RequestContext,
        idle: list[PartitionData],
        moved: Iterable[int],
    ) -> FetchResult:
        """Repeat a `gather` that found no records, whose responses are `idle`. Only the partitions that
        changed since, `moved` by their index, are read.
        """
        result = FetchResult(params, _empty_reply_key(params, context))
        result.answers = idle.copy()
        for number in sorted(moved):
            data = self._read(targets[number], result, context)
            if isinstance(data, ColdRead):
                result.is_cold = True
                return result
            result.answers[number] = data
        return result

    async def gather_cold(
        self, targets: list[FetchTarget], params: FetchParams, context: RequestContext
    ) -> FetchResult:
        """Read every partition, first waiting for memory and then for the device."""
        # The first batch is read whole even if the request's limit is smaller.
        need = max(params.bytes_max, BATCH_BYTES_MAX)
        await self._take_memory(need)
        try:
            result = FetchResult(params, _empty_reply_key(params, context))
            for target in targets:
                data = self._read(target, result, context)
                while isinstance(data, ColdRead):
                    try:
                        data = await self._read_cold(target, data, result)
                    # The same position is looked up again in the segments that the log has now.
                    except SegmentsChanged:
                        data = self._read(target, result, context)
                result.answers.append(data)
            return result
        finally:
            self.cold_budget.release(need)

    async def _take_memory(self, need: int) -> None:
        if self.cold_budget.try_take(need):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        was_granted = False

        def granted() -> None:
            nonlocal was_granted
            was_granted = True
            if not turn.done():  # already cancelled, but the cancellation has not been delivered yet
                turn.set_result(None)

        self.cold_budget.wait(need, granted)
        try:
            await turn
        except asyncio.CancelledError:
            self.cold_budget.forget(granted)
            # The grant and the cancellation can cross. The bytes were taken for this fetch, so they are given
            # back.
            if was_granted:
                self.cold_budget.release(need)
            raise

    def _read(
        self, target: FetchTarget, result: FetchResult, context: RequestContext
    ) -> PartitionData | ColdRead:
        partition, target.empty_reply = target.partition, None
        try:
            if partition is None or partition.offline_error is not None or context.denied:
                target.partition = partition = self._authorised(target.key, context)
            found = self._found_in(partition, target.params, result)
        except ApiError as rejection:
            # Only OFFSET_OUT_OF_RANGE needs a check of leadership; other errors are retriable or correct
            # anyway.
            if rejection.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                return result.rejected(target.key.partition, rejection.code)
            assert partition is not None, "only a read of a partition raises this"
            return self._out_of_range(target, partition, result, context.peer)
        except (StorageFailed, StorageFull) as problem:  # the file was closed, and cannot be opened again
            assert partition is not None, "only a read of a partition raises this"
            if isinstance(problem, StorageFailed):
                self._cold_reads.report_failed_read(partition, problem)
            return result.rejected(target.key.partition, ErrorCode.KAFKA_STORAGE_ERROR)
        if isinstance(found, PartitionData):
            result.ends_wait = True
            return found
        if isinstance(found, ColdRead):
            return found
        if found is not NO_RECORDS or not _is_cacheable(target, partition, result.empty_reply_key):
            return result.records_of(partition, Offset(target.params.fetch_offset), found)
        target.empty_reply = ready = _empty_reply(partition, result.empty_reply_key)
        return ready

    def _out_of_range(
        self, target: FetchTarget, partition: Partition, result: FetchResult, peer: str
    ) -> PartitionData:
        params, is_follower = target.params, result.params.replica_id >= 0
        # Below the log start the records are certainly gone. Beyond the end, the records may exist on another
        # leader: a consumer with auto.offset.reset=earliest would start over because of a deposed leader's
        # reply.
        is_beyond = (
            params.fetch_offset > partition.log.log_end_offset
            or params.last_fetched_epoch > partition.leader_epoch
        )
        claim = f"{params.fetch_offset} is out of range for {peer}"
        if is_beyond and not is_follower and not self._followers.leadership_confirmed(partition, claim):
            return result.rejected(target.key.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        answer = result.rejected(target.key.partition, ErrorCode.OFFSET_OUT_OF_RANGE)
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
        self, partition: Partition, params: FetchPartition, result: FetchResult
    ) -> BatchesRead | ColdRead | PartitionData:
        """The batches for the client, or the response that it gets instead of batches."""
        if result.params.replica_id >= 0:
            return self._found_for_follower(partition, params, result)
        # Fences a client with a stale leader epoch before anything is read (KIP-320).
        partition.check_epoch(params.current_leader_epoch)
        if partition.following is not None:
            partition.require_online()
            if not result.params.may_read_from_follower or not _may_serve(
                partition.following, partition, params
            ):
                partition.require_leader()
        elif result.params.rack:
            node = self._followers.nearest(partition, result.params.rack, Offset(params.fetch_offset))
            if node != NO_NODE:  # the client is sent to the replica in its rack
                return _without_records(partition, preferred_read_replica=node)
        # Truncation detection (KIP-595): a reader that fetched records of a diverged log must truncate first.
        if params.last_fetched_epoch >= 0:
            if params.last_fetched_epoch > partition.leader_epoch:
                detail = f"leader epoch {params.last_fetched_epoch} has not begun"
                raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, detail)
            diverging = partition.diverging(params)
            if diverging is not None:
                return _without_records(partition, diverging)
        offset = Offset(params.fetch_offset)
        end = partition.high_watermark
        if result.params.isolation_level == READ_COMMITTED:
            end = partition.last_stable_offset
        if offset == end and partition.offline_error is None:
            return NO_RECORDS  # usual case: the consumer has read everything that is visible
        limit = min(params.partition_max_bytes, result.bytes_left)
        return partition.read(offset, limit, at_least_one=result.size == 0, end=end)

    def _found_for_follower(
        self, partition: Partition, params: FetchPartition, result: FetchResult
    ) -> BatchesRead | ColdRead | PartitionData:
        # The fetch offset acknowledges everything below it, so it is recorded before records are read.
        diverging = self._followers.fetched(partition, params, result.params)
        if diverging is not None:
            return _without_records(partition, diverging)
        limit = min(params.partition_max_bytes, result.bytes_left)
        offset = Offset(params.fetch_offset)
        if offset == partition.log.log_end_offset:
            return NO_RECORDS
        return partition.read_for_follower(offset, limit, at_least_one=result.size == 0)

    async def _read_cold(self, target: FetchTarget, read: ColdRead, result: FetchResult) -> PartitionData:
        partition = target.partition
        assert partition is not None, "the read was planned for it"
        try:
            cold = await self._cold_reads.run(partition, read)
        except ApiError as rejection:
            return result.rejected(target.key.partition, rejection.code)
        except (CorruptData, StorageFailed, StorageFull):
            return result.rejected(target.key.partition, ErrorCode.KAFKA_STORAGE_ERROR)
        return result.records_of(partition, read.offset, cold.found)


def _may_serve(following: FollowerRole, partition: Partition, params: FetchPartition) -> bool:
    """Whether a follower may serve this fetch (KIP-392).

    A follower without a known leader receives no new records, so a consumer that stays with it would stall.
    And a follower whose log ends below the fetch offset must not return OFFSET_OUT_OF_RANGE: only the leader
    knows whether the offset exists.
    """
    return following.leader_id != UNKNOWN_LEADER and params.fetch_offset <= partition.log.log_end_offset


def _without_records(
    partition: Partition,
    diverging: EpochEndOffset = NOT_DIVERGING,
    *,
    preferred_read_replica: int = NO_NODE,
) -> PartitionData:
    return PartitionData(
        partition_index=partition.name.partition,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log.log_start_offset,
        diverging_epoch=diverging,
        preferred_read_replica=preferred_read_replica,
        records=b"",
    )


def _empty_reply_key(params: FetchParams, context: RequestContext) -> int:
    if not FETCH.is_flexible(context.version) or context.denied:
        return NOT_CACHEABLE
    if params.replica_id >= 0:
        return FOLLOWER_REPLY
    return NOT_CACHEABLE if params.rack else params.isolation_level


def _is_cacheable(target: FetchTarget, partition: Partition, empty_reply_key: int) -> bool:
    """Whether the reply to a partition that was read to its end may be sent again while nothing changes.

    The fast path of `gather` checks neither what a consumer fetched last nor whether a follower may serve, so
    replies that depend on those are not cached. The history of a follower that got to the end of the log was
    compared with the leader's, which only grows during a leader epoch.
    """
    if empty_reply_key == FOLLOWER_REPLY:
        return True
    is_consumer = empty_reply_key != NOT_CACHEABLE
    return is_consumer and target.params.last_fetched_epoch < 0 and partition.following is None


def _empty_reply(partition: Partition, key: int) -> ReadyPartitionData:
    """The pre-encoded response for a partition that was read to its end."""
    index, high, start = partition.name.partition, partition.high_watermark, partition.log.log_start_offset
    stable, has_list = partition.last_stable_offset, key == READ_COMMITTED
    return ReadyPartitionData(
        partition_index=index,
        high_watermark=high,
        last_stable_offset=stable,
        log_start_offset=start,
        aborted_transactions=[] if has_list else None,
        records=b"",
        key=key,
        encoded=_pack_empty_reply(index, 0, high, stable, start, has_list, -1, 1),
    )
