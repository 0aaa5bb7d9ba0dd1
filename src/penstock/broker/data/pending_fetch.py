"""A fetch request from its arrival until its reply can be sent.

The fetch reads once. If there are fewer bytes than `fetch.min.bytes`, the fetch registers with its partitions
and reads again when as many bytes as were missing are below the high watermark, or a partition failed, or
`fetch.max.wait.ms` is over. If the first read found no records at all, the next one reads only the partitions
that changed: a client may wait for thousands of partitions.

Rule 1: bytes are not read only to be counted. Otherwise a fetch that waits for more than there is would make
        every small append cost a read of everything before it.
Rule 2: a waiting fetch keeps its list of partitions and their empty responses, but no records. The number of
        partitions that all waiting fetches hold is bounded. Beyond the bound a fetch is answered at once, as
        if its time were up.
"""

import asyncio
from collections.abc import Callable
from itertools import groupby

from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_reader import READ_COMMITTED, FetchParams, FetchReader, FetchResult
from penstock.broker.data.fetch_sessions import FetchTarget, ResolvedFetch, TopicRun
from penstock.broker.router import DeferredReply
from penstock.errors import ErrorCode
from penstock.host.tasks import Tasks
from penstock.limits import FETCH_SESSION_PARTITIONS_MAX
from penstock.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from penstock.replication.partition import Partition
from penstock.types import Offset


class FetchCapacity:
    """What all fetches of a broker share: the memory for replies, and the partitions they may wait for."""

    def __init__(
        self,
        free_reply_bytes: Callable[[], int],
        reply_bytes_max: int,
        watched_max: int = FETCH_SESSION_PARTITIONS_MAX,
    ) -> None:
        """`reply_bytes_max`: how many bytes of records one reply may have (`fetch.max.bytes`)."""
        self._free_reply_bytes = free_reply_bytes
        self._reply_bytes_max = reply_bytes_max
        self._watched_max = watched_max
        self.watched = 0
        """Number of partitions that pending fetches wait for; each fetch counts its own."""

    @property
    def has_reply_memory(self) -> bool:
        """False while unsent replies use up the memory that is reserved for replies."""
        return self._free_reply_bytes() > 0

    def may_watch(self, count: int) -> bool:
        return self.watched + count <= self._watched_max

    def fit(self, params: FetchParams) -> FetchParams:
        """The parameters with the number of bytes that the reply may have now."""
        room = max(min(self._reply_bytes_max, self._free_reply_bytes()), 0)
        return params if params.bytes_max <= room else params._replace(bytes_max=room)


