"""The blocking client of a whole cluster.

    client = ClusterClient([Address("127.0.0.1", 9092)], client_id="report")
    for fetched in client.fetch(TopicPartition("orders", 0), Offset(0), Offset(1000), read_committed=True):
        decode(fetched.data)

The client starts from several bootstrap brokers, requests the metadata, keeps one connection per broker,
follows leader changes, and retries transient failures for at most `timeout_s` per call. A fetch restarts
that time whenever records arrived.

Rule 1: every failure is a WireError that names the request and the remedy; CorruptData if a broker sends
        bytes that cannot be batches.
Rule 2: one caller at a time, but several ranges may be read alternately: each `fetch` has its own position.
Rule 3: a copy in a child process would share the sockets: after a fork, create a new client.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType

from penstock.config.listeners import Address
from penstock.errors import ErrorCode
from penstock.host.blocking_stream import TcpNetwork
from penstock.host.tls import ClientTls
from penstock.protocol.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from penstock.types import NO_TOPIC_ID, Buffer, Offset, TopicId, TopicPartition
from penstock.wire import group_offsets
from penstock.wire.cluster_metadata import TopicMetadata
from penstock.wire.cluster_session import CallDeadline, ClusterSession
from penstock.wire.connection_pool import ANSWER_S_MAX, AttemptFailed, ConnectionPool, Network
from penstock.wire.epoch_ends import EpochEndsOperation
from penstock.wire.errors import OffsetOutOfRange, WireError
from penstock.wire.list_offsets import EARLIEST, LATEST, ListOffsetsOperation, LogEnd, LogEndsOperation
from penstock.wire.produce import produce_all
from penstock.wire.range_fetcher import BYTES_AT_ONCE, FetchedBatches, RangeFetcher
from penstock.wire.retry_policy import Remedy, RequestFailure, failure_of, is_unknown_topic
from penstock.wire.sequence_numbers import SequenceNumbers

__all__ = [
    "EARLIEST",
    "LATEST",
    "ClusterClient",
    "FetchedBatches",
    "LogEnd",
    "OffsetOutOfRange",
    "TopicMetadata",
    "WireError",
]

TIMEOUT_S = 60.0


class ClusterClient:
    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str,
        tls: ClientTls | None = None,
        sasl_mechanism: str | None = None,
        timeout_s: float = TIMEOUT_S,
        network: Network | None = None,
    ) -> None:
        """Connects nothing yet. WireError if the settings can never work."""
        if not bootstrap:
            raise WireError("no broker is named. Give the address of one at least, as host:port.")
        if sasl_mechanism is not None:
            raise WireError(
                f"SASL ({sasl_mechanism}) is not supported yet: a broker accepts no user names. "
                "Connect without it, or show a client certificate with TLS."
            )
        network = TcpNetwork(tls) if network is None else network
        self._session = ClusterSession(network, ConnectionPool(network, bootstrap, client_id), timeout_s)
        self._sequences = SequenceNumbers()

    # Topics

    def topics(
        self, names: Iterable[str] | None = None, ids: Mapping[str, TopicId] | None = None
    ) -> dict[str, TopicMetadata]:
        """Metadata of the named topics that exist; None: all topics that exist and are usable now.

        A named topic is left out only if none of the brokers that replied has it: one broker may be behind.
        A topic in `ids` is returned with another id only if none of those brokers has it with that id.
        """
        requested = None if names is None else list(dict.fromkeys(names))
        if requested == []:
            return {}
        deadline = self._session.deadline("asking for topics")
        deadline.requested |= ids or {}
        return self._session.retry(deadline, lambda: self._topics(requested, deadline))

    def topic(self, name: str, topic_id: TopicId = NO_TOPIC_ID) -> TopicMetadata:
        """Metadata of an existing topic. An unknown topic is retried for some seconds, then TopicUnknown.

        The topic is returned with another id than `topic_id` only if no broker that replied has it with that.
        """
        deadline = self._session.deadline(f"asking for topic {name}")
        deadline.expect(name, topic_id)
        return self._session.retry(deadline, lambda: self._topic(name, deadline))

    def _topic(self, name: str, deadline: CallDeadline) -> TopicMetadata:
        found = self._topics([name], deadline).get(name)
        if found is None:
            raise AttemptFailed(failure_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        return found

    def _topics(self, requested: list[str] | None, deadline: CallDeadline) -> dict[str, TopicMetadata]:
        if requested is None:
            self._session.refresh(None, deadline)
        else:
            ids = {name: deadline.requested.get(name, NO_TOPIC_ID) for name in requested}
            self._session.refresh_topics(ids, deadline)
        view = self._session.view
        found: dict[str, TopicMetadata] = {}
        for name in view.names() if requested is None else requested:
            facts = view.facts(name)
            if isinstance(facts, TopicMetadata):
                found[name] = facts
            elif requested is not None and facts is not None and not is_unknown_topic(facts):
                raise AttemptFailed(facts._replace(what=f"topic {name}: {facts.what}"))
        return found

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic, or accept an existing one. Returns when every partition has a leader."""
        deadline = self._session.deadline(f"creating topic {name}")
        settings = [CreatableTopicConfig(key, value) for key, value in (configs or {}).items()]
        topic = CreatableTopic(name, partitions, replication_factor=-1, configs=settings)
        request = CreateTopicsRequest([topic], timeout_ms=int(ANSWER_S_MAX * 1000))
        self._session.retry(deadline, lambda: self._create(request, deadline))
        self._session.retry(deadline, lambda: self._see_leaders(name, deadline))

    def _create(self, request: CreateTopicsRequest, deadline: CallDeadline) -> None:
        controller = self._session.controller(deadline)
        for result in self._session.exchange(controller, CREATE_TOPICS, request).topics:
            # A retry after a lost reply finds the topic that the first attempt created.
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise AttemptFailed(failure_of(result.error_code, result.error_message))

    def _see_leaders(self, name: str, deadline: CallDeadline) -> None:
        self._session.refresh([name], deadline)
        if not self._session.view.has_all_leaders(name):
            raise AttemptFailed(RequestFailure("its partitions have no leader yet", Remedy.RETRY))

    # Records

    def offsets(
        self, requested: Mapping[TopicPartition, int], *, read_committed: bool
    ) -> dict[TopicPartition, tuple[Offset, int]]:
        """Look up offsets by timestamp in ms, EARLIEST or LATEST; returns each offset and its record's
        timestamp.

        The offset is -1 if no record is that recent.
        """
        deadline = self._session.deadline("asking for offsets")
        return self._session.run_on_leaders(deadline, ListOffsetsOperation(read_committed), requested)

    def log_ends(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool
    ) -> dict[TopicPartition, LogEnd]:
        """Look up where the records of each partition end, and the epoch of the leader that replied."""
        deadline = self._session.deadline("asking for the ends of partitions")
        requested = dict.fromkeys(partitions, LATEST)
        return self._session.run_on_leaders(deadline, LogEndsOperation(read_committed), requested)

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, Offset]:
        """Look up where each leader epoch ended in the log of the present leader.

        If the epoch has no records there, the end is that of the last epoch before it. -1: none is known.
        """
        deadline = self._session.deadline("asking for the ends of leader epochs")
        return self._session.run_on_leaders(deadline, EpochEndsOperation(), epochs)

    def fetch(
        self,
        partition: TopicPartition,
        start: Offset,
        end: Offset,
        *,
        read_committed: bool,
        bytes_at_once: int = BYTES_AT_ONCE,
        topic_id: TopicId = NO_TOPIC_ID,
    ) -> Iterator[FetchedBatches]:
        """Read from `start` until `end` is reached, one request ahead of the caller.

        OffsetOutOfRange if the records do not exist. Batches are whole, so the first may begin before
        `start` and the last may go beyond `end`. The call waits for an `end` that is not written yet. If a
        `topic_id` is given, the topic must have it: TopicReplaced if it has another one.
        """
        fetching = RangeFetcher(
            self._session,
            partition,
            end,
            read_committed=read_committed,
            bytes_at_once=bytes_at_once,
            topic_id=topic_id,
        )
        return fetching.run(start)

    def produce(self, partition: TopicPartition, batches: Sequence[Buffer]) -> Offset:
        """Write the batches in order, as `produce_many` does. Returns the offset of the first one."""
        return self.produce_many({partition: batches})[partition]

    def produce_many(
        self,
        batches: Mapping[TopicPartition, Sequence[Buffer]],
        *,
        acks: int = -1,
        is_idempotent: bool = True,
    ) -> dict[TopicPartition, Offset]:
        """Write batches in order to many partitions, on all leaders in parallel.

        Returns the offset of each partition's first batch; -1 if a reply was lost and the broker only
        reports a duplicate. After a return, each batch is written once, or at least once if not idempotent.
        After an exception, any of the batches may have been written.
        """
        if acks == 0:
            raise WireError("acks=0 is not supported: nothing would be known of what was written. Use -1.")
        if is_idempotent and acks != -1:
            raise WireError("an idempotent producer needs acks=-1: give that, or no idempotence.")
        sequences = self._sequences if is_idempotent else None
        some = {each: row for each, row in batches.items() if row}
        return produce_all(self._session, some, acks, sequences)

    # Groups

    def committed(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Offset | None]:
        """Committed offsets of a group; None for partitions without one."""
        requested = list(partitions)
        found = group_offsets.committed(self._session, group, requested) if requested else {}
        return {partition: found.get(partition) for partition in requested}

    def commit(self, group: str, offsets: Mapping[TopicPartition, Offset], note: str = "") -> None:
        """Commit offsets without membership: rejected while the group has members."""
        if offsets:
            group_offsets.commit(self._session, group, offsets, note)

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> "ClusterClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
