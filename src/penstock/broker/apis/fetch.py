"""Fetch: api key 1, versions 4 to 18.

Returns stored batches, as they are stored, from the offset asked for up to the high watermark; to
followers up to the end of the log, and their offset acknowledges all below it
(broker/replication/follower_fetches.py).

Behaviour
    waits     until `min_bytes` are there or `max_wait_ms` have passed; an error answers at once
    limits    whole batches; the first partition with data gives at least one, whatever the limit
    sessions  KIP-227: created, continued, forgotten; see broker/data/fetch_sessions.py
    epochs    a client with another leader epoch is fenced; one whose history differs is told where
    racks     KIP-392: with replica.selector.class a client is sent to a replica in sync in its rack;
              followers answer everybody who knows of that, up to the high watermark they know of
Versions
    7   sessions                     12  flexible; diverging epochs
    9   leader epoch of the client   13  topic ids instead of names
    11  rack of the client           15  replica state replaces replica id
    18  the high watermark that a follower knows
Differs from Kafka
    G11 an unknown isolation level is answered INVALID_REQUEST; negative limits count as 0
    a follower whose high watermark is behind (version 18) is not answered sooner for that
    G15 a batch is never cut: where Kafka ends a reply within one, this ends before it
"""

from collections.abc import Callable, Iterable

from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_reader import FetchReads, Gathered, Limits
from penstock.broker.data.fetch_sessions import FetchSessions, Wanted, weigh_fetch
from penstock.broker.data.pending_fetch import Asked, FetchInProgress
from penstock.broker.router import Later
from penstock.broker.served_api import TOPIC, ServedApi, topics
from penstock.errors import ErrorCode
from penstock.host.tasks import Tasks
from penstock.limits import FETCH_SESSION_PARTITIONS_MAX
from penstock.protocol.messages.fetch import FETCH, FetchRequest, FetchResponse
from penstock.replication.partition import Partition
from penstock.security.access import CLUSTER, Operation

ISOLATION_LEVELS = (0, 1)


class Fetch:
    api = ServedApi(FETCH, Operation.READ, TOPIC, topics("topics", "topic"), weigh=weigh_fetch)

    def __init__(
        self,
        reads: FetchReads,
        sessions: FetchSessions,
        tasks: Tasks,
        fetch_bytes_max: int,
        reply_room: Callable[[], int],
        watched_max: int = FETCH_SESSION_PARTITIONS_MAX,
    ) -> None:
        self._reads = reads
        self._sessions = sessions
        self._tasks = tasks
        self._fetch_bytes_max = fetch_bytes_max
        self._reply_room = reply_room
        self.watched = 0
        """Partitions that fetches wait for, each counted for every one."""
        self.watched_max = watched_max

    def __call__(self, request: FetchRequest, context: RequestContext) -> FetchResponse | Later:
        if request.isolation_level not in ISOLATION_LEVELS:
            return FetchResponse(error_code=ErrorCode.INVALID_REQUEST)
        asked = Asked.by(request, context.version)
        if asked.replica_id >= 0 and not context.may(Operation.CLUSTER_ACTION, CLUSTER.type, CLUSTER.name):
            return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if asked.replica_id >= 0:
            refusal = self._reads.refusal_of(asked.replica_id, asked.replica_epoch)
            if refusal is not None:
                return FetchResponse(error_code=refusal)
        fetching = self._sessions.resolve(request, context.version)
        if isinstance(fetching, ErrorCode):
            return FetchResponse(error_code=fetching)
        return FetchInProgress(self, asked, fetching, context).begin()

    def limits(self, asked: Asked) -> Limits:
        room = min(asked.bytes_max, self._fetch_bytes_max, self._reply_room())
        rack = asked.rack if self._reads.is_rack_aware else ""
        who = (asked.replica_id, asked.replica_epoch, asked.may_follow, rack)
        return Limits(max(room, 0), asked.isolation_level, *who)

    @property
    def has_room(self) -> bool:
        """False while unsent replies fill the memory set aside for them."""
        return self._reply_room() > 0

    def gather(self, wanted: list[Wanted], limits: Limits, context: RequestContext) -> Gathered:
        return self._reads.gather(wanted, limits, context)

    def gather_again(
        self, wanted: list[Wanted], idle: Gathered, moved: Iterable[int], context: RequestContext
    ) -> Gathered:
        return self._reads.gather_again(wanted, idle, moved, context)

    def gather_cold(self, progress: "FetchInProgress") -> None:
        self._tasks.start(progress.read_cold(self._reads), "fetch from disk")

    def partitions_of(self, wanted: list[Wanted]) -> list[Partition]:
        found = [entry.partition for entry in wanted]
        if None in found:
            found = [entry.partition or self._reads.find(entry.key) for entry in wanted]
        return [partition for partition in found if partition is not None]
