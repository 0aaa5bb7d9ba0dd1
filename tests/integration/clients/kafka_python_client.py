"""kafka-python, a client written in Python alone.

It fetches with incremental sessions and sends idempotent batches unless told otherwise.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, ClassVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType
from kafka.codec import has_snappy
from kafka.errors import KafkaError

from tests.integration.clients.client import (
    FETCH_WAIT_MS,
    PLAINLY,
    SECONDS_MAX,
    Administration,
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


class KafkaPythonReader(Reader):
    def __init__(self, consumer: Any, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic

    def poll(self, seconds: float) -> list[Stored]:
        with refusals_of(KafkaError, code_of):
            polled = self._consumer.poll(timeout_ms=int(seconds * 1000))
        return [stored(record) for records in polled.values() for record in records]

    def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(TopicPartition(self._topic, partition), offset)


class KafkaPythonClient(Client):
    name = "kafka-python"
    uses_sessions: ClassVar[bool] = True

    @classmethod
    def absent(cls) -> str | None:
        return None if has_snappy() else "python-snappy is not installed: kafka-python was NOT tried"

    def _admin_client(self) -> Any:
        return KafkaAdminClient(bootstrap_servers=self.bootstrap, **self.options)

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        with (
            closing(self._admin_client()) as admin,
            refusals_of(KafkaError, code_of),
        ):
            admin.create_topics({topic: {"num_partitions": partitions, "configs": dict(config or {})}})

    def produce(self, topic: str, sent: Sent, how: Sending = PLAINLY) -> Places:
        options: dict[str, Any] = {**self.options, "enable_idempotence": how.acks == "all", "linger_ms": 5}
        if how.in_small_batches:
            options |= {"batch_size": 2_000, "linger_ms": 0}
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks=how.acks if how.acks == "all" else int(how.acks),
            compression_type=None if how.compression == "none" else how.compression,
            **options,
        )
        with closing(producer), refusals_of(KafkaError, code_of):
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
            acknowledged = [future.get(SECONDS_MAX) for future in pending]
        return [(each.partition, each.offset) for each in acknowledged]

    @contextmanager
    def _consumer(self, **options: Any) -> Iterator[Any]:
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            auto_offset_reset="none",
            enable_incremental_fetch_sessions=self.uses_sessions,
            **self.options,
            **options,
        )
        with closing(consumer):
            yield consumer

    @contextmanager
    def reading(
        self, topic: str, partitions: int, *, start: int | None = None, wait_ms: int = FETCH_WAIT_MS
    ) -> Iterator[Reader]:
        with self._consumer(fetch_max_wait_ms=wait_ms) as consumer:
            assigned = [TopicPartition(topic, number) for number in range(partitions)]
            consumer.assign(assigned)
            if start is None:
                consumer.seek_to_beginning(*assigned)
            else:
                for partition in assigned:
                    consumer.seek(partition, start)
            yield KafkaPythonReader(consumer, topic)

    def watermarks(self, topic: str) -> tuple[int, int]:
        partition = TopicPartition(topic, 0)
        with self._consumer() as consumer:
            start, end = consumer.beginning_offsets([partition]), consumer.end_offsets([partition])
        return start[partition], end[partition]

    def offsets_at(self, topic: str, partitions: int, timestamp_ms: int) -> list[int | None]:
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        with self._consumer() as consumer:
            found = consumer.offsets_for_times(dict.fromkeys(asked, timestamp_ms))
        return [found[each].offset if found[each] is not None else None for each in asked]

    @contextmanager
    def administration(self) -> Iterator["KafkaPythonAdministration"]:
        with closing(self._admin_client()) as admin:
            yield KafkaPythonAdministration(admin)


class WithoutSessions(KafkaPythonClient):
    name = "kafka-python without sessions"
    uses_sessions = False


class KafkaPythonAdministration(Administration):
    def __init__(self, admin: Any) -> None:
        self._admin = admin

    def grow(self, topic: str, partitions: int) -> None:
        with refusals_of(KafkaError, code_of):
            self._admin.create_partitions({topic: partitions})

    def delete(self, topic: str) -> None:
        with refusals_of(KafkaError, code_of):
            self._admin.delete_topics([topic])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def partitions_of(self, topic: str) -> list[int]:
        (described,) = self._admin.describe_topics([topic])
        return sorted(partition["partition_index"] for partition in described["partitions"])

    def setting(self, topic: str, key: str) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        described = self._admin.describe_configs([resource], config_filter="all")
        return str(described["topic"][topic][key]["value"])

    def alter(self, topic: str, key: str, value: str | None) -> None:
        operation = AlterConfigOp.SET if value is not None else AlterConfigOp.DELETE
        change = {key: (operation, value)}
        self._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=change)])

    def delete_records(self, topic: str, before: int) -> None:
        self._admin.delete_records({TopicPartition(topic, 0): before})
