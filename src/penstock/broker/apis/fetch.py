"""Fetch: api key 1, versions 4 to 18.

Returns stored batches, unchanged, from the requested offset up to the high watermark. Followers get batches
up to the log end offset, and their fetch offset acknowledges all records below it
(broker/replication/follower_fetches.py).

Behaviour
    waits     until `min_bytes` are available or `max_wait_ms` have passed; errors are returned at once
    limits    whole batches; the first partition with data returns at least one, whatever the limit
    sessions  KIP-227: created, continued, forgotten; see broker/data/fetch_sessions.py
    epochs    a client with another leader epoch is fenced; a diverging log gets the divergence offset
    racks     KIP-392: with replica.selector.class a client is redirected to an in-sync replica in its rack;
              followers serve every client whose version supports that, up to their own high watermark
Versions
    7   sessions                     12  flexible; diverging epochs
    9   leader epoch of the client   13  topic ids instead of names
    11  rack of the client           15  replica state replaces replica id
    18  the follower's own high watermark
Differs from Kafka
    G11 an unknown isolation level is rejected with INVALID_REQUEST; negative limits count as 0
    a follower whose high watermark is behind (version 18) gets no earlier reply for that
    G15 a batch is never truncated: where Kafka ends a reply within one, this broker ends it before that batch
"""

from collections.abc import Callable, Iterable

from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_reader import FetchLimits, FetchReader, FetchResult
from penstock.broker.data.fetch_sessions import FetchSessions, FetchTarget, weigh_fetch
from penstock.broker.data.pending_fetch import FetchParams, PendingFetch
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import TOPIC, ServedApi, topics_named
from penstock.errors import ErrorCode
from penstock.host.tasks import Tasks
from penstock.limits import FETCH_SESSION_PARTITIONS_MAX
from penstock.protocol.messages.fetch import FETCH, FetchRequest, FetchResponse
from penstock.replication.partition import Partition
from penstock.security.access import CLUSTER, Operation

ISOLATION_LEVELS = (0, 1)


class Fetch:
    api = ServedApi(FETCH, Operation.READ, TOPIC, topics_named("topics", "topic"), weigh=weigh_fetch)

    def __init__(
        self,
        reads: FetchReader,
        sessions: FetchSessions,
        tasks: Tasks,
        fetch_bytes_max: int,
        free_reply_bytes: Callable[[], int],
        watched_max: int = FETCH_SESSION_PARTITIONS_MAX,
    ) -> None:
        self._reads = reads
        self._sessions = sessions
        self._tasks = tasks
        self._fetch_bytes_max = fetch_bytes_max
        self._free_reply_bytes = free_reply_bytes
        self.watched = 0
        """Number of partitions that pending fetches wait for; each fetch counts its own."""
        self.watched_max = watched_max

    def __call__(self, request: FetchRequest, context: RequestContext) -> FetchResponse | DeferredReply:
        if request.isolation_level not in ISOLATION_LEVELS:
            return FetchResponse(error_code=ErrorCode.INVALID_REQUEST)
        params = FetchParams.by(request, context.version)
        if params.replica_id >= 0 and not context.may(Operation.CLUSTER_ACTION, CLUSTER.type, CLUSTER.name):
            return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if params.replica_id >= 0:
            rejection = self._reads.session_error(params.replica_id, params.replica_epoch)
            if rejection is not None:
                return FetchResponse(error_code=rejection)
        fetching = self._sessions.resolve(request, context.version)
        if isinstance(fetching, ErrorCode):
            return FetchResponse(error_code=fetching)
        return PendingFetch(self, params, fetching, context).begin()

    def limits(self, params: FetchParams) -> FetchLimits:
        room = min(params.bytes_max, self._fetch_bytes_max, self._free_reply_bytes())
        rack = params.rack if self._reads.is_rack_aware else ""
        who = (params.replica_id, params.replica_epoch, params.may_read_from_follower, rack)
        return FetchLimits(max(room, 0), params.isolation_level, *who)

    @property
    def has_reply_memory(self) -> bool:
        """False while unsent replies use up the memory that is reserved for replies."""
        return self._free_reply_bytes() > 0

    def gather(self, targets: list[FetchTarget], limits: FetchLimits, context: RequestContext) -> FetchResult:
        return self._reads.gather(targets, limits, context)

    def gather_again(
        self, targets: list[FetchTarget], idle: FetchResult, moved: Iterable[int], context: RequestContext
    ) -> FetchResult:
        return self._reads.gather_again(targets, idle, moved, context)

    def gather_cold(self, progress: "PendingFetch") -> None:
        self._tasks.start(progress.read_cold(self._reads), "fetch from disk")

    def partitions_of(self, targets: list[FetchTarget]) -> list[Partition]:
        found = [entry.partition for entry in targets]
        if None in found:
            found = [entry.partition or self._reads.find(entry.key) for entry in targets]
        return [partition for partition in found if partition is not None]
