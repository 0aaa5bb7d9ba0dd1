"""One fetch from its arrival until there is enough to answer.

It looks at once; if there is too little it watches its partitions, and looks again when they have
been given as much as was missing, or one of them failed, or its time is up. If there was nothing at
all it then looks at those alone that moved: a client may wait for thousands.

Rule 1: bytes are not read to be counted. A fetch that waits for more than there is would otherwise
        make every small append cost a read of everything before it.
Rule 2: what waits holds the partitions it watches and answers without records, and all that wait
        hold a bounded number. Beyond that a fetch is answered at once, as if its time were up.
"""

import asyncio
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple, Protocol

from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_reader import NO_REPLICA_EPOCH, FetchReads, Gathered, Limits
from penstock.broker.data.fetch_sessions import Fetching, TopicRun, Wanted
from penstock.broker.router import Later
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


class Asked(NamedTuple):
    """What a request says beside its partitions."""

    wait_ms: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    replica_id: int
    replica_epoch: int = NO_REPLICA_EPOCH
    may_follow: bool = False
    """The client knows that followers can be read."""
    rack: str = ""

    @classmethod
    def by(cls, request: FetchRequest, version: int) -> "Asked":
        state = request.replica_state
        replica_id = request.replica_id if request.replica_id >= 0 else state.replica_id
        return cls(
            wait_ms=min(request.max_wait_ms, FETCH_WAIT_MS_MAX),
            bytes_min=request.min_bytes,
            bytes_max=request.max_bytes,
            isolation_level=request.isolation_level,
            replica_id=replica_id,
            replica_epoch=state.replica_epoch,
            may_follow=version >= RACKS_SINCE,
            rack=request.rack_id,
        )


class Fetcher(Protocol):
    """What a fetch in progress needs of those who read."""

    @property
    def has_room(self) -> bool: ...

    watched: int
    """Partitions that fetches wait for, each counted for every one."""
    watched_max: int

    def limits(self, asked: Asked) -> Limits: ...

    def gather(self, wanted: list[Wanted], limits: Limits, context: RequestContext) -> Gathered: ...

    def gather_cold(self, progress: "FetchInProgress") -> None: ...

    def gather_again(
        self, wanted: list[Wanted], idle: Gathered, moved: Iterable[int], context: RequestContext
    ) -> Gathered: ...

    def partitions_of(self, wanted: list[Wanted]) -> list[Partition]: ...


