"""aiokafka, the asyncio client, which speaks old versions of most requests."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from tests.integration.clients.client import (
    FETCH_WAIT_MS,
    PLAINLY,
    SECONDS_MAX,
    Capability,
    Client,
    Places,
    Reader,
    Sending,
    Sent,
    code_of,
    refusals_of,
    stored,
)
from tests.integration.messages import Stored


class AiokafkaReader(Reader):
    """Its event loop runs only within these calls."""

    def __init__(self, runner: asyncio.Runner, consumer: Any, topic: str) -> None:
        self._runner = runner
        self._consumer = consumer
        self._topic = topic

    def poll(self, seconds: float) -> list[Stored]:
        with refusals_of(KafkaError, code_of):
            polled = self._runner.run(self._consumer.getmany(timeout_ms=int(seconds * 1000)))
        return [stored(record) for records in polled.values() for record in records]

    def seek(self, partition: int, offset: int) -> None:
        async def seek() -> None:
            self._consumer.seek(TopicPartition(self._topic, partition), offset)

        self._runner.run(seek())


class AiokafkaClient(Client):
    name = "aiokafka"
    # Its administration client returns replies as they came: it raises no error of a broker.
    lacks = frozenset({Capability.ADMINISTRATION})

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        async def create() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap, **self.options)
            await admin.start()
            try:
                await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=dict(config or {}))])
            finally:
                await admin.close()

        asyncio.run(create())

    def produce(self, topic: str, sent: Sent, how: Sending = PLAINLY) -> Places:
        options: dict[str, Any] = {
            **self.options,
            "acks": how.acks if how.acks == "all" else int(how.acks),
            "compression_type": None if how.compression == "none" else how.compression,
            "linger_ms": 5,
        }
        if how.in_small_batches:
            options |= {"enable_idempotence": True, "max_batch_size": 2_000, "linger_ms": 0}

        async def produce() -> list[Any]:
            async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, **options) as producer:
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
                    return await asyncio.gather(*pending)

        with refusals_of(KafkaError, code_of):
            acknowledged = asyncio.run(produce())
        return [(each.partition, each.offset) for each in acknowledged if each is not None]

    @contextmanager
    def _consumer(self, **options: Any) -> Iterator[tuple[asyncio.Runner, Any]]:
        async def start() -> Any:
            settings = {"bootstrap_servers": self.bootstrap, "auto_offset_reset": "none", **self.options}
            consumer = AIOKafkaConsumer(**settings, **options)
            await consumer.start()
            return consumer

        with asyncio.Runner() as runner:
            consumer = runner.run(start())
            try:
                yield runner, consumer
            finally:
                runner.run(consumer.stop())

    @contextmanager
    def reading(
        self, topic: str, partitions: int, *, start: int | None = None, wait_ms: int = FETCH_WAIT_MS
    ) -> Iterator[Reader]:
        async def assign(consumer: Any) -> None:
            assigned = [TopicPartition(topic, number) for number in range(partitions)]
            consumer.assign(assigned)
            if start is None:
                await consumer.seek_to_beginning(*assigned)
            else:
                for partition in assigned:
                    consumer.seek(partition, start)

        with self._consumer(fetch_max_wait_ms=wait_ms) as (runner, consumer):
            runner.run(assign(consumer))
            yield AiokafkaReader(runner, consumer, topic)

    def watermarks(self, topic: str) -> tuple[int, int]:
        partition = TopicPartition(topic, 0)
        with self._consumer() as (runner, consumer):
            start = runner.run(consumer.beginning_offsets([partition]))
            end = runner.run(consumer.end_offsets([partition]))
        return start[partition], end[partition]

    def offsets_at(self, topic: str, partitions: int, timestamp_ms: int) -> list[int | None]:
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        with self._consumer() as (runner, consumer):
            found = runner.run(consumer.offsets_for_times(dict.fromkeys(asked, timestamp_ms)))
        return [found[each].offset if found[each] is not None else None for each in asked]
