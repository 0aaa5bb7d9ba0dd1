"""Kafka's protocol through librdkafka (confluent-kafka): for Kafka and for Penstock, with the same
settings."""

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition
from confluent_kafka import Consumer as LibraryConsumer
from confluent_kafka import Producer as LibraryProducer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.peers.clients.work import CREATE_S_MAX, IDLE_S, ClientFailed, Work

BLOCKS = True
"""Calls of this client hold their thread."""
SAFE = {"acks": "all", "enable.idempotence": True}
"""The defaults of Java's producer. At most five requests are in flight: batches grow if a server is slow."""
SILENT = {"log_level": 2}
BATCHED = {"linger.ms": 5, "batch.size": 1_000_000, "delivery.report.only.error": True}
"""librdkafka's own linger; its batches of up to 1 MB."""
AT_ONCE = {"linger.ms": 0}
READ_AHEAD = {"queued.min.messages": 200_000, "fetch.queue.backoff.ms": 2}
"""By default librdkafka pauses for a second when its queue is full, however soon it is consumed."""
QUEUE = {"queue.buffering.max.messages": 200_000, "queue.buffering.max.kbytes": 256 * 1024}
MOST_AT_ONCE = 10_000
POLL_S = 0.1
SETTLE_S_MAX = 60
"""The library retries by itself, also when a leader is gone."""
FAIL_OVER = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 300}


def _admin(work: Work) -> AdminClient:
    return AdminClient({"bootstrap.servers": work.address, **SILENT})


async def create(work: Work) -> None:
    new = NewTopic(work.name, num_partitions=work.lanes, replication_factor=work.replicas)
    admin = _admin(work)  # its answers come only while it lives
    try:
        admin.create_topics([new], operation_timeout=10)[work.name].result(CREATE_S_MAX)
    except Exception as problem:
        if "TOPIC_ALREADY_EXISTS" not in str(problem):
            raise


async def delete(work: Work) -> None:
    admin = _admin(work)
    admin.delete_topics([work.name])[work.name].result(CREATE_S_MAX)


async def leader(work: Work) -> int:
    """Number of the member that leads lane 0."""
    metadata = _admin(work).list_topics(work.name, timeout=CREATE_S_MAX)
    broker = metadata.brokers[metadata.topics[work.name].partitions[0].leader]
    return work.addresses.index((broker.host, broker.port))


class KafkaProducer:
    def __init__(self, work: Work) -> None:
        self._topic = work.name
        self._is_paced = work.is_paced
        self._error: KafkaError | None = None
        settings = AT_ONCE if work.is_paced else BATCHED
        common = {"bootstrap.servers": work.address, **SAFE, "on_delivery": self._delivered}
        self._library = LibraryProducer({**common, **QUEUE, **SILENT, **FAIL_OVER, **settings})

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        self._error = self._error or error

    async def send(self, lane: int, values: Sequence[bytes]) -> None:
        produce = self._library.produce
        for value in values:
            while True:
                try:
                    produce(self._topic, value, partition=lane)
                    break
                except BufferError:
                    self._library.poll(0.05)
        if len(values) > 1:
            self._library.poll(0)

    async def settle(self) -> None:
        if not self._is_paced:
            self._library.flush(SETTLE_S_MAX)
        deadline = time.monotonic() + SETTLE_S_MAX
        while len(self._library) and time.monotonic() < deadline:
            self._library.poll(1)
        if len(self._library):
            raise ClientFailed(f"{len(self._library)} records were not acknowledged within {SETTLE_S_MAX} s")
        if self._error is not None:
            raise ClientFailed(str(self._error))

    async def poll(self) -> None:
        self._library.poll(0)

    async def close(self) -> None:
        self._library.flush(1)


async def producer(work: Work) -> KafkaProducer:
    return KafkaProducer(work)


class KafkaConsumer:
    def __init__(self, work: Work, reader: int) -> None:
        settings: dict[str, Any] = {"bootstrap.servers": work.address, "group.id": f"reader-{reader}"}
        settings |= {"enable.auto.commit": False, "fetch.min.bytes": 1, **SILENT}
        if not work.is_paced:
            settings |= READ_AHEAD
        self._is_paced = work.is_paced
        self._library = LibraryConsumer(settings)
        lanes = range(work.lanes)
        self._library.assign([TopicPartition(work.name, lane, OFFSET_BEGINNING) for lane in lanes])

    async def receive(self) -> list[bytes]:
        if self._is_paced:  # `consume` would wait until it has as many records as it may return
            first = self._library.poll(IDLE_S)
            messages = [] if first is None else [first, *self._library.consume(MOST_AT_ONCE, 0)]
        else:
            messages = self._library.consume(MOST_AT_ONCE, IDLE_S)
        return [message.value() or b"" for message in messages if message.error() is None]

    async def close(self) -> None:
        self._library.close()


async def consumer(work: Work, reader: int) -> KafkaConsumer:
    return KafkaConsumer(work, reader)


class KafkaCrowd:
    """Producers of librdkafka, each of which opens about three connections."""

    def __init__(self, work: Work) -> None:
        self._topic = work.name
        self._lanes = work.lanes
        self._value = bytes(work.record_bytes)
        self._acknowledged = 0
        self._error: KafkaError | None = None
        settings = {"bootstrap.servers": work.address, **SAFE, **SILENT, **AT_ONCE}
        self._libraries = [LibraryProducer(settings) for _ in range(work.producers)]

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        self._error = self._error or error
        self._acknowledged += 1

    async def run(self, seconds: float) -> int:
        """Wait for the producers in the order in which they sent.

        All of them have a record on its way meanwhile. To look at each of them again and again would take the
        processor from a server that is slow to acknowledge.
        """
        self._acknowledged = 0
        for number in range(len(self._libraries)):
            self._send(number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for number, library in enumerate(self._libraries):
                while len(library) and time.monotonic() < deadline:
                    library.poll(POLL_S)
                if not len(library):
                    self._send(number)
        for library in self._libraries:
            library.flush(SETTLE_S_MAX)
        if self._error is not None:
            raise ClientFailed(str(self._error))
        return self._acknowledged

    def _send(self, number: int) -> None:
        lane = number % self._lanes
        self._libraries[number].produce(self._topic, self._value, partition=lane, on_delivery=self._delivered)

    async def close(self) -> None:
        self._libraries.clear()


async def crowd(work: Work) -> KafkaCrowd:
    return KafkaCrowd(work)
