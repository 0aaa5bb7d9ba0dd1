"""Fetch: api key 1, versions 4 to 18.

Returns stored batches, unchanged, from the requested offset up to the high watermark. Followers get batches
up to the log end offset, and their fetch offset acknowledges all records below it
(broker/replication/cluster_followers.py).

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

from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_reader import FetchParams, FetchReader, Followers
from penstock.broker.data.fetch_sessions import FetchSessions, weigh_fetch
from penstock.broker.data.pending_fetch import FetchCapacity, PendingFetch
from penstock.broker.router import DeferredReply
from penstock.broker.served_api import TOPIC, ServedApi, topics_named
from penstock.errors import ApiError, ErrorCode
from penstock.host.tasks import Tasks
from penstock.protocol.messages.fetch import FETCH, FetchRequest, FetchResponse
from penstock.security.access import CLUSTER, Operation

ISOLATION_LEVELS = (0, 1)


class Fetch:
    api = ServedApi(FETCH, Operation.READ, TOPIC, topics_named("topics", "topic"), weigh=weigh_fetch)

    def __init__(
        self,
        reader: FetchReader,
        followers: Followers,
        sessions: FetchSessions,
        capacity: FetchCapacity,
        tasks: Tasks,
    ) -> None:
        self._reader = reader
        self._followers = followers
        self._sessions = sessions
        self._capacity = capacity
        self._tasks = tasks

    def __call__(self, request: FetchRequest, context: RequestContext) -> FetchResponse | DeferredReply:
        if request.isolation_level not in ISOLATION_LEVELS:
            return FetchResponse(error_code=ErrorCode.INVALID_REQUEST)
        params = FetchParams.of(request, context.version, is_rack_aware=self._followers.is_rack_aware)
        if params.replica_id >= 0:
            if not context.may(Operation.CLUSTER_ACTION, CLUSTER.type, CLUSTER.name):
                return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            try:
                self._followers.require_session(params)
            except ApiError as rejection:
                return FetchResponse(error_code=rejection.code)
        fetching = self._sessions.resolve(request, context.version)
        if isinstance(fetching, ErrorCode):
            return FetchResponse(error_code=fetching)
        return PendingFetch(self._reader, self._capacity, self._tasks, params, fetching, context).begin()