class FetchInProgress:
    """One request, from its arrival until there is enough to answer."""

    __slots__ = (
        "_asked",
        "_cold_task",
        "_context",
        "_fetch",
        "_fetching",
        "_idle",
        "_is_left",
        "_later",
        "_look_at_bytes",
        "_moved",
        "_scheduled",
        "_timer",
        "_watched",
    )

    def __init__(self, fetch: Fetcher, asked: Asked, fetching: Fetching, context: RequestContext) -> None:
        self._fetch = fetch
        self._asked = asked
        self._fetching = fetching
        self._context = context
        self._later: Later | None = None
        self._is_left = False
        """The client has gone."""
        self._cold_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watched: list[Partition] = []
        self._look_at_bytes = 0
        """Not before the watched partitions have shown this much altogether."""
        self._idle: Gathered | None = None
        """What a first look found, if that was every partition and nothing in it."""
        self._moved: set[int] = set()
        """Which of the watched partitions have more, or failed, since then."""
        self._scheduled = False

    def begin(self) -> FetchResponse | Later:
        may_wait = self._may_wait
        if may_wait and not self._fetch.has_room:
            return self._wait(self._asked.bytes_min)  # there may be enough: look at the first chance
        gathered = self._gather()
        if gathered.is_cold:
            self._later = Later(abandon=self._leave)
            self._fetch.gather_cold(self)
            return self._later
        if may_wait and not self._is_enough(gathered):
            if not gathered.size:  # else records would be held while it waits
                self._idle = gathered
            return self._wait(gathered.size)
        return self._response(gathered)

    @property
    def _may_wait(self) -> bool:
        wanted = len(self._fetching.wanted)
        has_room = self._fetch.watched + wanted <= self._fetch.watched_max
        return self._asked.wait_ms > 0 and wanted > 0 and has_room

    def _gather(self) -> Gathered:
        limits, wanted = self._fetch.limits(self._asked), self._fetching.wanted
        if self._idle is None:
            return self._fetch.gather(wanted, limits, self._context)
        self._idle.limits = limits
        return self._fetch.gather_again(wanted, self._idle, self._moved, self._context)

    def _is_enough(self, gathered: Gathered) -> bool:
        return gathered.size >= self._asked.bytes_min or gathered.has_error or gathered.has_parted

    def _has_new_start(self, gathered: Gathered) -> bool:
        """Whether records were deleted that a follower has to delete, too: a client waits for that."""
        if self._asked.replica_id < 0 or self._idle is None:
            return False
        wanted, answers = self._fetching.wanted, gathered.answers
        return any(answers[each].log_start_offset != wanted[each].sent_log_start for each in self._moved)

    # Waiting

    def _wait(self, have_bytes: int) -> Later:
        self._later = Later(abandon=self._leave)
        self._watched = self._fetch.partitions_of(self._fetching.wanted)
        self._fetch.watched += len(self._watched)
        wake, is_follower = self._wake, self._asked.replica_id >= 0
        for number, partition in enumerate(self._watched):
            waits = partition.follower_waits if is_follower else partition.fetch_waits
            waits[wake] = number
        self._expect(self._asked.bytes_min - have_bytes)
        self._timer = asyncio.get_running_loop().call_later(self._asked.wait_ms / 1000, self._time_is_up)
        return self._later

    def _expect(self, more_bytes: int) -> None:
        # Where a byte is enough nobody is woken for less, and many partitions need not be added up.
        self._look_at_bytes = self._shown_bytes() + more_bytes if more_bytes > 1 else 0

    def _shown_bytes(self) -> int:
        return sum([partition.shown_bytes for partition in self._watched])

    def _wake(self, number: int) -> None:
        """Look again at the end of this turn: other partitions may be about to advance too."""
        self._moved.add(number)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        self._scheduled = False
        if self._timer is None or not self._fetch.has_room:
            return
        if self._look_at_bytes and not self._has_come():
            return
        gathered = self._gather()
        if gathered.is_cold or self._is_enough(gathered) or self._has_new_start(gathered):
            self._complete(gathered)
        else:
            self._expect(self._asked.bytes_min - gathered.size)

    def _has_come(self) -> bool:
        """What was missing, or an error."""
        has_failed = any(partition.offline is not None for partition in self._watched)
        return has_failed or self._shown_bytes() >= self._look_at_bytes

    def _time_is_up(self) -> None:
        self._complete(self._gather())

    def _complete(self, gathered: Gathered) -> None:
        self._stop_watching()
        if gathered.is_cold:
            self._fetch.gather_cold(self)
            return
        assert self._later is not None
        self._later.finish(self._response(gathered))

    def _stop_watching(self) -> None:
        wake = self._wake
        is_follower = self._asked.replica_id >= 0
        for partition in self._watched:
            waits = partition.follower_waits if is_follower else partition.fetch_waits
            waits.pop(wake, None)
        self._fetch.watched -= len(self._watched)
        self._watched = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave(self) -> None:
        """Nobody waits for the reply any more: what has not been begun for it never is."""
        self._is_left = True
        self._stop_watching()
        if self._cold_task is not None:
            self._cold_task.cancel()

    async def read_cold(self, reads: FetchReads) -> None:
        if self._is_left:
            return
        self._cold_task = asyncio.current_task()
        limits = self._fetch.limits(self._asked)
        assert self._later is not None
        try:
            gathered = await reads.gather_cold(self._fetching.wanted, limits, self._context)
        except BaseException:
            # Whatever it was, requests behind this one must not wait for ever.
            self._later.finish(FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
            raise
        self._later.finish(self._response(gathered))

    # Answering

    def _response(self, gathered: Gathered) -> FetchResponse:
        wanted, session, is_incremental, runs = self._fetching
        if runs is not None:
            return FetchResponse(responses=_by_run(runs, gathered.answers))
        results = list(zip(wanted, gathered.answers, strict=True))
        if session is not None:
            if is_incremental:
                results = [result for result in results if _is_news(*result)]
            _remember(results)
            session.rotate([entry.key for entry, data in results if data.records])
        return FetchResponse(
            session_id=session.id if session is not None else 0, responses=_by_topic(results)
        )


def _is_news(entry: Wanted, data: PartitionData) -> bool:
    return bool(
        data.records
        or data.error_code
        or data.diverging_epoch.epoch >= 0
        or data.preferred_read_replica >= 0
        or data.high_watermark != entry.sent_high_watermark
        or data.log_start_offset != entry.sent_log_start
    )


def _remember(results: list[tuple[Wanted, PartitionData]]) -> None:
    for entry, data in results:
        entry.sent_high_watermark = data.high_watermark
        entry.sent_log_start = data.log_start_offset


def _by_run(runs: list[TopicRun], answers: list[PartitionData]) -> list[FetchableTopicResponse]:
    responses, begin = [], 0
    for topic, topic_id, count in runs:
        responses.append(FetchableTopicResponse(topic, topic_id, answers[begin : begin + count]))
        begin += count
    return responses


def _by_topic(results: list[tuple[Wanted, PartitionData]]) -> list[FetchableTopicResponse]:
    """Neighbours of one topic together; the order of the request is kept."""
    return [
        FetchableTopicResponse(topic, topic_id, [data for _, data in group])
        for (topic, topic_id), group in groupby(
            results, key=lambda result: (result[0].key.topic, result[0].key.topic_id)
        )
    ]
