"""Where partitions begin and end, and how long records wait there, whichever brokers lead them.

What this broker leads it looks up itself. The other leaders are asked, all at the same time and each for
many partitions at once (`apis/log_positions.py`). A follower is never asked: its high watermark is behind
its leader's, so two brokers would give two answers about one group.

Rule 1: a partition whose leader does not answer in time is unknown, and is said to be.
Rule 2: how many questions are under way is bounded here, and the broker that answers one asks nobody else.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.broker.cluster.peer_requests import PeerRequests, PeerUnavailable
from penstock.broker.groups.record_timestamps import RecordTimestamps
from penstock.broker.groups.record_timestamps import TimestampQuery as TimestampQuery
from penstock.errors import ApiError, ErrorCode
from penstock.groups.offsets.lag import LogSpan
from penstock.limits import (
    LOG_POSITIONS_PER_QUESTION,
    PEER_POSITION_MS_MAX,
    PEER_POSITIONS_AT_ONCE,
    PEER_POSITIONS_MS_MAX,
)
from penstock.metadata.cluster_image import NO_NODE, ClusterImage
from penstock.protocol.messages.log_positions import (
    LOG_POSITIONS,
    FoundPosition,
    LogPositionsRequest,
    LogPositionsResponse,
    WantedPosition,
)
from penstock.replication.replica_manager import ReplicaManager
from penstock.types import NO_OFFSET, NO_TIMESTAMP, Offset, TopicId


class PositionQuery(NamedTuple):
    topic_id: TopicId
    partition: int
    committed: Offset | None = None
    """Where a group goes on, for the time of the record there; None: only the ends are wanted."""


class LogPosition(NamedTuple):
    span: LogSpan | None
    """None: not known."""
    timestamp_ms: int | None = None
    is_offline: bool = False
    """Nobody leads the partition, or its leader cannot read it."""


UNKNOWN = LogPosition(None)
OFFLINE = LogPosition(None, is_offline=True)


class LogPositionLookup:
    def __init__(
        self,
        node_id: int,
        image: Callable[[], ClusterImage],
        partitions: ReplicaManager,
        times: RecordTimestamps,
        peers: PeerRequests | None,
    ) -> None:
        """`peers`: None for a broker that is alone, which leads everything."""
        self._node_id = node_id
        self._image = image
        self._partitions = partitions
        self._times = times
        self._peers = peers
        self._questions = asyncio.Semaphore(PEER_POSITIONS_AT_ONCE)

    async def find(self, queries: Sequence[PositionQuery]) -> list[LogPosition]:
        """One for each that is wanted, in their order."""
        by_leader: dict[int, list[int]] = {}
        for number, question in enumerate(queries):
            by_leader.setdefault(self._leader(question), []).append(number)
        found = [OFFLINE] * len(queries)
        numbered = [(leader, numbers) for leader, numbers in by_leader.items() if leader != NO_NODE]
        answers = await asyncio.gather(
            *(
                self._from_leader(leader, [queries[number] for number in numbers])
                for leader, numbers in numbered
            )
        )
        for (_, numbers), positions in zip(numbered, answers, strict=True):
            for number, position in zip(numbers, positions, strict=True):
                found[number] = position
        return found

    def _leader(self, question: PositionQuery) -> int:
        if self._peers is None:
            return self._node_id
        topic = self._image().topics_by_id.get(question.topic_id)
        if topic is None or not 0 <= question.partition < len(topic.partitions):
            return NO_NODE
        return topic.partitions[question.partition].leader

    async def _from_leader(self, leader: int, queries: Sequence[PositionQuery]) -> list[LogPosition]:
        if leader == self._node_id or self._peers is None:
            return await self.local_positions(queries)
        found = [UNKNOWN] * len(queries)
        every = list(range(len(queries)))
        try:
            # Waiting for a turn counts: a page is late rather than never there.
            async with asyncio.timeout(PEER_POSITIONS_MS_MAX / 1000), self._questions:
                if len(queries) <= LOG_POSITIONS_PER_QUESTION:
                    await self._ask_in_chunks(self._peers, leader, queries, every, found)
                    return found
                # The leader may read times of records from its disk. The ends of all logs come first, or
                # a page about many partitions would have the times of a few and nothing of the rest.
                ends = [each._replace(committed=None) for each in queries]
                await self._ask_in_chunks(self._peers, leader, ends, every, found)
                behind = [number for number in every if _is_behind(queries[number], found[number])]
                await self._ask_in_chunks(self._peers, leader, queries, behind, found)
        except (PeerUnavailable, TimeoutError):
            pass  # what is not found is unknown
        return found

    async def _ask_in_chunks(
        self,
        peers: PeerRequests,
        leader: int,
        queries: Sequence[PositionQuery],
        numbers: Sequence[int],
        found: list[LogPosition],
    ) -> None:
        """Put the answers to these questions into `found`, each under its number."""
        for start in range(0, len(numbers), LOG_POSITIONS_PER_QUESTION):
            some = numbers[start : start + LOG_POSITIONS_PER_QUESTION]
            positions = await self._query_leader(peers, leader, [queries[number] for number in some])
            for number, position in zip(some, positions, strict=True):
                found[number] = position

    async def _query_leader(
        self, peers: PeerRequests, leader: int, queries: Sequence[PositionQuery]
    ) -> list[LogPosition]:
        request = LogPositionsRequest([_question(each) for each in queries])
        answer = await peers.ask(leader, LOG_POSITIONS, request, PEER_POSITION_MS_MAX)
        if answer.error_code != ErrorCode.NONE or len(answer.partitions) != len(queries):
            raise PeerUnavailable(leader, answer.error_message or f"error {answer.error_code}")
        return [_position(entry) for entry in answer.partitions]

    # What this broker leads

    async def local_positions(self, queries: Sequence[PositionQuery]) -> list[LogPosition]:
        found: list[LogPosition] = []
        waiting: list[tuple[int, TimestampQuery]] = []
        for number, question in enumerate(queries):
            if number % LOG_POSITIONS_PER_QUESTION == 0:
                await asyncio.sleep(0)  # there may be a hundred thousand: everybody else gets a turn
            position, time = self._look_up(question)
            found.append(position)
            if time is not None:
                waiting.append((number, time))
        times = await self._times.find([time for _, time in waiting])
        for (number, _), timestamp_ms in zip(waiting, times, strict=True):
            found[number] = found[number]._replace(timestamp_ms=timestamp_ms)
        return found

    def _look_up(self, question: PositionQuery) -> tuple[LogPosition, TimestampQuery | None]:
        """The ends of the log, and the record whose time has to be read; None if nothing waits."""
        partition = self._partitions.find_by_id(question.topic_id, question.partition)
        if partition is None:
            return UNKNOWN, None
        if partition.offline is not None:
            return OFFLINE, None
        try:
            partition.require_leader()
            partition.require_end_known()
        except ApiError:
            return UNKNOWN, None
        span = LogSpan(partition.log.log_start_offset, partition.high_watermark)
        if question.committed is None or question.committed >= span.end:
            return LogPosition(span), None
        return LogPosition(span), TimestampQuery(partition, max(question.committed, span.start))


def _is_behind(question: PositionQuery, position: LogPosition) -> bool:
    span, committed = position.span, question.committed
    return span is not None and committed is not None and committed < span.end


def _question(queries: PositionQuery) -> WantedPosition:
    offset = NO_OFFSET if queries.committed is None else queries.committed
    return WantedPosition(queries.topic_id, queries.partition, offset)


def _position(entry: FoundPosition) -> LogPosition:
    if entry.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
        return OFFLINE
    if entry.error_code != ErrorCode.NONE:
        return UNKNOWN
    span = LogSpan(Offset(entry.log_start_offset), Offset(entry.high_watermark))
    return LogPosition(span, None if entry.timestamp == NO_TIMESTAMP else entry.timestamp)


def parse_queries(request: LogPositionsRequest) -> list[PositionQuery]:
    return [
        PositionQuery(each.topic_id, each.partition, None if each.offset < 0 else Offset(each.offset))
        for each in request.partitions
    ]


def build_response(positions: Sequence[LogPosition]) -> LogPositionsResponse:
    return LogPositionsResponse(partitions=[_entry(position) for position in positions])


def _entry(position: LogPosition) -> FoundPosition:
    if position.span is None:
        code = ErrorCode.KAFKA_STORAGE_ERROR if position.is_offline else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return FoundPosition(code)
    start, end = position.span
    timestamp = NO_TIMESTAMP if position.timestamp_ms is None else position.timestamp_ms
    return FoundPosition(ErrorCode.NONE, start, end, timestamp)
