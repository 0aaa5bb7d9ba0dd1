"""Fetch sessions (KIP-227): a consumer of many partitions names them once.

The broker remembers what a session fetches and what it last told the client about each partition;
a request then carries only what changed, and so does the reply.

Rule 1: a session belongs to its id and epoch, not to a connection. Every request must carry the
        epoch after the last one that was answered; anything else is refused and changes nothing.
Rule 2: memory is bounded: a number of sessions, and of partitions over all of them. When there is
        no room the client is told so (session 0) and sends full requests, which always work. A
        session that outgrows the room is forgotten, and names that no topic can have are not kept.
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
    TOPIC_NAME_CHARACTERS_MAX,
)
from penstock.protocol.messages.fetch import FetchPartition, FetchRequest
from penstock.replication.partition import Partition
from penstock.types import NO_TOPIC_ID, TopicId

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
TOPIC_IDS_SINCE: Final = 13
NO_EPOCH: Final = -1
UNSET_OFFSET: Final = -2
"""No offset of any partition."""


class FetchPartitionKey(NamedTuple):
    topic: str
    """Empty in versions that name topics by id."""
    topic_id: TopicId
    partition: int


class FetchTarget:
    """A partition that is fetched, and what the client was last told about it."""

    __slots__ = ("fast_path_offset", "key", "params", "partition", "sent_high_watermark", "sent_log_start")

    def __init__(self, key: FetchPartitionKey, params: FetchPartition) -> None:
        self.key = key
        self.params = params
        self.partition: Partition | None = None
        """Once found, until it goes offline: clients fetch the same ones again and again."""
        self.fast_path_offset = UNSET_OFFSET
        """Where it reads in the partition that was found, unless something else is to be looked at."""
        self.sent_high_watermark = UNSET_OFFSET
        self.sent_log_start = UNSET_OFFSET

    def find(self, partition: Partition) -> None:
        self.partition = partition
        params = self.params
        is_plain = params.last_fetched_epoch < 0 and params.current_leader_epoch in (
            NO_EPOCH,
            partition.leader_epoch,
        )
        self.fast_path_offset = params.fetch_offset if is_plain else UNSET_OFFSET

    def update(self, params: FetchPartition) -> None:
        """It is fetched in another way from now on."""
        self.params = params
        if self.partition is not None:
            self.find(self.partition)


class TopicRun(NamedTuple):
    """Partitions of one topic that follow one another in a request."""

    topic: str
    topic_id: TopicId
    partitions: int


class CachedFetchRequest(FetchRequest):
    """A request whose partitions are known from earlier ones (see fetch_request_cache.py).

    Its topics are without partitions: these are in `targets`, each once.
    """

    targets: list[FetchTarget] = msgspec.field(default_factory=list)
    runs: list[TopicRun] = msgspec.field(default_factory=list)


class FetchSession:
    __slots__ = ("epoch", "id", "targets", "used_at", "uses_topic_ids")

    def __init__(
        self, session_id: int, targets: Iterable[FetchTarget], now: float, *, uses_topic_ids: bool
    ) -> None:
        self.id = session_id
        self.targets = {entry.key: entry for entry in targets}
        self.epoch = 1
        self.used_at = now
        self.uses_topic_ids = uses_topic_ids

    def rotate(self, served: Iterable[FetchPartitionKey]) -> None:
        """Partitions that gave data go to the back, so that the others have their turn."""
        for key in served:
            if (entry := self.targets.pop(key, None)) is not None:
                self.targets[key] = entry


class ResolvedFetch(NamedTuple):
    """What one request asks for."""

    targets: list[FetchTarget]
    session: FetchSession | None
    """None: the reply holds everything and names no session."""
    is_incremental: bool
    """Only what changed goes into the reply."""
    runs: list[TopicRun] | None = None
    """How `targets` falls into topics, where that is known."""


def weigh_fetch(request: FetchRequest, frame_bytes: int) -> int:
    """What waits are its partitions. Those that a session adds are counted there."""
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
        """`partitions_max`: how many all sessions together remember."""
        self._slots = slots
        self._partitions_max = partitions_max
        self._clock = clock
        self._randomness = randomness
        # In order of last use: the first is the one to evict.
        self._sessions: dict[int, FetchSession] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchRequest, version: int) -> ResolvedFetch | ErrorCode:
        """What the request fetches, or the error that answers it as a whole."""
        if isinstance(request, CachedFetchRequest):
            return ResolvedFetch(request.targets, None, is_incremental=False, runs=request.runs)
        session_id, epoch = request.session_id, request.session_epoch
        if epoch in (FULL_EPOCH, FINAL_EPOCH):
            self._drop(session_id)
            targets = list(_named(request, version))
            if epoch == FINAL_EPOCH:
                return ResolvedFetch(targets, None, is_incremental=False)
            return ResolvedFetch(targets, self._create(targets, version), is_incremental=False)
        session = self._sessions.get(session_id)
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
        session.epoch = 1 if session.epoch == INT_MAX else session.epoch + 1
        session.used_at = self._clock.monotonic()
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
        if oldest is None or (now - oldest.used_at) * 1000 < FETCH_SESSION_EVICTION_MS:
            return False
        self._drop(oldest.id)
        return True

    def _drop(self, session_id: int) -> None:
        if (session := self._sessions.pop(session_id, None)) is not None:
            self._partitions -= len(session.targets)

    def _new_id(self) -> int:
        while True:
            session_id = int.from_bytes(self._randomness.bytes(4), "big") & INT_MAX
            if session_id != NO_SESSION and session_id not in self._sessions:
                return session_id


def _may_exist(topic: str) -> bool:
    return len(topic) <= TOPIC_NAME_CHARACTERS_MAX and topic.isascii()


def _named(request: FetchRequest, version: int) -> Iterable[FetchTarget]:
    """The partitions a request names; of one named twice, the last counts."""
    by_id = version >= TOPIC_IDS_SINCE
    found: dict[FetchPartitionKey, FetchTarget] = {}
    for topic in request.topics:
        name, topic_id = ("", topic.topic_id) if by_id else (topic.topic, NO_TOPIC_ID)
        for params in topic.partitions:
            key = FetchPartitionKey(name, topic_id, params.partition)
            found[key] = FetchTarget(key, params)
    return found.values()
