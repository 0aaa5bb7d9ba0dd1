"""A producer that repeats a batch, because it never heard of the first one's success, writes it once."""

from pathlib import Path
from typing import NamedTuple

from penstock.errors import ErrorCode
from penstock.protocol.messages.init_producer_id import INIT_PRODUCER_ID, InitProducerIdRequest
from penstock.testing import broker
from tests.integration.broker_process import BrokerProcess
from tests.integration.raw_client import RawClient, batch_of, connected

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class Producer(NamedTuple):
    producer_id: int
    epoch: int

    def batch(self, sequence: int, *values: bytes) -> bytes:
        return batch_of(
            *values, producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=sequence
        )


def new_producer(client: RawClient) -> Producer:
    reply = client.ask(INIT_PRODUCER_ID, 4, InitProducerIdRequest())
    assert reply.error_code == 0
    return Producer(reply.producer_id, reply.producer_epoch)


def end_of(client: RawClient, topic: str) -> int:
    return client.fetch(topic, 0).responses[0].partitions[0].high_watermark


def test_a_repeated_batch_is_acknowledged_with_its_first_offset(bootstrap: str, topic: str) -> None:
    with connected(bootstrap) as client:
        client.create_topic(topic)
        producer = new_producer(client)
        first = client.produce(topic, producer.batch(0, b"a", b"b"))
        second = client.produce(topic, producer.batch(2, b"c"))

        repeated = [client.produce(topic, producer.batch(0, b"a", b"b")) for _ in range(3)]

        assert (first.base_offset, second.base_offset) == (0, 2)
        assert [(reply.error_code, reply.base_offset) for reply in repeated] == [(0, 0)] * 3
        assert end_of(client, topic) == 3


def test_a_batch_repeated_after_a_restart_is_recognised(tmp_path: Path) -> None:
    with broker(tmp_path) as running:
        producer = write_five(running.bootstrap)
    with broker(tmp_path) as running:
        repeat_five(running.bootstrap, producer)


def test_a_batch_repeated_after_a_crash_is_recognised(own_broker: BrokerProcess) -> None:
    producer = write_five(own_broker.bootstrap)
    own_broker.kill()
    own_broker.start()
    repeat_five(own_broker.bootstrap, producer)


def write_five(bootstrap: str) -> Producer:
    with connected(bootstrap) as client:
        client.create_topic("orders")
        producer = new_producer(client)
        for sequence in range(5):
            assert client.produce("orders", producer.batch(sequence, b"%d" % sequence)).error_code == 0
    return producer


def repeat_five(bootstrap: str, producer: Producer) -> None:
    with connected(bootstrap) as client:
        repeated = [client.produce("orders", producer.batch(sequence, b"again")) for sequence in range(5)]
        following = client.produce("orders", producer.batch(5, b"5"))
        assert [(reply.error_code, reply.base_offset) for reply in repeated] == [(0, n) for n in range(5)]
        assert (following.error_code, following.base_offset) == (0, 5)
        assert end_of(client, "orders") == 6
        assert new_producer(client).producer_id != producer.producer_id, "ids are never given out twice"


def test_a_gap_in_the_sequence_is_refused_and_nothing_is_written(bootstrap: str, topic: str) -> None:
    with connected(bootstrap) as client:
        client.create_topic(topic)
        producer = new_producer(client)
        client.produce(topic, producer.batch(0, b"a"))

        assert client.produce(topic, producer.batch(2, b"c")).error_code == OUT_OF_ORDER
        assert end_of(client, topic) == 1
        assert client.produce(topic, producer.batch(1, b"b")).error_code == 0


def test_an_older_epoch_of_a_producer_is_fenced(bootstrap: str, topic: str) -> None:
    with connected(bootstrap) as client:
        client.create_topic(topic)
        old = new_producer(client)
        client.produce(topic, old.batch(0, b"a"))
        new = old._replace(epoch=old.epoch + 1)
        assert client.produce(topic, new.batch(0, b"b")).error_code == 0

        assert client.produce(topic, old.batch(1, b"late")).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert end_of(client, topic) == 2


def test_producers_and_partitions_are_counted_apart(bootstrap: str, topic: str) -> None:
    with connected(bootstrap) as client:
        client.create_topic(topic)
        client.create_topic(f"{topic}-2")
        first, second = new_producer(client), new_producer(client)

        for producer in (first, second):
            assert client.produce(topic, producer.batch(0, b"a")).error_code == 0
        assert client.produce(f"{topic}-2", first.batch(0, b"a")).error_code == 0
        assert end_of(client, topic) == 2
