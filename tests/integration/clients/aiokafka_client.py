"""aiokafka, the asyncio client, which speaks old versions of most requests."""

import asyncio
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

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


async def create(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partitions, 1)])
    finally:
        await admin.close()


async def produce(bootstrap: str, topic: str, sent: dict[int, list[Message]], **options: Any) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **options) as producer:
        pending = [
            await producer.send(
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
        async with asyncio.timeout(SECONDS_MAX):
            await asyncio.gather(*pending)


async def read(consumer: Any, count: int) -> list[Stored]:
    found: list[Stored] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        polled = await consumer.getmany(timeout_ms=500)
        found += [stored(record) for records in polled.values() for record in records]
    return found


def stored(record: Any) -> Stored:
    message = Message(record.key, record.value, tuple(record.headers), record.timestamp)
    return Stored(record.partition, record.offset, message)


def consumer_of(bootstrap: str) -> Any:
    return AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_records_of_aiokafka_come_back_as_they_were_sent(
    bootstrap: str, topic: str, compression: str
) -> None:
    await create(bootstrap, topic, PARTITIONS)
    sent = spread(varied_messages(300), PARTITIONS)
    codec = None if compression == "none" else compression

    await produce(bootstrap, topic, sent, compression_type=codec, linger_ms=5)
    async with consumer_of(bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        found = await read(consumer, 300)

    assert_same(found, sent)


async def test_an_idempotent_aiokafka_producer_keeps_order(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic, 1)
    sent = {0: varied_messages(500)}

    await produce(bootstrap, topic, sent, enable_idempotence=True, max_batch_size=2_000)

    async with consumer_of(bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert_same(await read(consumer, 500), sent)


async def test_aiokafka_finds_offsets_by_time_and_position(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic, 1)
    await produce(bootstrap, topic, {0: varied_messages(50)}, compression_type="snappy")
    partition = TopicPartition(topic, 0)

    async with consumer_of(bootstrap) as consumer:
        consumer.assign([partition])
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: 50}
        at_time = await consumer.offsets_for_times({partition: FIRST_TIMESTAMP_MS + 12_000})
        assert at_time[partition].offset == 12
        consumer.seek(partition, 48)
        assert [each.offset for each in await read(consumer, 2)] == [48, 49]