class PendingFetch:
    """One fetch request that may have to wait."""

    __slots__ = (
        "_capacity",
        "_cold_task",
        "_context",
        "_fetching",
        "_held",
        "_idle",
        "_is_abandoned",
        "_later",
        "_moved",
        "_params",
        "_reader",
        "_scheduled",
        "_tasks",
        "_timer",
        "_wake_at_bytes",
        "_watched",
    )

    def __init__(
        self,
        reader: FetchReader,
        capacity: FetchCapacity,
        tasks: Tasks,
        params: FetchParams,
        fetching: ResolvedFetch,
        context: RequestContext,
    ) -> None:
        self._reader = reader
        self._capacity = capacity
        self._tasks = tasks
        self._params = params
        self._fetching = fetching
        self._context = context
        self._later = DeferredReply()
        self._is_abandoned = False
        """Whether the client has disconnected."""
        self._cold_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watched: list[Partition] = []
        self._wake_at_bytes = 0
        """The total of `committed_bytes` of the watched partitions that is enough to read again; 0: any
        change is.
        """
        self._held: list[tuple[Partition, Offset]] = []
        """Partitions whose high watermark shows more than a read_committed reader may get, each with the last
        stable offset at the last read.
        """
        self._idle: list[PartitionData] | None = None
        """The responses of the first read, if it covered every partition and found no records."""
        self._moved: set[int] = set()
        """Indexes of the targets that have more records, or failed, since the first read."""
        self._scheduled = False

    def begin(self) -> FetchResponse | DeferredReply:
        may_wait = self._may_wait
        if may_wait and not self._capacity.has_reply_memory:
            # Reply memory is short, so nothing is read yet. There may be enough records: the first wake-up
            # reads them.
            return self._wait(self._params.bytes_min)
        result = self._gather()
        if result.is_cold:
            return self._read_cold()
        if may_wait and not self._is_enough(result):
            # Rule 2: records are not held while the fetch waits. They are read again when the wait ends.
            if not result.size:
                self._idle = result.answers
            return self._wait(result.size)
        return self._response(result)

    @property
    def _may_wait(self) -> bool:
        count = len(self._fetching.targets)
        return self._params.wait_ms > 0 and count > 0 and self._capacity.may_watch(count)

    def _gather(self) -> FetchResult:
        params, targets = self._capacity.fit(self._params), self._fetching.targets
        if self._idle is None:
            return self._reader.gather(targets, params, self._context)
        return self._reader.gather_again(targets, params, self._context, self._idle, self._moved)

    def _is_enough(self, result: FetchResult) -> bool:
        return result.size >= self._params.bytes_min or result.ends_wait

    def _has_new_start(self, result: FetchResult) -> bool:
        """Whether the log start offset moved. A follower has to delete the same records, and DeleteRecords
        waits for it.
        """
        if self._params.replica_id < 0 or self._idle is None:
            return False
        targets, answers = self._fetching.targets, result.answers
        return any(answers[each].log_start_offset != targets[each].sent_log_start for each in self._moved)

    # Waiting

    def _wait(self, have_bytes: int) -> DeferredReply:
        self._later.abandon = self._abandon
        wake, is_follower = self._wake, self._params.replica_id >= 0
        for number, target in enumerate(self._fetching.targets):
            partition = target.partition or self._reader.find(target.key)
            if partition is not None:
                # Followers wake on every append, consumers only when the high watermark moves.
                waits = partition.follower_waits if is_follower else partition.fetch_waits
                waits[wake] = number
                self._watched.append(partition)
        self._capacity.watched += len(self._watched)
        self._expect(self._params.bytes_min - have_bytes)
        self._timer = asyncio.get_running_loop().call_later(self._params.wait_ms / 1000, self._time_is_up)
        return self._later

    def _expect(self, more_bytes: int) -> None:
        # If one byte is enough, every wake-up counts, and the sum over many partitions is not needed.
        self._wake_at_bytes = self._shown_bytes() + more_bytes if more_bytes > 1 else 0
        if more_bytes > 1 and self._params.isolation_level == READ_COMMITTED:
            stable_offsets = [(each, each.last_stable_offset) for each in self._watched]
            self._held = [(each, stable) for each, stable in stable_offsets if stable < each.high_watermark]

    def _shown_bytes(self) -> int:
        return sum([partition.committed_bytes for partition in self._watched])

    def _wake(self, number: int) -> None:
        """Schedule another read at the end of this loop iteration: other partitions may be about to advance
        too.
        """
        self._moved.add(number)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        self._scheduled = False
        # The wake-up was scheduled before the wait ended, or the reply would exceed the memory for replies.
        if self._timer is None or not self._capacity.has_reply_memory:
            return
        if self._wake_at_bytes and not self._has_enough():
            return
        result = self._gather()
        if result.is_cold or self._is_enough(result) or self._has_new_start(result):
            self._complete(result)
        else:
            self._expect(self._params.bytes_min - result.size)

    def _has_enough(self) -> bool:
        """Whether the missing bytes have arrived, a transaction was settled, or a partition failed."""
        has_failed = any(partition.offline_error is not None for partition in self._watched)
        # The end of a transaction may show any number of bytes that were below the high watermark before.
        has_settled = any(each.last_stable_offset != stable for each, stable in self._held)
        return has_failed or has_settled or self._shown_bytes() >= self._wake_at_bytes

    def _time_is_up(self) -> None:
        self._complete(self._gather())

    def _complete(self, result: FetchResult) -> None:
        # Unregistered first: a cold read takes a while, and wake-ups would otherwise finish the reply twice.
        self._stop_watching()
        if result.is_cold:
            self._read_cold()
        else:
            self._later.finish(self._response(result))

    def _stop_watching(self) -> None:
        wake = self._wake
        is_follower = self._params.replica_id >= 0
        for partition in self._watched:
            waits = partition.follower_waits if is_follower else partition.fetch_waits
            waits.pop(wake, None)
        self._capacity.watched -= len(self._watched)
        self._watched = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abandon(self) -> None:
        """End the fetch of a client that has disconnected. A cold read that has not started never does."""
        self._is_abandoned = True
        self._stop_watching()
        if self._cold_task is not None:
            self._cold_task.cancel()

    def _read_cold(self) -> DeferredReply:
        self._later.abandon = self._abandon
        self._tasks.start(self._reply_from_disk(), "fetch from disk")
        return self._later

    async def _reply_from_disk(self) -> None:
        if self._is_abandoned:
            return
        self._cold_task = asyncio.current_task()
        params = self._capacity.fit(self._params)
        try:
            result = await self._reader.gather_cold(self._fetching.targets, params, self._context)
        except BaseException:
            # Replies leave in request order, so requests behind this one would wait for ever without a reply.
            self._later.finish(FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
            raise
        self._later.finish(self._response(result))

    # Answering

    def _response(self, result: FetchResult) -> FetchResponse:
        targets, session, is_incremental, runs = self._fetching
        if runs is not None:
            return FetchResponse(responses=_by_run(runs, result.answers))
        results = list(zip(targets, result.answers, strict=True))
        if session is not None:
            if is_incremental:
                # An incremental reply omits partitions without changes. What is sent now is the baseline for
                # the next.
                results = [pair for pair in results if _has_changes(*pair)]
            _remember(results)
            # Partitions that returned records go last, so that a byte limit does not starve the others
            # (KIP-227).
            session.rotate([entry.key for entry, data in results if data.records])
        return FetchResponse(
            session_id=session.id if session is not None else 0, responses=_by_topic(results)
        )


def _has_changes(entry: FetchTarget, data: PartitionData) -> bool:
    return bool(
        data.records
        or data.error_code
        or data.diverging_epoch.epoch >= 0
        or data.preferred_read_replica >= 0
        or data.high_watermark != entry.sent_high_watermark
        or data.log_start_offset != entry.sent_log_start
    )


def _remember(results: list[tuple[FetchTarget, PartitionData]]) -> None:
    for entry, data in results:
        entry.sent_high_watermark = data.high_watermark
        entry.sent_log_start = data.log_start_offset


def _by_run(runs: list[TopicRun], answers: list[PartitionData]) -> list[FetchableTopicResponse]:
    responses, begin = [], 0
    for topic_id, count in runs:
        responses.append(FetchableTopicResponse("", topic_id, answers[begin : begin + count]))
        begin += count
    return responses


def _by_topic(results: list[tuple[FetchTarget, PartitionData]]) -> list[FetchableTopicResponse]:
    """Group neighbouring partitions of one topic. The order of the request is kept."""
    return [
        FetchableTopicResponse(topic, topic_id, [data for _, data in group])
        for (topic, topic_id), group in groupby(
            results, key=lambda pair: (pair[0].key.topic, pair[0].key.topic_id)
        )
    ]
