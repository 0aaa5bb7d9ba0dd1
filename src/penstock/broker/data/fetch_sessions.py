"""Fetch sessions (KIP-227): a consumer of many partitions names them once.

The broker keeps the partitions of each session and what it last sent the client about each of them. A request
then carries only what changed, and so does the reply.

Rule 1: a session is identified by its id and epoch, not by a connection. Every request must carry the epoch
        after the last one that was answered. Any other epoch is rejected and changes nothing.
Rule 2: memory is bounded, by a number of sessions and by a number of partitions over all sessions. If there
        is no room, the reply carries session id 0 and the client continues with full requests, which always
        work. A session that outgrows the room is removed. A session is not kept for names that no topic can
        have.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from penstock.errors import ErrorCode
from penstock.host.clock import Clock
from penstock.host.randomness import Randomness
from penstock.limits import (
    DECODED_PARTITION_BYTES,
    DECODED_REQUEST_BYTES,
    FETCH_SESSION_EVICTION_MS,
    FETCH_SESSION_PARTITIONS_MAX,
    INT_MAX,
    REPLICA_RECHECK_MS,
    TOPIC_NAME_CHARACTERS_MAX,
)
from penstock.protocol.messages.fetch import FetchPartition, FetchRequest, ReadyPartitionData
from penstock.replication.partition import Partition
from penstock.types import NO_TOPIC_ID, TopicId

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
TOPIC_IDS_SINCE: Final = 13
UNSET_OFFSET: Final = -2
"""A marker that equals no offset of any partition."""


class FetchPartitionKey(NamedTuple):
    topic: str
    """Empty in versions that identify topics by id."""
    topic_id: TopicId
    partition: int


class FetchTarget:
    """A partition to fetch, and what the broker last sent the client about it."""

    __slots__ = ("empty_reply", "key", "params", "partition", "sent_high_watermark", "sent_log_start")

    def __init__(
        self, key: FetchPartitionKey, params: FetchPartition, partition: Partition | None = None
    ) -> None:
        self.key = key
        self.params = params
        self.partition = partition
        """The partition object, from when it is found until it goes offline: clients fetch the same
        partitions again and again.
        """
        self.empty_reply: ReadyPartitionData | None = None
        """The last response, pre-encoded, if these parameters found the partition read to its end. A
        follower's fetch then has nothing new to say about the partition, either."""
        self.sent_high_watermark = UNSET_OFFSET
        self.sent_log_start = UNSET_OFFSET

    def update(self, params: FetchPartition) -> None:
        """Replace the parameters that the partition is fetched with."""
        self.params = params
        self.empty_reply = None


class TopicRun(NamedTuple):
    """Consecutive partitions of one topic in a cached request, which names topics by id."""

    topic_id: TopicId
    partitions: int


class CachedFetchRequest(FetchRequest):
    """A fetch request whose partitions were decoded before (see fetch_request_cache.py).

    Its topics have no partitions: `targets` holds them, each once.
    """

    targets: list[FetchTarget] = msgspec.field(default_factory=list)
    runs: list[TopicRun] = msgspec.field(default_factory=list)


class FetchSession:
    __slots__ = ("epoch", "id", "rechecked_at", "targets", "used_at", "uses_topic_ids")

    def __init__(
        self, session_id: int, targets: Iterable[FetchTarget], now: float, *, uses_topic_ids: bool
    ) -> None:
        self.id = session_id
        self.targets = {entry.key: entry for entry in targets}
        self.epoch = 1
        self.used_at = self.rechecked_at = now
        self.uses_topic_ids = uses_topic_ids

    def recheck(self, now: float) -> None:
        """Let a follower's fetch read every partition again, from time to time. What the leader concludes
        from a fetch also depends on the time and on the image: whether the follower lags, and may join an
        ISR.
        """
        if (now - self.rechecked_at) * 1000 >= REPLICA_RECHECK_MS:
            self.rechecked_at = now
            for target in self.targets.values():
                target.empty_reply = None

    def rotate(self, served: Iterable[FetchPartitionKey]) -> None:
        """Move partitions that returned records to the back, so that a byte limit starves no others."""
        for key in served:
            if (entry := self.targets.pop(key, None)) is not None:
                self.targets[key] = entry


class ResolvedFetch(NamedTuple):
    """The partitions that one request fetches."""

    targets: list[FetchTarget]
    session: FetchSession | None
    """None: the reply has all partitions and session id 0."""
    is_incremental: bool
    """Whether the reply has only partitions that changed."""
    runs: list[TopicRun] | None = None
    """How `targets` divides into topics, where that is known."""


def weigh_fetch(request: FetchRequest, frame_bytes: int) -> int:
    """Weight of a waiting fetch: the partitions that the request names. Those that its session adds are
    counted by the session.
    """
    if isinstance(request, CachedFetchRequest):
        return DECODED_REQUEST_BYTES + DECODED_PARTITION_BYTES * len(request.targets)
    count = sum([len(topic.partitions) for topic in request.topics])
    return DECODED_REQUEST_BYTES + DECODED_PARTITION_BYTES * count


