"""The follower's half of a fetch session: all partitions that it follows on one leader, in one request.

A fetch session (KIP-227) remembers at the leader which partitions were requested, so a request names only
what has changed since the last one. This module is the follower's half: which partitions the session holds
and the position of each. It keeps an idle fetch of thousands of partitions small on both sides.

    follow ──→ due ──→ requested ──→ answered ──→ due
                ↑                       │
                └───── delayed ←────────┘ an error, or nothing can be fetched just now

Rule 1: a partition that cannot be fetched just now leaves the session: the leader takes the fetch offset that
        the session holds for the follower's end offset.
Rule 2: a partition whose log start has moved is fetched again when that start is stored, and meanwhile no
        fetch waits long at the leader: a DeleteRecords request waits there for the new log start.
Rule 3: the session belongs to a connection here. A new connection, and any error of the whole request, starts
        a new session with all partitions.
"""

from collections.abc import Callable, Iterator
from math import ceil
from typing import Final, NamedTuple

from penstock.limits import (
    INT_MAX,
    LOG_START_FETCH_WAIT_MS,
    REPLICA_BUSY_ANSWERS,
    REPLICA_FETCH_BYTES_MAX,
    REPLICA_IDLE_MS,
    REPLICA_TOGETHER_MAX,
    REPLICA_WAIT_MS,
)
from penstock.log.file_uses import FileUse
from penstock.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from penstock.replication.following import FetchPosition
from penstock.replication.partition import Partition
from penstock.replication.throttle import Allowance
from penstock.types import TopicId

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0
RECHECK_DELAY_S: Final = 0.02
"""Delay until a partition that is being flushed or truncated is checked again."""


class Replica(NamedTuple):
    topic_id: TopicId
    partition: int


class SessionPartition(NamedTuple):
    partition: Partition
    fetch_position: FetchPosition


FindPartition = Callable[[TopicId, int], Partition | None]
AllowFetch = Callable[[Replica, float], Allowance]
"""Given the time: when the replica may be fetched, and how many bytes."""


def _unthrottled(replica: Replica, now: float) -> Allowance:
    return Allowance(now)


class PartitionActivity:
    """Tracks which partitions of a session have received records lately."""

    def __init__(self) -> None:
        self._active_at: dict[Replica, float] = {}
        self._answers: dict[Replica, int] = {}
        """Number of replies with records since the partition is followed here."""
        self._looked_at = 0.0

    def begin(self, replica: Replica, now: float) -> None:
        self._active_at[replica] = now

    def end(self, replica: Replica) -> None:
        self._active_at.pop(replica, None)
        self._answers.pop(replica, None)

    def note(self, replica: Replica, now: float) -> None:
        if replica in self._active_at:
            self._active_at[replica] = now
            self._answers[replica] = self._answers.get(replica, 0) + 1

    def idle(self, now: float) -> list[Replica]:
        """Partitions without records for long, if the session holds many. Computed periodically."""
        long_ago = now - REPLICA_IDLE_MS / 1000
        if len(self._active_at) <= REPLICA_TOGETHER_MAX or self._looked_at > long_ago:
            return []
        self._looked_at = now
        return [replica for replica, at in self._active_at.items() if at <= long_ago]

    def busy(self) -> list[Replica]:
        """Partitions of the idle session that belong into the busy one: they received records repeatedly."""
        return [replica for replica, count in self._answers.items() if count >= REPLICA_BUSY_ANSWERS]


