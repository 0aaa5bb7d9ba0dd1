"""The range fetcher: reads one partition from one offset to another, one request ahead of the caller.

While the caller decodes a response, the broker already processes the next request, and its response waits
in the kernel's socket buffer or is on its way there.

Rule 1: the caller gets the data as received, in one chunk, without a copy: whole batches, in order. A
        truncated batch at the end, and batches that begin at or after `end`, are left out.
Rule 2: a request limits its bytes to about what remains before `end`, estimated from the responses so far,
        so that a small range of a large topic does not cost a large response.
Rule 3: a recreated topic is another topic; its records are never returned. This holds for the topic id that
        the caller gives, and for the topic id of the first response. Rule 4 of `cluster_session.py` defines
        which brokers must agree that the topic is another one, and for how long.
"""

from collections.abc import Iterator
from struct import Struct as Layout
from typing import Final, NamedTuple

from penstock.errors import CorruptData, ErrorCode
from penstock.limits import FETCH_BYTES_MAX, KIB
from penstock.protocol.messages.fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.protocol.schema import VERSION_MAX
from penstock.types import NO_TOPIC_ID, Offset, ProducerId, TopicId, TopicPartition
from penstock.wire.blocking_client import PendingResponse
from penstock.wire.cluster_metadata import Leader
from penstock.wire.cluster_session import CallDeadline, ClusterSession
from penstock.wire.connection_pool import AttemptFailed, BrokerConnection
from penstock.wire.errors import OffsetOutOfRange
from penstock.wire.list_offsets import EARLIEST, LATEST, ListOffsetsOperation
from penstock.wire.retry_policy import Remedy, RequestFailure, failure_of

BYTES_AT_ONCE: Final = 8 << 20
_WAIT_MS_MAX: Final = 500
_BYTES_MIN: Final = 64 * KIB
_BYTES_PER_OFFSET_GUESSED: Final = 256
_LAST_VERSION_WITH_NAMES: Final = 12
"""Last version with topic names; later versions have topic ids."""

_BATCH: Final = Layout(">qi4xb6xi")
"""Base offset, length, magic and last offset delta of a batch."""
_LENGTH_COUNTS_FROM: Final = 12
_HEADER_BYTES: Final = 61
_MAGIC: Final = 2


class FetchedBatches(NamedTuple):
    data: memoryview
    """Whole batches. The view stays valid as long as the caller keeps it."""
    high_watermark: Offset
    last_stable_offset: Offset
    log_start_offset: Offset
    aborted: tuple[tuple[ProducerId, Offset], ...]
    """Producer id and first offset of aborted transactions; empty unless read_committed."""


class BatchExtent(NamedTuple):
    """The usable part of a response."""

    bytes: int
    first: Offset
    """Offset of the first batch."""
    end: Offset
    """Offset after the last batch: where to continue."""


def extent_of(data: memoryview, end: Offset) -> BatchExtent | None:
    """Extent of the whole batches that begin before `end`; None without one. CorruptData if the bytes
    cannot be batches."""
    size, position = len(data), 0
    first = after = None
    unpack = _BATCH.unpack_from
    while position + _HEADER_BYTES <= size:
        base, length, magic, last_delta = unpack(data, position)
        following = position + _LENGTH_COUNTS_FROM + length
        if length < _HEADER_BYTES - _LENGTH_COUNTS_FROM or magic != _MAGIC or last_delta < 0:
            raise CorruptData(f"no batch of format 2 at byte {position} of the fetched bytes")
        if following > size or (base >= end and after is not None):
            break
        if after is None:
            first = base
        elif base < after:
            raise CorruptData(f"a batch at offset {base} follows offset {after - 1}")
        after, position = base + last_delta + 1, following
    if first is None or after is None:
        return None
    return BatchExtent(position, Offset(first), Offset(after))


def next_fetch_bytes(left: int, bytes_per_offset: float, bytes_at_once: int) -> int:
    """Estimate of the bytes before the end, plus a margin, within bounds."""
    return int(min(max(left * bytes_per_offset * 1.1, _BYTES_MIN), bytes_at_once))


class _PendingFetch(NamedTuple):
    broker: BrokerConnection
    pending: PendingResponse[FetchResponse]
    size: int
    topic_id: TopicId


