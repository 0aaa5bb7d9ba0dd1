"""confluent-kafka (librdkafka), the client most people in Python use, against a real broker."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from tests.integration.conftest import CreateTopic
from tests.integration.messages import (
    COMPRESSIONS,
    FIRST_TIMESTAMP_MS,
    QUIET,
    Message,
    Stored,
    assert_same,
    spread,
    varied_messages,
)

SECONDS_MAX = 20.0
PARTITIONS = 3


def produce(bootstrap: str, topic: str, sent: dict[int, list[Message]], **options: Any) -> list[Any]:
    """Send to each partition its messages. Returns what the broker acknowledged."""
    acknowledged: list[Any] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        acknowledged.append(message)

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **QUIET, **options})
    for partition, messages in sent.items():
        for message in messages:
            producer.produce(
                topic,
                key=message.key,
                value=message.value,
                headers=list(message.headers),
                timestamp=message.timestamp_ms,
                partition=partition,
                on_delivery=delivered,
            )
    assert producer.flush(SECONDS_MAX) == 0, "not everything was acknowledged in time"
    return acknowledged


@pytest.fixture
def consumer(bootstrap: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": False,
        }
    )
    yield consumer
    consumer.close()


def read(consumer: Consumer, count: int) -> list[Stored]:
    """The next `count` messages of what is assigned."""
    found: list[Stored] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        found += [stored(message) for message in consumer.consume(count - len(found), 0.5)]
    return found


def stored(message: Any) -> Stored:
    assert message.error() is None, message.error()
    _, timestamp_ms = message.timestamp()
    headers = tuple(message.headers() or ())
    return Stored(
        message.partition(), message.offset(), Message(message.key(), message.value(), headers, timestamp_ms)
    )


def error_code(message: Any) -> int | None:
    return None if message.error() is None else int(message.error().code())


def assign_all(consumer: Consumer, topic: str, partitions: int = PARTITIONS) -> None:
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_come_back_as_they_were_sent(
    bootstrap: str, topic: str, consumer: Consumer, create_topic: CreateTopic, compression: str
) -> None:
    create_topic(topic, PARTITIONS)
    sent = spread(varied_messages(300), PARTITIONS)

    acknowledged = produce(bootstrap, topic, sent, **{"compression.type": compression})
    assign_all(consumer, topic)
    found = read(consumer, 300)

    assert_same(found, sent)
    assert sorted((message.partition(), message.offset()) for message in acknowledged) == sorted(
        (each.partition, each.offset) for each in found
    )


def test_an_idempotent_producer_keeps_order_with_many_requests_in_flight(
    bootstrap: str, topic: str, consumer: Consumer, create_topic: CreateTopic
) -> None:
    create_topic(topic, 1)
    sent = {0: varied_messages(5_000)}

    produce(
        bootstrap,
        topic,
        sent,
        **{"enable.idempotence": True, "batch.num.messages": 50, "linger.ms": 0},
    )
    assign_all(consumer, topic, 1)

    assert_same(read(consumer, 5_000), sent)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_are_kept_whatever_acknowledgement_was_asked_for(
    bootstrap: str, topic: str, consumer: Consumer, create_topic: CreateTopic, acks: str
) -> None:
    create_topic(topic, 1)
    sent = {0: varied_messages(50)}

    produce(bootstrap, topic, sent, acks=acks)
    assign_all(consumer, topic, 1)

    assert_same(read(consumer, 50), sent)


def test_asking_for_an_unknown_topic_creates_it(bootstrap: str, topic: str, consumer: Consumer) -> None:
    produce(bootstrap, topic, {0: varied_messages(3)})
    assign_all(consumer, topic, 1)

    assert_same(read(consumer, 3), {0: varied_messages(3)})


def test_seeking_reads_again_from_there(
    bootstrap: str, topic: str, consumer: Consumer, create_topic: CreateTopic
) -> None:
    create_topic(topic, 1)
    produce(bootstrap, topic, {0: varied_messages(100)})
    assign_all(consumer, topic, 1)
    read(consumer, 100)

    consumer.seek(TopicPartition(topic, 0, 57))

    assert [each.offset for each in read(consumer, 43)] == list(range(57, 100))


def test_offsets_are_found_by_time(
    bootstrap: str, topic: str, consumer: Consumer, create_topic: CreateTopic
) -> None:
    create_topic(topic, 1)
    produce(bootstrap, topic, {0: varied_messages(100)}, **{"compression.type": "zstd"})

    def offset_at(timestamp_ms: int) -> int:
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp_ms)], SECONDS_MAX)
        return int(found.offset)

    assert offset_at(0) == 0
    assert offset_at(FIRST_TIMESTAMP_MS + 41_001) == 42
    assert offset_at(FIRST_TIMESTAMP_MS + 42_000) == 42
    assert offset_at(FIRST_TIMESTAMP_MS + 10**9) == -1  # librdkafka: the end


def test_watermarks_span_what_was_written(
    bootstrap: str, topic: str, consumer: Consumer, create_topic: CreateTopic
) -> None:
    create_topic(topic, 1)
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS_MAX) == (0, 0)

    produce(bootstrap, topic, {0: varied_messages(25)})

    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS_MAX) == (0, 25)


def test_a_consumer_that_waits_is_woken_by_the_next_record(
    bootstrap: str, topic: str, create_topic: CreateTopic
) -> None:
    create_topic(topic, 1)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "fetch.wait.max.ms": 20_000,
            "socket.timeout.ms": 60_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert consumer.poll(0.5) is None

    produce(bootstrap, topic, {0: varied_messages(1)})
    woken_from = time.monotonic()
    message = consumer.poll(SECONDS_MAX)

    assert message is not None
    assert message.offset() == 0
    assert time.monotonic() - woken_from < 5, "it must not wait for its twenty seconds to pass"
    consumer.close()


def test_a_record_beyond_the_limit_of_its_topic_is_refused(
    bootstrap: str, topic: str, create_topic: CreateTopic
) -> None:
    create_topic(topic, 1, {"max.message.bytes": "10000"})
    problems: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap})

    producer.produce(topic, value=bytes(20_000), on_delivery=lambda error, _: problems.append(error))
    producer.flush(SECONDS_MAX)

    assert [problem.code() if problem else None for problem in problems] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_a_topic_can_keep_the_time_of_the_broker(
    bootstrap: str, topic: str, consumer: Consumer, create_topic: CreateTopic
) -> None:
    create_topic(topic, 1, {"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time_ns() // 1_000_000

    produce(bootstrap, topic, {0: varied_messages(5)}, **{"compression.type": "gzip"})
    assign_all(consumer, topic, 1)

    for each in read(consumer, 5):
        assert before_ms - 1 <= each.message.timestamp_ms <= time.time_ns() // 1_000_000


def test_an_offset_that_does_not_exist_is_an_error_the_user_sees(
    bootstrap: str, topic: str, consumer: Consumer, create_topic: CreateTopic
) -> None:
    create_topic(topic, 1)
    produce(bootstrap, topic, {0: varied_messages(5)})
    consumer.assign([TopicPartition(topic, 0, 1_000)])

    message = consumer.poll(SECONDS_MAX)

    assert message is not None
    assert error_code(message) in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)


def test_a_topic_name_that_no_file_system_should_see_is_refused(bootstrap: str) -> None:
    problems: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 2_000})
    try:
        producer.produce("../etc/passwd", b"x", on_delivery=lambda error, _: problems.append(error))
        producer.flush(SECONDS_MAX)
    except KafkaException as refusal:
        problems.append(refusal.args[0])
    assert problems
    assert problems[0] is not None
