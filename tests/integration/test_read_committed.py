"""Consumers of other libraries read committed records from a real broker.

No client can begin a transaction yet: the broker of these tests takes transactional batches, and the tests
write the markers themselves, as a transaction coordinator would.
"""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.broker.broker import BrokerLimits
from penstock.broker.data.pending_produce import ProduceLimits
from penstock.errors import ErrorCode
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.protocol.messages.produce import PRODUCE, PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.messages.write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from penstock.protocol.records import Record, build_batch
from penstock.testing.in_process import Broker, broker_with
from penstock.types import Offset
from tests.integration.broker_process import eventually
from tests.integration.messages import FIRST_TIMESTAMP_MS, QUIET
from tests.integration.raw_client import RawClient, connected

PRODUCE_VERSION = 9
LATEST = -1


@pytest.fixture(scope="module")
def transactional_broker() -> Iterator[Broker]:
    limits = BrokerLimits(produce=ProduceLimits(allows_transactions=True))
    with broker_with(limits=limits) as running:
        yield running


class TransactionalClient:
    """Two producers that write to one topic, and their coordinator."""

    def __init__(self, client: RawClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._sequences: dict[int, int] = {}

    def write(self, producer: int, *values: bytes) -> None:
        sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + len(values)
        records = [Record(Offset(0), FIRST_TIMESTAMP_MS, None, value) for value in values]
        batch = build_batch(
            records,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        assert self.produce(batch, "t") == ErrorCode.NONE

    def produce(self, batch: bytes, transactional_id: str | None) -> int:
        data = [TopicProduceData(self._topic, partition_data=[PartitionProduceData(0, batch)])]
        request = ProduceRequest(transactional_id, -1, 10_000, data)
        reply = self._client.ask(PRODUCE, PRODUCE_VERSION, request)
        return reply.responses[0].partition_responses[0].error_code

    def end(self, producer: int, *, commit: bool) -> None:
        topics = [WritableTxnMarkerTopic(self._topic, [0])]
        request = WriteTxnMarkersRequest([WritableTxnMarker(producer, 0, commit, topics, 1)])
        reply = self._client.ask(WRITE_TXN_MARKERS, 1, request)
        assert reply.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE

    def latest(self, isolation_level: int) -> int:
        asked = ListOffsetsTopic(self._topic, [ListOffsetsPartition(0, timestamp=LATEST)])
        request = ListOffsetsRequest(isolation_level=isolation_level, topics=[asked])
        return self._client.ask(LIST_OFFSETS, 5, request).topics[0].partitions[0].offset


@pytest.fixture
def writer(transactional_broker: Broker, request: pytest.FixtureRequest) -> Iterator[TransactionalClient]:
    with connected(transactional_broker.bootstrap) as client:
        client.create_topic(request.node.name)
        yield TransactionalClient(client, request.node.name)


def consumed(running: Broker, topic: str, isolation: str, *, until: int) -> list[bytes | None]:
    """Every value that a consumer of librdkafka delivers before this position."""
    consumer = Consumer(
        {
            "bootstrap.servers": running.bootstrap,
            "group.id": "readers",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
            **QUIET,
        }
    )
    partition = TopicPartition(topic, 0, 0)
    consumer.assign([partition])
    values: list[bytes | None] = []

    def has_read() -> bool:
        message = consumer.poll(0.05)
        if message is not None:
            assert message.error() is None
            values.append(message.value())
        return consumer.position([partition])[0].offset >= until

    eventually(has_read)
    consumer.close()
    return values


def test_librdkafka_delivers_only_committed_records(
    transactional_broker: Broker, writer: TransactionalClient, request: pytest.FixtureRequest
) -> None:
    writer.write(1, b"a1", b"a2")
    writer.write(2, b"b1")
    writer.write(1, b"a3")
    writer.end(1, commit=False)
    writer.write(2, b"b2")
    writer.end(2, commit=True)
    writer.write(1, b"a4")
    writer.end(1, commit=True)
    topic = request.node.name
    committed = consumed(transactional_broker, topic, "read_committed", until=9)
    assert committed == [b"b1", b"b2", b"a4"]
    everything = consumed(transactional_broker, topic, "read_uncommitted", until=9)
    assert everything == [b"a1", b"a2", b"b1", b"a3", b"b2", b"a4"]


def test_an_open_transaction_holds_back_what_comes_after_it(
    transactional_broker: Broker, writer: TransactionalClient, request: pytest.FixtureRequest
) -> None:
    writer.write(1, b"a1")
    writer.end(1, commit=True)
    writer.write(1, b"a2")
    writer.write(2, b"b1")
    writer.end(2, commit=True)
    assert (writer.latest(0), writer.latest(1)) == (5, 2)
    topic = request.node.name
    assert consumed(transactional_broker, topic, "read_committed", until=2) == [b"a1"]
    writer.end(1, commit=False)
    assert (writer.latest(0), writer.latest(1)) == (6, 6)
    assert consumed(transactional_broker, topic, "read_committed", until=6) == [b"a1", b"b1"]


def test_a_batch_without_a_transactional_id_is_rejected(writer: TransactionalClient) -> None:
    record = Record(Offset(0), FIRST_TIMESTAMP_MS, None, b"x")
    batch = build_batch([record], producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    assert writer.produce(batch, None) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