class RangeFetcher:
    """Reads one range of one partition."""

    def __init__(
        self,
        session: ClusterSession,
        partition: TopicPartition,
        end: Offset,
        *,
        read_committed: bool,
        bytes_at_once: int,
        topic_id: TopicId = NO_TOPIC_ID,
    ) -> None:
        self._session = session
        self._partition = partition
        self._end = end
        self._read_committed = read_committed
        self._bytes_at_once = bytes_at_once
        self._bytes_per_offset = float(_BYTES_PER_OFFSET_GUESSED)
        self._bytes_floor = 0
        self._requested_id = topic_id
        self._prefetched: _PendingFetch | None = None

    def run(self, start: Offset) -> Iterator[FetchedBatches]:
        deadline = self._session.deadline(f"fetching {self._partition}")
        deadline.expect(self._partition.topic, self._requested_id)
        position = start
        try:
            while position < self._end:
                found = self._next(position, deadline)
                if found is None:
                    continue
                position, fetched = found
                self._prefetch(position, deadline)
                yield fetched
                deadline.restart()  # time that the caller takes does not count
        finally:
            if self._prefetched is not None:
                self._prefetched.broker.discard(self._prefetched.pending)

    def _next(self, position: Offset, deadline: CallDeadline) -> tuple[Offset, FetchedBatches] | None:
        """Fetch the next batches. None: retry. WireError on a permanent failure."""
        try:
            pending_fetch = self._prefetched or self._send_fetch(position, deadline)
            self._prefetched = None
            answer = self._session.wait(pending_fetch.broker, pending_fetch.pending)
            data = self._partition_data(answer, position, deadline)
            # Only after a valid reply: the cached topic id may be that of an earlier topic.
            deadline.expect(self._partition.topic, pending_fetch.topic_id)
            found = self._usable_batches(data, position, pending_fetch.size)
        except AttemptFailed as failed:
            what = f"at offset {position}: {failed.failure.what}"
            named = failed.failure._replace(what=what, partition=self._partition)
            self._session.recover(deadline, named, [self._partition.topic])
            return None
        deadline.restart()
        return found

    # Requests

    def _prefetch(self, position: Offset, deadline: CallDeadline) -> None:
        if position >= self._end:
            return
        try:
            self._prefetched = self._send_fetch(position, deadline)
        except AttemptFailed:
            self._prefetched = None  # `_next` sends it again, and handles the failure there

    def _send_fetch(self, position: Offset, deadline: CallDeadline) -> _PendingFetch:
        leader = self._session.leader_of(self._partition, deadline)
        broker = self._session.connection_to_broker(leader.address, deadline)
        size = next_fetch_bytes(self._end - position, self._bytes_per_offset, self._bytes_at_once)
        size = max(size, self._bytes_floor)
        request = self._request(position, leader, size)
        named_only = leader.topic_id == NO_TOPIC_ID
        pending = self._session.start_request(
            broker,
            lambda: broker.send(
                FETCH,
                request,
                newest=_LAST_VERSION_WITH_NAMES if named_only else VERSION_MAX,
            ),
        )
        return _PendingFetch(broker, pending, size, leader.topic_id)

    def _request(self, position: Offset, leader: Leader, size: int) -> FetchRequest:
        topic, number = self._partition
        requested = FetchPartition(
            number, current_leader_epoch=leader.epoch, fetch_offset=position, partition_max_bytes=size
        )
        return FetchRequest(
            max_wait_ms=_WAIT_MS_MAX,
            min_bytes=1,
            max_bytes=size,
            isolation_level=int(self._read_committed),
            topics=[FetchTopic(topic, leader.topic_id, [requested])],
        )

    # Responses

    def _partition_data(
        self, answer: FetchResponse, position: Offset, deadline: CallDeadline
    ) -> PartitionData:
        if answer.error_code != ErrorCode.NONE:
            raise AttemptFailed(failure_of(answer.error_code))
        for topic in answer.responses:
            for data in topic.partitions:
                if data.partition_index == self._partition.partition:
                    self._raise_partition_error(data, position, deadline)
                    return data
        raise AttemptFailed(RequestFailure("the broker said nothing about it", Remedy.FIND_LEADER))

    def _raise_partition_error(self, data: PartitionData, position: Offset, deadline: CallDeadline) -> None:
        if data.error_code == ErrorCode.NONE:
            return
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            log_start, log_end = self._log_bounds(deadline)
            if not log_start <= position <= log_end:
                raise OffsetOutOfRange(self._partition, position, log_start, log_end)
            # Right after an election the leader may not know its high watermark yet.
            raise AttemptFailed(
                RequestFailure("the leader does not know this offset yet", Remedy.FIND_LEADER)
            )
        raise AttemptFailed(failure_of(data.error_code))

    def _log_bounds(self, deadline: CallDeadline) -> tuple[Offset, Offset]:
        """Current start and end offset of the log."""
        found = [
            self._session.run_on_leaders(
                deadline, ListOffsetsOperation(read_committed=False), {self._partition: where}
            )
            for where in (EARLIEST, LATEST)
        ]
        log_start, log_end = (offsets[self._partition][0] for offsets in found)
        return log_start, log_end

    def _usable_batches(
        self, data: PartitionData, position: Offset, size: int
    ) -> tuple[Offset, FetchedBatches]:
        records = data.records if isinstance(data.records, memoryview) else memoryview(b"")
        extent = extent_of(records, self._end)
        if extent is None or extent.end <= position:
            raise AttemptFailed(self._no_batches_failure(data, len(records), size))
        self._bytes_floor = 0
        self._bytes_per_offset = extent.bytes / (extent.end - extent.first)
        aborted = tuple(
            (ProducerId(each.producer_id), Offset(each.first_offset))
            for each in data.aborted_transactions or ()
        )
        fetched = FetchedBatches(
            records[: extent.bytes],
            Offset(data.high_watermark),
            Offset(data.last_stable_offset),
            Offset(data.log_start_offset),
            aborted if self._read_committed else (),
        )
        return extent.end, fetched

    def _no_batches_failure(self, data: PartitionData, received: int, size: int) -> RequestFailure:
        if received and size < FETCH_BYTES_MAX:
            self._bytes_floor = min(size * 2, FETCH_BYTES_MAX)  # for a batch larger than the request
            return RequestFailure(f"a batch is larger than {size} bytes", Remedy.RETRY)
        if received:
            what = f"a batch is larger than {size} bytes, which is more than a broker sends"
            return RequestFailure(what, Remedy.GIVE_UP, ErrorCode.MESSAGE_TOO_LARGE)
        shown = data.last_stable_offset if self._read_committed else data.high_watermark
        what = f"nothing is there to be read; what may be read ends at offset {shown}"
        return RequestFailure(what, Remedy.RETRY, ErrorCode.OFFSET_NOT_AVAILABLE)