class FetchSessionHandler:
    """Fetch session with one leader."""

    def __init__(
        self,
        leader_id: int,
        find: FindPartition,
        wait_ms: int = REPLICA_WAIT_MS,
        allow: AllowFetch = _unthrottled,
    ) -> None:
        self._leader_id = leader_id
        self._wait_ms = wait_ms
        self._find = find
        self._allow = allow
        self._followed: dict[Replica, None] = {}
        self._due: dict[Replica, None] = {}
        """To be requested with the next fetch, if their position changed."""
        self._delayed: dict[Replica, float] = {}
        """Not requested before this time."""
        self._session_partitions: dict[Replica, SessionPartition] = {}
        """Partitions that the session holds at the leader."""
        self._forgotten: dict[Replica, None] = {}
        """Partitions that the session holds and should drop."""
        self._start_unstored: dict[Replica, Partition] = {}
        """Partitions requested with an outdated log start, because the latest is not stored yet."""
        self._session_id = NO_SESSION
        self._session_epoch = FULL_EPOCH
        self._allowed_at = 0.0
        """Time when throttled partitions may be fetched again: no fetch waits at the leader beyond it."""

    def __len__(self) -> int:
        """Number of followed partitions."""
        return len(self._followed)

    # Followed partitions

    def follow(self, replica: Replica) -> None:
        """Follow a partition, from now on or under another leader epoch."""
        self._followed[replica] = None
        self._delayed.pop(replica, None)
        self._due[replica] = None

    def unfollow(self, replica: Replica) -> None:
        self._followed.pop(replica, None)
        self._delayed.pop(replica, None)
        self._due.pop(replica, None)
        self._remove_from_session(replica)

    def delay(self, replica: Replica, until: float) -> None:
        """Leave the partition out of fetches before that time."""
        if replica in self._followed:
            self._due.pop(replica, None)
            self._delayed[replica] = until
            self._remove_from_session(replica)

    def next_delayed_at(self) -> float | None:
        """Time when the first delayed partition is due; None: none is delayed."""
        return min(self._delayed.values(), default=None)

    def _remove_from_session(self, replica: Replica) -> None:
        if self._session_partitions.pop(replica, None) is not None:
            self._forgotten[replica] = None
        self._start_unstored.pop(replica, None)

    # Requests

    def begin(self) -> None:
        """Start a new session: the connection is new, or the leader has lost the session."""
        self._session_id, self._session_epoch = NO_SESSION, FULL_EPOCH
        self._session_partitions.clear()
        self._forgotten.clear()
        for replica in self._followed:
            if replica not in self._delayed:
                self._due[replica] = None

    def request(self, broker_id: int, broker_epoch: int, now: float) -> FetchRequest | None:
        """Build the next fetch; None: no partition can be fetched."""
        for replica in [replica for replica, until in self._delayed.items() if until <= now]:
            del self._delayed[replica]
            self._due[replica] = None
        self._due.update(dict.fromkeys(self._start_unstored))
        if self._session_id == NO_SESSION:
            self.begin()
        topics: dict[TopicId, FetchTopic] = {}
        due, self._due = self._due, {}
        for replica in due:
            params = self._partition_request(replica, now)
            if params is not None:
                topics.setdefault(replica.topic_id, FetchTopic("", replica.topic_id, [])).partitions.append(
                    params
                )
        if not self._session_partitions:
            return None
        return FetchRequest(
            replica_state=ReplicaState(broker_id, broker_epoch),
            max_wait_ms=self._max_wait_ms(now),
            min_bytes=1,
            max_bytes=REPLICA_FETCH_BYTES_MAX,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=list(topics.values()),
            forgotten_topics_data=self._forgotten_topics(),
        )

    def _max_wait_ms(self, now: float) -> int:
        wait_ms = self._wait_ms
        if any(FileUse.START_FILE in partition.log.file_uses for partition in self._start_unstored.values()):
            wait_ms = min(wait_ms, LOG_START_FETCH_WAIT_MS)
        if self._allowed_at <= now:
            return wait_ms
        return min(wait_ms, ceil((self._allowed_at - now) * 1000))

    def _partition_request(self, replica: Replica, now: float) -> FetchPartition | None:
        """Build the request for one partition; None: it is unchanged, or cannot be fetched."""
        partition = self._find(*replica)
        following = partition.following if partition is not None else None
        if partition is None or following is None or following.leader_id != self._leader_id:
            self._remove_from_session(replica)  # an image that removes it from this leader is about to arrive
            return None
        allowance = self._allow(replica, now)
        if allowance.since > now:
            self._allowed_at = allowance.since
            self.delay(replica, allowance.since)
            return None
        fetch_position = partition.fetch_position()
        if fetch_position is None:
            self.delay(replica, now + RECHECK_DELAY_S)
            return None
        if partition.log.is_start_unstored:
            self._start_unstored[replica] = partition
        else:
            self._start_unstored.pop(replica, None)
        session_partition = SessionPartition(partition, fetch_position)
        # Unchanged: the leader still holds this position, so the request need not repeat it.
        if self._session_partitions.get(replica) == session_partition:
            return None
        self._session_partitions[replica] = session_partition
        self._forgotten.pop(replica, None)
        return FetchPartition(
            partition=replica.partition,
            current_leader_epoch=fetch_position.leader_epoch,
            fetch_offset=fetch_position.offset,
            last_fetched_epoch=fetch_position.last_fetched_epoch,
            log_start_offset=fetch_position.log_start_offset,
            partition_max_bytes=allowance.bytes_max,
        )

    def _forgotten_topics(self) -> list[ForgottenTopic]:
        topics: dict[TopicId, ForgottenTopic] = {}
        for topic_id, index in self._forgotten:
            topics.setdefault(topic_id, ForgottenTopic("", topic_id, [])).partitions.append(index)
        self._forgotten.clear()
        return list(topics.values())

    # Replies

    def handle_response(
        self, response: FetchResponse
    ) -> Iterator[tuple[Replica, SessionPartition, PartitionData]]:
        """Yield each partition of the reply with its request. Nothing if the whole fetch failed."""
        if response.error_code:
            self.begin()
            return
        self._session_id = response.session_id
        # Epoch 0 would request a new session, so the epoch wraps to 1.
        self._session_epoch = 1 if self._session_epoch == INT_MAX else self._session_epoch + 1
        if self._session_id == NO_SESSION:
            self._session_epoch = FULL_EPOCH
        for topic in response.responses:
            for data in topic.partitions:
                replica = Replica(topic.topic_id, data.partition_index)
                session_partition = self._session_partitions.get(replica)
                if session_partition is not None:
                    self._due[replica] = None
                    yield replica, session_partition, data
