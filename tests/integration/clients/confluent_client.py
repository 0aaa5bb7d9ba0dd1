"""confluent-kafka (librdkafka), the client that most people in Python use."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.integration.clients.client import (
    FETCH_WAIT_MS,
    PLAINLY,
    SECONDS_MAX,
    Administration,
    Client,
    Places,
    Reader,
    Refused,
    Sending,
    Sent,
)
from tests.integration.messages import QUIET, Message, Stored

POLLED_MAX = 1_000


def stored(message: Any) -> Stored:
    if (error := message.error()) is not None:
        raise Refused(error.code(), error.str())
    _, timestamp_ms = message.timestamp()
    headers = tuple(message.headers() or ())
    return Stored(
        message.partition(), message.offset(), Message(message.key(), message.value(), headers, timestamp_ms)
    )


class ConfluentReader(Reader):
    def __init__(self, consumer: Consumer, topic: str, partitions: int, start: int | None) -> None:
        self._consumer = consumer
        self._topic = topic
        offset = OFFSET_BEGINNING if start is None else start
        consumer.assign([TopicPartition(topic, number, offset) for number in range(partitions)])

    def poll(self, seconds: float) -> list[Stored]:
        deadline = time.monotonic() + seconds
        found = self._consumer.consume(1, seconds)
        found += self._consumer.consume(POLLED_MAX, min(0.02, max(0.0, deadline - time.monotonic())))
        return [stored(message) for message in found]

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(TopicPartition(self._topic, partition, offset))


class ConfluentClient(Client):
    name = "confluent-kafka"

    @property
    def settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, **QUIET, **self.options}

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        admin = AdminClient(self.settings)
        result_of(admin.create_topics([NewTopic(topic, partitions, config=dict(config or {}))]))

    def produce(self, topic: str, sent: Sent, how: Sending = PLAINLY) -> Places:
        options: dict[str, Any] = {"compression.type": how.compression, "acks": how.acks, "linger.ms": 5}
        if how.in_small_batches:
            options |= {"enable.idempotence": True, "batch.num.messages": 50, "linger.ms": 0}
        acknowledged: Places = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                raise Refused(error.code(), error.str())
            acknowledged.append((message.partition(), message.offset()))

        producer = Producer({**self.settings, **options})
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

    @contextmanager
    def consumer(self, **options: Any) -> Iterator[Consumer]:
        consumer = Consumer({**self.settings, "group.id": "unused", "enable.auto.commit": False, **options})
        try:
            yield consumer
        finally:
            consumer.close()

    @contextmanager
    def reading(
        self, topic: str, partitions: int, *, start: int | None = None, wait_ms: int = FETCH_WAIT_MS
    ) -> Iterator[ConfluentReader]:
        options = {"auto.offset.reset": "error", "fetch.wait.max.ms": wait_ms}
        with self.consumer(**options) as consumer:
            yield ConfluentReader(consumer, topic, partitions, start)

    def watermarks(self, topic: str) -> tuple[int, int]:
        with self.consumer() as consumer:
            start, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS_MAX)
        return start, end

    def offsets_at(self, topic: str, partitions: int, timestamp_ms: int) -> list[int | None]:
        asked = [TopicPartition(topic, number, timestamp_ms) for number in range(partitions)]
        with self.consumer() as consumer:
            found = consumer.offsets_for_times(asked, SECONDS_MAX)
        return [each.offset if each.offset != -1 else None for each in found]  # -1: the end

    @contextmanager
    def administration(self) -> Iterator["ConfluentAdministration"]:
        yield ConfluentAdministration(AdminClient(self.settings))


def result_of(futures: Mapping[Any, Any]) -> Any:
    """What became of the one thing that was asked for."""
    (future,) = futures.values()
    try:
        return future.result(SECONDS_MAX)
    except KafkaException as refusal:
        error = refusal.args[0]
        raise Refused(error.code(), error.str()) from refusal


class ConfluentAdministration(Administration):
    def __init__(self, admin: AdminClient) -> None:
        self.admin = admin

    def grow(self, topic: str, partitions: int) -> None:
        result_of(self.admin.create_partitions([NewPartitions(topic, partitions)]))

    def delete(self, topic: str) -> None:
        result_of(self.admin.delete_topics([topic]))

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=SECONDS_MAX).topics)

    def partitions_of(self, topic: str) -> list[int]:
        described = result_of(self.admin.describe_topics(TopicCollection([topic])))
        return [partition.id for partition in described.partitions]

    def setting(self, topic: str, key: str) -> str:
        return str(self.entry(topic, key).value)

    def entry(self, topic: str, key: str) -> ConfigEntry:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        described: dict[str, ConfigEntry] = result_of(self.admin.describe_configs([resource]))
        return described[key]

    def alter(self, topic: str, key: str, value: str | None) -> None:
        operation = AlterConfigOpType.SET if value is not None else AlterConfigOpType.DELETE
        entry = ConfigEntry(key, value or "", incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        result_of(self.admin.incremental_alter_configs([resource]))

    def delete_records(self, topic: str, before: int) -> None:
        deleted = result_of(self.admin.delete_records([TopicPartition(topic, 0, before)]))
        assert deleted.low_watermark == before
