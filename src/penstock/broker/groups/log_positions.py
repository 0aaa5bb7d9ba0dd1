"""Log positions of partitions led by any broker: log start, high watermark, and the timestamp of a record.

This broker looks up its own partitions directly. It sends requests to all other leaders concurrently, each
for many partitions (`apis/log_positions.py`). Followers are not used: a follower's high watermark lags behind
its leader's, so two brokers would report different lag for one group.

Rule 1: a partition whose leader does not respond in time is reported as unknown.
Rule 2: this module limits the number of concurrent requests. A broker that serves such a request sends none
        itself, so that brokers cannot deadlock.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.broker.cluster.peer_requests import PeerRequests, PeerUnavailable
from penstock.broker.groups.record_timestamps import RecordTimestamps, TimestampAtOffset
from penstock.chunks import chunks
from penstock.errors import ApiError, ErrorCode
from penstock.groups.offsets.lag import LogSpan
from penstock.limits import (
    LOG_POSITIONS_PER_CHUNK,
    PEER_POSITION_MS_MAX,
    PEER_POSITIONS_AT_ONCE,
    PEER_POSITIONS_MS_MAX,
)
from penstock.metadata.cluster_image import NO_NODE, ClusterImage
from penstock.protocol.messages.log_positions import (
    LOG_POSITIONS,
    FoundPosition,
    LogPositionsRequest,
    WantedPosition,
)
from penstock.replication.replica_manager import ReplicaManager
from penstock.types import Offset

# Both are only compared and sent, never changed.
UNKNOWN: Final = FoundPosition(ErrorCode.NOT_LEADER_OR_FOLLOWER)
OFFLINE: Final = FoundPosition(ErrorCode.KAFKA_STORAGE_ERROR)
"""The partition has no leader, or its leader cannot read it."""


def span_of(position: FoundPosition) -> LogSpan | None:
    """Log start and end; None: unknown."""
    if position.error_code != ErrorCode.NONE:
        return None
    return LogSpan(Offset(position.log_start_offset), Offset(position.high_watermark))


class LogPositionLookup:
    def __init__(
        self,
        node_id: int,
        image: Callable[[], ClusterImage],
        partitions: ReplicaManager,
        times: RecordTimestamps,
        peers: PeerRequests | None,
    ) -> None:
        """`peers`: None for a single broker, which leads every partition."""
        self._node_id = node_id
        self._image = image
        self._partitions = partitions
        self._times = times
        self._peers = peers
        self._questions = asyncio.Semaphore(PEER_POSITIONS_AT_ONCE)

    async def find(self, queries: Sequence[WantedPosition]) -> list[FoundPosition]:
        """Positions for the queries, in their order."""
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

    def _leader(self, question: WantedPosition) -> int:
        if self._peers is None:
            return self._node_id
        topic = self._image().topics_by_id.get(question.topic_id)
        if topic is None or not 0 <= question.partition < len(topic.partitions):
            return NO_NODE
        return topic.partitions[question.partition].leader

    async def _from_leader(self, leader: int, queries: Sequence[WantedPosition]) -> list[FoundPosition]:
        if leader == self._node_id or self._peers is None:
            return await self.local_positions(queries)
        found = [UNKNOWN] * len(queries)
        every = list(range(len(queries)))
        try:
            # The timeout includes the wait for the semaphore, so that a page never takes longer than this.
            async with asyncio.timeout(PEER_POSITIONS_MS_MAX / 1000), self._questions:
                if len(queries) <= LOG_POSITIONS_PER_CHUNK:
                    await self._ask_in_chunks(self._peers, leader, queries, every, found)
                    return found
                # Timestamps may need disk reads on the leader. So request log start and end of all partitions
                # first. Otherwise a timeout could leave a page with the timestamps of a few partitions and
                # without the lag of the rest.
                ends = [WantedPosition(each.topic_id, each.partition) for each in queries]
                await self._ask_in_chunks(self._peers, leader, ends, every, found)
                behind = [number for number in every if _is_behind(queries[number], found[number])]
                await self._ask_in_chunks(self._peers, leader, queries, behind, found)
        except (PeerUnavailable, TimeoutError):
            pass  # the positions found so far are returned; the rest stays unknown (Rule 1)
        return found

    async def _ask_in_chunks(
        self,
        peers: PeerRequests,
        leader: int,
        queries: Sequence[WantedPosition],
        numbers: Sequence[int],
        found: list[FoundPosition],
    ) -> None:
        """Request the numbered queries in chunks, and store the results in `found` at the same numbers."""
        for some in chunks(numbers, LOG_POSITIONS_PER_CHUNK):
            positions = await self._query_leader(peers, leader, [queries[number] for number in some])
            for number, position in zip(some, positions, strict=True):
                found[number] = position

    async def _query_leader(
        self, peers: PeerRequests, leader: int, queries: Sequence[WantedPosition]
    ) -> list[FoundPosition]:
        answer = await peers.ask(
            leader, LOG_POSITIONS, LogPositionsRequest(list(queries)), PEER_POSITION_MS_MAX
        )
        if answer.error_code != ErrorCode.NONE or len(answer.partitions) != len(queries):
            raise PeerUnavailable(leader, answer.error_message or f"error {answer.error_code}")
        return answer.partitions

    # Partitions that this broker leads

    async def local_positions(self, queries: Sequence[WantedPosition]) -> list[FoundPosition]:
        found: list[FoundPosition] = []
        waiting: list[tuple[int, TimestampAtOffset]] = []
        for number, question in enumerate(queries):
            if number % LOG_POSITIONS_PER_CHUNK == 0:
                await asyncio.sleep(0)  # there may be a hundred thousand queries: yield to the event loop
            position, time = self._look_up(question)
            found.append(position)
            if time is not None:
                waiting.append((number, time))
        times = await self._times.find([time for _, time in waiting])
        for (number, _), timestamp_ms in zip(waiting, times, strict=True):
            if timestamp_ms is not None:
                found[number].timestamp = timestamp_ms
        return found

    def _look_up(self, question: WantedPosition) -> tuple[FoundPosition, TimestampAtOffset | None]:
        """Log start and end, and the timestamp query for the next record; None if the lag is zero."""
        partition = self._partitions.find_by_id(question.topic_id, question.partition)
        if partition is None:
            return UNKNOWN, None
        if partition.offline_error is not None:
            return OFFLINE, None
        try:
            # A new leader's high watermark may be behind the previous leader's until it has been confirmed.
            # Unknown is better than a lag that jumps back.
            partition.require_leader()
            partition.require_end_known()
        except ApiError:
            return UNKNOWN, None
        start, end = partition.log.log_start_offset, partition.high_watermark
        position = FoundPosition(ErrorCode.NONE, start, end)
        if not 0 <= question.offset < end:
            return position, None
        # Retention may have deleted records beyond the committed offset.
        return position, TimestampAtOffset(partition, max(Offset(question.offset), start))


def _is_behind(question: WantedPosition, position: FoundPosition) -> bool:
    return position.error_code == ErrorCode.NONE and 0 <= question.offset < position.high_watermark
