"""A cluster of brokers in memory, and time that passes only when somebody waits.

A broker answers through functions by API; without one, or with one that raises Hangup, it closes the
connection. What it was asked is kept.
"""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.config.listeners import Address
from penstock.errors import ErrorCode
from penstock.host.blocking_stream import ConnectionProblem, connection_problem
from penstock.protocol.apis import APIS
from penstock.protocol.frames import decode_request, encode_response, parse_request_header
from penstock.protocol.messages.api_versions import API_VERSIONS, ApiVersion, ApiVersionsResponse
from penstock.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from penstock.protocol.messages.init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from penstock.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.protocol.messages.metadata import (
    METADATA,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.protocol.records import Record, build_batch
from penstock.protocol.schema import Api
from penstock.types import Buffer, Offset, TopicId, TopicPartition
from penstock.wire.cluster_client import LATEST, ClusterClient

ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
TIMEOUT_S = 60.0
TOPIC_ID = TopicId(b"orders' own id..")


class Hangup(Exception):
    """Close the connection instead of answering."""


class Silence(Exception):
    """Never answer."""


class FakeBroker:
    def __init__(self, number: int, cluster: "FakeCluster") -> None:
        self.address = Address(f"broker-{number}", 9092)
        self.is_up = True
        self.connections = 0
        self.newest: dict[int, int] = {}
        self.asked: list[tuple[str, int, Any]] = []
        self.handlers: dict[int, Callable[[Any, int], Any]] = {
            METADATA.key: cluster.metadata,
            INIT_PRODUCER_ID.key: cluster.init_producer_id,
        }

    def on(self, api: Api[Any, Any], *answers: Any) -> None:
        """Answer with these in turn, and with the last for ever; an exception is raised."""
        rest = list(answers)

        def answer(request: Any, version: int) -> Any:
            found = rest.pop(0) if len(rest) > 1 else rest[0]
            if isinstance(found, Exception):
                raise found
            return found(request) if callable(found) else found

        self.handlers[api.key] = answer

    def count(self, api: Api[Any, Any]) -> int:
        return sum(name == api.name for name, _, _ in self.asked)

    def answer(self, frame: bytes) -> bytes:
        header, _ = parse_request_header(frame)
        api = APIS[header.api_key]
        request = decode_request(api, header.api_version, frame)
        if api.key == API_VERSIONS.key:
            keys = [
                ApiVersion(each.key, each.versions[0], self.newest.get(each.key, each.versions[1]))
                for each in APIS.values()
            ]
            message: Any = ApiVersionsResponse(api_keys=keys)
        else:
            self.asked.append((api.name, header.api_version, request))
            message = self.handlers[api.key](request, header.api_version)
        return b"".join(encode_response(api, header.api_version, header.correlation_id, message))


class FakeStream:
    def __init__(self, broker: FakeBroker, cluster: "FakeCluster") -> None:
        self._broker = broker
        self._cluster = cluster
        self._coming = b""
        self._is_closed = False
        self._is_silent = False
        self._timeout_s = 0.0
        self.is_hung_up = False
        broker.connections += 1

    def allow(self, timeout_s: float) -> None:
        assert timeout_s > 0
        self._timeout_s = timeout_s

    def send(self, buffers: Sequence[Buffer]) -> None:
        self._check()
        try:
            self._coming += self._broker.answer(b"".join(buffers)[4:])
        except Hangup:
            self.is_hung_up = True
        except Silence:
            self._is_silent = True

    def receive_into(self, room: memoryview) -> int:
        self._check()
        if self._is_silent and not self._coming:
            self._cluster.now += self._timeout_s
            raise TimeoutError("timed out")
        count = min(len(room), len(self._coming))
        room[:count] = self._coming[:count]
        self._coming = self._coming[count:]
        return count

    def is_stale(self) -> bool:
        return self.is_hung_up or not self._broker.is_up

    def close(self) -> None:
        self._is_closed = True

    def _check(self) -> None:
        if self._is_closed or not self._broker.is_up:
            raise ConnectionResetError("reset")


class FakeCluster:
    """Topic `orders` with two partitions: broker 0 leads both until it is said otherwise."""

    def __init__(self, count: int = 2) -> None:
        self.now = 0.0
        self.leaders = {0: 0, 1: 0}
        self.epoch = 7
        self.topic_id = TOPIC_ID
        self.existing = {"orders"}
        self.streams: list[FakeStream] = []
        self.brokers = [FakeBroker(number, self) for number in range(count)]
        self.on_sleep: Callable[[], None] = lambda: None
        self.producers = 0

    @property
    def addresses(self) -> list[Address]:
        return [broker.address for broker in self.brokers]

    # The network

    def connect(self, host: str, port: int, *, timeout_s: float) -> FakeStream:
        broker = next(broker for broker in self.brokers if broker.address == Address(host, port))
        if not broker.is_up:
            raise ConnectionRefusedError("refused")
        self.streams.append(FakeStream(broker, self))
        return self.streams[-1]

    def problem(self, error: OSError) -> ConnectionProblem:
        return connection_problem(error, is_tls=False)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()

    def mislead(self, number: int, **facts: Any) -> None:
        """Have a broker describe the cluster by these facts (`topic_id`, ...) instead of the true ones."""

        def answer(request: MetadataRequest, version: int) -> MetadataResponse:
            true = {name: getattr(self, name) for name in facts}
            vars(self).update(facts)
            found = self.metadata(request, version)
            vars(self).update(true)
            return found

        self.brokers[number].handlers[METADATA.key] = answer

    # What every broker answers

    def init_producer_id(self, request: InitProducerIdRequest, version: int) -> InitProducerIdResponse:
        assert request.transactional_id is None
        self.producers += 1
        return InitProducerIdResponse(producer_id=100 * self.producers, producer_epoch=3)

    def metadata(self, request: MetadataRequest, version: int) -> MetadataResponse:
        wanted = sorted(self.existing) if request.topics is None else [each.name for each in request.topics]
        brokers = [
            MetadataResponseBroker(number, broker.address.host, broker.address.port)
            for number, broker in enumerate(self.brokers)
        ]
        topics = [self._topic(name or "") for name in wanted]
        return MetadataResponse(brokers=brokers, controller_id=0, topics=topics)

    def _topic(self, name: str) -> MetadataResponseTopic:
        if name not in self.existing:
            return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
        partitions = [
            MetadataResponsePartition(0, number, leader, self.epoch)
            for number, leader in self.leaders.items()
        ]
        return MetadataResponseTopic(0, name, self.topic_id, partitions=partitions)


def client_of(cluster: FakeCluster) -> ClusterClient:
    return ClusterClient(cluster.addresses, client_id="test", timeout_s=TIMEOUT_S, network=cluster)


def offsets_answer(code: int = 0, offset: int = 42) -> Callable[[ListOffsetsRequest], ListOffsetsResponse]:
    def answer(request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = [
            ListOffsetsTopicResponse(
                topic.name,
                [
                    ListOffsetsPartitionResponse(each.partition_index, code, 5, offset)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return ListOffsetsResponse(topics=topics)

    return answer


def ask_latest(client: ClusterClient, *partitions: TopicPartition) -> dict[TopicPartition, int]:
    found = client.offsets(dict.fromkeys(partitions or [ORDERS], LATEST), read_committed=False)
    return {partition: offset for partition, (offset, _) in found.items()}


class Log:
    """A partition of batches of ten records, as brokers serve it."""

    def __init__(self, batches: int) -> None:
        records = [Record(Offset(0), 1, None, b"v" * 100)] * 10
        self.batches = [build_batch(records, base_offset=10 * number) for number in range(batches)]
        self.start = 0
        self.asked: list[int] = []
        self.aborted: list[AbortedTransaction] | None = None
        self.per_answer = 3

    def serve(self, request: FetchRequest) -> FetchResponse:
        position = request.topics[0].partitions[0].fetch_offset
        self.asked.append(position)
        data = PartitionData(high_watermark=10 * len(self.batches), log_start_offset=self.start)
        if not self.start <= position <= 10 * len(self.batches):
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            first = position // 10
            data.records = b"".join(self.batches[first : first + self.per_answer])
            data.aborted_transactions = self.aborted
        return fetch_answer(data)


def fetch_answer(data: PartitionData) -> FetchResponse:
    return FetchResponse(responses=[FetchableTopicResponse("orders", TOPIC_ID, [data])])
