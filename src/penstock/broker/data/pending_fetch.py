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
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple, Protocol

from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_reader import NO_REPLICA_EPOCH, FetchLimits, FetchReader, FetchResult
from penstock.broker.data.fetch_sessions import FetchTarget, ResolvedFetch, TopicRun
from penstock.broker.router import DeferredReply
from penstock.errors import ErrorCode
from penstock.limits import FETCH_WAIT_MS_MAX
from penstock.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.replication.partition import Partition

RACKS_SINCE = 11


class FetchParams(NamedTuple):
    """Parameters of a fetch request, apart from its partitions."""

    wait_ms: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    replica_id: int
    replica_epoch: int = NO_REPLICA_EPOCH
    may_read_from_follower: bool = False
    """Whether the client supports reading from followers (KIP-392)."""
    rack: str = ""

    @classmethod
    def by(cls, request: FetchRequest, version: int) -> "FetchParams":
        state = request.replica_state
        replica_id = request.replica_id if request.replica_id >= 0 else state.replica_id
        return cls(
            wait_ms=min(request.max_wait_ms, FETCH_WAIT_MS_MAX),
            bytes_min=request.min_bytes,
            bytes_max=request.max_bytes,
            isolation_level=request.isolation_level,
            replica_id=replica_id,
            replica_epoch=state.replica_epoch,
            may_read_from_follower=version >= RACKS_SINCE,
            rack=request.rack_id,
        )


class FetchHandler(Protocol):
    """The operations that a pending fetch uses of the Fetch API."""

    @property
    def has_reply_memory(self) -> bool: ...

    watched: int
    """Number of partitions registered by waiting fetches, counted once for each fetch."""
    watched_max: int

    def limits(self, params: FetchParams) -> FetchLimits: ...

    def gather(
        self, targets: list[FetchTarget], limits: FetchLimits, context: RequestContext
    ) -> FetchResult: ...

    def gather_cold(self, progress: "PendingFetch") -> None: ...

    def gather_again(
        self, targets: list[FetchTarget], idle: FetchResult, moved: Iterable[int], context: RequestContext
    ) -> FetchResult: ...

    def partitions_of(self, targets: list[FetchTarget]) -> list[Partition]: ...