class FetchSessions:
    def __init__(
        self,
        slots: int,
        clock: Clock,
        randomness: Randomness,
        *,
        partitions_max: int = FETCH_SESSION_PARTITIONS_MAX,
    ) -> None:
        """`partitions_max`: how many partitions all sessions together may hold."""
        self._slots = slots
        self._partitions_max = partitions_max
        self._clock = clock
        self._randomness = randomness
        # Ordered by last use: the first session is the one to evict.
        self._sessions: dict[int, FetchSession] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchRequest, version: int) -> ResolvedFetch | ErrorCode:
        """The partitions that the request fetches, or the error that rejects the whole request."""
        if isinstance(request, CachedFetchRequest):
            return ResolvedFetch(request.targets, None, is_incremental=False, runs=request.runs)
        session_id, epoch = request.session_id, request.session_epoch
        if epoch in (FULL_EPOCH, FINAL_EPOCH):
            # Both a full request and a final one end the session that they name.
            self._drop(session_id)
            targets = list(_named(request, version))
            if epoch == FINAL_EPOCH:
                return ResolvedFetch(targets, None, is_incremental=False)
            return ResolvedFetch(targets, self._create(targets, version), is_incremental=False)
        session = self._sessions.get(session_id)
        # Clients reply to these errors with a full request, so a restart or an eviction costs one round trip.
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if epoch != session.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != (version >= TOPIC_IDS_SINCE):
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        named = list(_named(request, version))
        if not self._has_room(named, session):
            self._drop(session_id)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        self._update(session, request, named)
        return ResolvedFetch(list(session.targets.values()), session, is_incremental=True)

    def _create(self, targets: list[FetchTarget], version: int) -> FetchSession | None:
        now = self._clock.monotonic()
        if not self._has_room(targets) or not self._make_slot(now):
            return None
        session_id = self._new_id()
        session = FetchSession(session_id, targets, now, uses_topic_ids=version >= TOPIC_IDS_SINCE)
        self._sessions[session_id] = session
        self._partitions += len(session.targets)
        return session

    def _update(self, session: FetchSession, request: FetchRequest, named: list[FetchTarget]) -> None:
        before = len(session.targets)
        for entry in named:
            known = session.targets.get(entry.key)
            if known is None:
                session.targets[entry.key] = entry
            else:
                known.update(entry.params)
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                session.targets.pop(FetchPartitionKey(topic.topic, topic.topic_id, index), None)
        self._partitions += len(session.targets) - before
        # The epoch wraps to 1, as in Kafka: 0 and -1 have other meanings.
        session.epoch = 1 if session.epoch == INT_MAX else session.epoch + 1
        session.used_at = self._clock.monotonic()
        if max(request.replica_id, request.replica_state.replica_id) >= 0:
            session.recheck(session.used_at)
        # Reinserting moves the session to the end of the eviction order.
        self._sessions[session.id] = self._sessions.pop(session.id)

    def _has_room(self, named: list[FetchTarget], session: FetchSession | None = None) -> bool:
        known = session.targets if session is not None else ()
        added = sum(entry.key not in known for entry in named)
        return self._partitions + added <= self._partitions_max and all(
            _may_exist(entry.key.topic) for entry in named
        )

    def _make_slot(self, now: float) -> bool:
        if len(self._sessions) < self._slots:
            return True
        oldest = next(iter(self._sessions.values()), None)
        # A session in use is not evicted for a new one: clients that share too few slots would evict each
        # other.
        if oldest is None or (now - oldest.used_at) * 1000 < FETCH_SESSION_EVICTION_MS:
            return False
        self._drop(oldest.id)
        return True

    def _drop(self, session_id: int) -> None:
        if (session := self._sessions.pop(session_id, None)) is not None:
            self._partitions -= len(session.targets)

    def _new_id(self) -> int:
        while True:
            # Random, so that an id from before a restart is unlikely to match the new session of another
            # client.
            session_id = int.from_bytes(self._randomness.bytes(4), "big") & INT_MAX
            if session_id != NO_SESSION and session_id not in self._sessions:
                return session_id


def _may_exist(topic: str) -> bool:
    return len(topic) <= TOPIC_NAME_CHARACTERS_MAX and topic.isascii()


def _named(request: FetchRequest, version: int) -> Iterable[FetchTarget]:
    """The partitions that a request names. If it names one twice, the last entry counts."""
    by_id = version >= TOPIC_IDS_SINCE
    found: dict[FetchPartitionKey, FetchTarget] = {}
    for topic in request.topics:
        name, topic_id = ("", topic.topic_id) if by_id else (topic.topic, NO_TOPIC_ID)
        for params in topic.partitions:
            key = FetchPartitionKey(name, topic_id, params.partition)
            found[key] = FetchTarget(key, params)
    return found.values()
