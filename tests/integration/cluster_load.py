"""Somebody who writes to a cluster all the time, and what can be said about it afterwards."""

import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.integration.broker_process import eventually

EVERY_S = 0.005


class SteadyWriter:
    """Writes numbers in order with an idempotent producer, until it is told to end."""

    def __init__(self, bootstrap: str, topic: str, **config: Any) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": 60_000,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 200,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                **config,
            }
        )
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.acknowledged: list[int] = []
        self.times: list[float] = []
        """When each was acknowledged."""
        self.failed: list[str] = []

    def __enter__(self) -> "SteadyWriter":
        """Returns when the first is acknowledged: a producer has to be given an id before it writes."""
        self._thread.start()
        eventually(lambda: self.acknowledged, seconds_max=20)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _write(self) -> None:
        number = 0
        while not self._ends.is_set():
            self._producer.produce(self._topic, b"%d" % number, on_delivery=self._on_delivery)
            number += 1
            self._producer.poll(EVERY_S)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        value = message.value()
        assert isinstance(value, bytes)
        self.acknowledged.append(int(value))
        self.times.append(time.monotonic())

    def end(self) -> None:
        if not self._ends.is_set():
            self._ends.set()
            self._thread.join()
            assert self._producer.flush(60) == 0, "something was never answered"

    def resumed_after(self, moment: float, *, seconds_max: float = 30.0) -> float:
        """How long it took, from a moment on, until something was acknowledged that was written later."""
        deadline = time.monotonic() + seconds_max
        known = len(self.acknowledged)
        while time.monotonic() < deadline:
            # What was on its way at that moment may still have been acknowledged.
            if len(self.acknowledged) > known + 20 and self.times[-1] > moment + 0.05:
                gaps = [(b - a, b) for a, b in zip(self.times, self.times[1:], strict=False) if b > moment]
                return max(gaps)[1] - moment
            time.sleep(0.005)
        raise AssertionError(f"nothing was acknowledged within {seconds_max} s")


def read_all(bootstrap: str, topic: str, number: int = 0, *, seconds_max: float = 20.0) -> list[int]:
    """Every value of a partition, in its order."""
    # Nothing is committed: without enough replicas, closing would repeat a commit for minutes.
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    consumer = Consumer({**settings, "log_level": 0})
    partition = TopicPartition(topic, number, 0)
    found: list[int] = []
    try:
        deadline = time.monotonic() + seconds_max
        _, end = watermarks(consumer, partition, deadline)
        consumer.assign([partition])
        while len(found) < end:
            assert time.monotonic() < deadline, f"{len(found)} of {end} records could be read"
            for message in consumer.consume(min(1000, end - len(found)), timeout=1):
                assert message.error() is None, message.error()
                value = message.value()
                assert isinstance(value, bytes)
                found.append(int(value))
    finally:
        consumer.close()
    return found


def watermarks(consumer: Consumer, partition: TopicPartition, deadline: float) -> tuple[int, int]:
    """Start and end, as the leader says. librdkafka does not ask again when that is another broker by now, or
    one that was elected just now and whose followers have not confirmed its records yet."""
    passing = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.OFFSET_NOT_AVAILABLE)
    while True:
        try:
            start, end = consumer.get_watermark_offsets(partition, timeout=deadline - time.monotonic())
            return start, end
        except KafkaException as refusal:
            if refusal.args[0].code() not in passing or time.monotonic() > deadline:
                raise
        consumer.list_topics(partition.topic, timeout=deadline - time.monotonic())


def require_intact(writer: SteadyWriter, found: list[int]) -> None:
    """Nothing acknowledged is missing, nothing is there twice, everything is in order."""
    assert not writer.failed
    missing = set(writer.acknowledged) - set(found)
    assert not missing, f"{len(missing)} acknowledged records are gone, as {sorted(missing)[:5]}"
    assert len(found) == len(set(found)), "records are there twice"
    assert found == sorted(found), "records are out of order"