class PendingFetch:
    """One fetch request that may have to wait."""

    __slots__ = (
        "_cold_task",
        "_context",
        "_fetch",
        "_fetching",
        "_idle",
        "_is_abandoned",
        "_later",
        "_moved",
        "_params",
        "_scheduled",
        "_timer",
        "_wake_at_bytes",
        "_watched",
    )

    def __init__(
        self, fetch: FetchHandler, params: FetchParams, fetching: ResolvedFetch, context: RequestContext
    ) -> None:
        self._fetch = fetch
        self._params = params
        self._fetching = fetching
        self._context = context
        self._later: DeferredReply | None = None
        self._is_abandoned = False
        """Whether the client has disconnected."""
        self._cold_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watched: list[Partition] = []
        self._wake_at_bytes = 0
        """The total of `committed_bytes` of the watched partitions that is enough to read again; 0: any
        change is.
        """
        self._idle: FetchResult | None = None
        """The result of the first read, if it covered every partition and found no records."""
        self._moved: set[int] = set()
        """Indexes of the watched partitions that have more records, or failed, since the first read."""
        self._scheduled = False

    def begin(self) -> FetchResponse | DeferredReply:
        may_wait = self._may_wait
        if may_wait and not self._fetch.has_reply_memory:
            # Reply memory is short, so nothing is read yet. There may be enough records: the first wake-up
            # reads them.
            return self._wait(self._params.bytes_min)
        fetch_result = self._gather()
        if fetch_result.is_cold:
            self._later = DeferredReply(abandon=self._abandon)
            self._fetch.gather_cold(self)
            return self._later
        if may_wait and not self._is_enough(fetch_result):
            # Rule 2: records are not held while the fetch waits. They are read again when the wait ends.
            if not fetch_result.size:
                self._idle = fetch_result
            return self._wait(fetch_result.size)
        return self._response(fetch_result)

    @property
    def _may_wait(self) -> bool:
        targets = len(self._fetching.targets)
        has_reply_memory = self._fetch.watched + targets <= self._fetch.watched_max
        return self._params.wait_ms > 0 and targets > 0 and has_reply_memory

    def _gather(self) -> FetchResult:
        limits, targets = self._fetch.limits(self._params), self._fetching.targets
        if self._idle is None:
            return self._fetch.gather(targets, limits, self._context)
        self._idle.limits = limits
        return self._fetch.gather_again(targets, self._idle, self._moved, self._context)

    def _is_enough(self, fetch_result: FetchResult) -> bool:
        return (
            fetch_result.size >= self._params.bytes_min or fetch_result.has_error or fetch_result.has_diverged
        )

    def _has_new_start(self, fetch_result: FetchResult) -> bool:
        """Whether the log start offset moved. A follower has to delete the same records, and DeleteRecords
        waits for it.
        """
        if self._params.replica_id < 0 or self._idle is None:
            return False
        targets, answers = self._fetching.targets, fetch_result.answers
        return any(answers[each].log_start_offset != targets[each].sent_log_start for each in self._moved)

    # Waiting

    def _wait(self, have_bytes: int) -> DeferredReply:
        self._later = DeferredReply(abandon=self._abandon)
        self._watched = self._fetch.partitions_of(self._fetching.targets)
        self._fetch.watched += len(self._watched)
        wake, is_follower = self._wake, self._params.replica_id >= 0
        for number, partition in enumerate(self._watched):
            # Followers wake on every append, consumers only when the high watermark moves.
            waits = partition.follower_waits if is_follower else partition.fetch_waits
            waits[wake] = number
        self._expect(self._params.bytes_min - have_bytes)
        self._timer = asyncio.get_running_loop().call_later(self._params.wait_ms / 1000, self._time_is_up)
        return self._later

    def _expect(self, more_bytes: int) -> None:
        # If one byte is enough, every wake-up counts, and the sum over many partitions is not needed.
        self._wake_at_bytes = self._shown_bytes() + more_bytes if more_bytes > 1 else 0

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
        if self._timer is None or not self._fetch.has_reply_memory:
            return
        if self._wake_at_bytes and not self._has_enough():
            return
        fetch_result = self._gather()
        if fetch_result.is_cold or self._is_enough(fetch_result) or self._has_new_start(fetch_result):
            self._complete(fetch_result)
        else:
            self._expect(self._params.bytes_min - fetch_result.size)

    def _has_enough(self) -> bool:
        """Whether the missing bytes have arrived, or a partition failed."""
        has_failed = any(partition.offline is not None for partition in self._watched)
        return has_failed or self._shown_bytes() >= self._wake_at_bytes

    def _time_is_up(self) -> None:
        self._complete(self._gather())

    def _complete(self, fetch_result: FetchResult) -> None:
        # Unregistered first: a cold read takes a while, and wake-ups would otherwise finish the reply twice.
        self._stop_watching()
        if fetch_result.is_cold:
            self._fetch.gather_cold(self)
            return
        assert self._later is not None
        self._later.finish(self._response(fetch_result))

    def _stop_watching(self) -> None:
        wake = self._wake
        is_follower = self._params.replica_id >= 0
        for partition in self._watched:
            waits = partition.follower_waits if is_follower else partition.fetch_waits
            waits.pop(wake, None)
        self._fetch.watched -= len(self._watched)
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

    async def read_cold(self, reads: FetchReader) -> None:
        if self._is_abandoned:
            return
        self._cold_task = asyncio.current_task()
        limits = self._fetch.limits(self._params)
        assert self._later is not None
        try:
            fetch_result = await reads.gather_cold(self._fetching.targets, limits, self._context)
        except BaseException:
            # Replies leave in request order, so requests behind this one would wait for ever without a reply.
            self._later.finish(FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
            raise
        self._later.finish(self._response(fetch_result))

    # Answering

    def _response(self, fetch_result: FetchResult) -> FetchResponse:
        targets, session, is_incremental, runs = self._fetching
        if runs is not None:
            return FetchResponse(responses=_by_run(runs, fetch_result.answers))
        results = list(zip(targets, fetch_result.answers, strict=True))
        if session is not None:
            if is_incremental:
                # An incremental reply omits partitions without changes. What is sent now is the baseline for
                # the next.
                results = [result for result in results if _has_changes(*result)]
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
    for topic, topic_id, count in runs:
        responses.append(FetchableTopicResponse(topic, topic_id, answers[begin : begin + count]))
        begin += count
    return responses


def _by_topic(results: list[tuple[FetchTarget, PartitionData]]) -> list[FetchableTopicResponse]:
    """Group neighbouring partitions of one topic. The order of the request is kept."""
    return [
        FetchableTopicResponse(topic, topic_id, [data for _, data in group])
        for (topic, topic_id), group in groupby(
            results, key=lambda result: (result[0].key.topic, result[0].key.topic_id)
        )
    ]
