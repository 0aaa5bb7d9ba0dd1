"""kafka-python, a client written in Python alone, against a real broker.

It fetches with incremental sessions and sends idempotent batches unless told otherwise.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType
from kafka.codec import has_snappy
from kafka.errors import KafkaError, TopicAlreadyExistsError

from tests.integration.messages import (
    COMPRESSIONS,
    FIRST_TIMESTAMP_MS,
    Message,
    Stored,
    assert_same,
    spread,
    varied_messages,
)

SECONDS_MAX = 20.0
PARTITIONS = 3


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Any]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        yield admin


@contextmanager
def consuming(bootstrap: str, topic: str, partitions: int, **options: Any) -> Iterator[Any]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", **options)
    with closing(consumer):
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
        yield consumer


def produce(bootstrap: str, topic: str, sent: dict[int, list[Message]], **options: Any) -> list[Any]:
    with closing(KafkaProducer(bootstrap_servers=bootstrap, **options)) as producer:
        pending = [
            producer.send(
                topic,
                key=message.key,
                value=message.value,
                headers=list(message.headers),
                timestamp_ms=message.timestamp_ms,
                partition=partition,
            )
            for partition, messages in sent.items()
            for message in messages
        ]
        return [future.get(SECONDS_MAX) for future in pending]


def read(consumer: Any, count: int) -> list[Stored]:
    found: list[Stored] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        polled = consumer.poll(timeout_ms=500)
        found += [stored(record) for records in polled.values() for record in records]
    assert len(found) == count
    return found


def stored(record: Any) -> Stored:
    message = Message(record.key, record.value, tuple(record.headers), record.timestamp)
    return Stored(record.partition, record.offset, message)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_of_kafka_python_come_back_as_they_were_sent(
    bootstrap: str, topic: str, admin: Any, compression: str
) -> None:
    if compression == "snappy" and not has_snappy():
        pytest.skip("python-snappy is not installed: kafka-python was NOT tried with snappy")
    admin.create_topics({topic: {"num_partitions": PARTITIONS}})
    sent = spread(varied_messages(300), PARTITIONS)
    codec = None if compression == "none" else compression

    acknowledged = produce(bootstrap, topic, sent, compression_type=codec, linger_ms=5)
    with consuming(bootstrap, topic, PARTITIONS) as consumer:
        found = read(consumer, 300)

    assert_same(found, sent)
    assert sorted((each.partition, each.offset) for each in acknowledged) == sorted(
        (each.partition, each.offset) for each in found
    )


@pytest.mark.parametrize("sessions", [True, False])
def test_records_that_come_bit_by_bit_are_all_read(
    bootstrap: str, topic: str, admin: Any, sessions: bool
) -> None:
    """An incremental session is told only of partitions that changed, and must miss none."""
    admin.create_topics({topic: {"num_partitions": PARTITIONS}})
    messages = varied_messages(60)
    found: list[Stored] = []

    with consuming(
        bootstrap, topic, PARTITIONS, enable_incremental_fetch_sessions=sessions, fetch_max_wait_ms=100
    ) as consumer:
        for turn in range(0, 60, 10):
            produce(bootstrap, topic, {turn // 10 % PARTITIONS: messages[turn : turn + 10]})
            found += read(consumer, 10)

    sent: dict[int, list[Message]] = {
        partition: [
            message
            for turn in range(partition * 10, 60, PARTITIONS * 10)
            for message in messages[turn : turn + 10]
        ]
        for partition in range(PARTITIONS)
    }
    assert_same(found, sent)


def test_a_plain_producer_without_idempotence_works_too(bootstrap: str, topic: str, admin: Any) -> None:
    admin.create_topics({topic: {"num_partitions": 1}})
    sent = {0: varied_messages(40)}

    produce(bootstrap, topic, sent, enable_idempotence=False, acks=1)

    with consuming(bootstrap, topic, 1) as consumer:
        assert_same(read(consumer, 40), sent)


def test_positions_and_times_are_found(bootstrap: str, topic: str, admin: Any) -> None:
    admin.create_topics({topic: {"num_partitions": 1}})
    produce(bootstrap, topic, {0: varied_messages(50)}, compression_type="lz4")
    partition = TopicPartition(topic, 0)

    with consuming(bootstrap, topic, 1) as consumer:
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 50}
        at_time = consumer.offsets_for_times({partition: FIRST_TIMESTAMP_MS + 30_000})
        assert at_time[partition].offset == 30
        consumer.seek(partition, 45)
        assert [each.offset for each in read(consumer, 5)] == [45, 46, 47, 48, 49]


def test_topics_are_made_grown_and_removed(bootstrap: str, topic: str, admin: Any) -> None:
    admin.create_topics({topic: {"num_partitions": 2, "configs": {"retention.ms": "86400000"}}})
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics({topic: {"num_partitions": 2}})

    admin.create_partitions({topic: 5})
    (described,) = admin.describe_topics([topic])
    assert sorted(partition["partition_index"] for partition in described["partitions"]) == [0, 1, 2, 3, 4]

    admin.delete_topics([topic])
    assert topic not in admin.list_topics()
    with pytest.raises(KafkaError):
        admin.delete_topics([topic])


def test_settings_of_a_topic_are_changed(bootstrap: str, topic: str, admin: Any) -> None:
    admin.create_topics({topic: {"num_partitions": 1}})
    change = {"retention.ms": (AlterConfigOp.SET, "90000")}

    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=change)])

    described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    assert "90000" in str(described), described


def test_records_are_deleted_up_to_an_offset(bootstrap: str, topic: str, admin: Any) -> None:
    admin.create_topics({topic: {"num_partitions": 1}})
    produce(bootstrap, topic, {0: varied_messages(30)})
    partition = TopicPartition(topic, 0)

    admin.delete_records({partition: 21})

    with consuming(bootstrap, topic, 1) as consumer:
        assert consumer.beginning_offsets([partition]) == {partition: 21}
        assert [each.offset for each in read(consumer, 9)] == list(range(21, 30))
