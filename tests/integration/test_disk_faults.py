"""What a broker keeps when its disk does not."""

import json
import logging
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.broker_process import BrokerProcess, eventually
from tests.integration.disk_faults import failing_sync, power_cut_disk, small_disk

TOPIC = "orders"


class Ledger:
    """Produces numbered records and remembers what was acknowledged, and where."""

    def __init__(self, bootstrap: str, **settings: object) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 0,
                "message.timeout.ms": 3000,
                "retries": 0,
                "allow.auto.create.topics": True,
                "logger": _quiet(),
                **settings,
            }
        )
        self.acknowledged: dict[int, bytes] = {}
        self.refused: list[KafkaError] = []

    def send(self, count: int, size: int = 100) -> None:
        for number in range(count):
            value = f"{len(self.acknowledged)}-{number}-".encode().ljust(size, b"x")
            self._producer.produce(TOPIC, value=value, partition=0, on_delivery=self._delivered)
            self._producer.poll(0)
        self._producer.flush(10)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(error)
        else:
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert isinstance(value, bytes)
            assert offset not in self.acknowledged, "one offset was given to two records"
            self.acknowledged[offset] = value


def _quiet() -> Any:
    logger = logging.getLogger("librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def stored(bootstrap: str) -> dict[int, bytes]:
    """Every record that can be read, by its offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "logger": _quiet(),
        }
    )
    try:
        partition = TopicPartition(TOPIC, 0)
        start, end = consumer.get_watermark_offsets(partition, timeout=10)
        consumer.assign([TopicPartition(TOPIC, 0, start)])
        found: dict[int, bytes] = {}
        while len(found) < end - start:
            message = consumer.poll(10)
            assert message is not None, f"{len(found)} of {end - start} records came"
            assert message.error() is None
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert isinstance(value, bytes)
            found[offset] = value
        return found
    finally:
        consumer.close()


def assert_kept(acknowledged: dict[int, bytes], found: dict[int, bytes]) -> None:
    lost = {offset for offset, value in acknowledged.items() if found.get(offset) != value}
    assert not lost, f"{len(lost)} acknowledged records are lost or changed, the first at {min(lost)}"


def test_what_was_acknowledged_survives_a_power_cut(tmp_path: Path) -> None:
    """Everything the drive did not have is gone; nothing acknowledged is among it."""
    acknowledged: dict[int, bytes] = {}
    with power_cut_disk(tmp_path) as disk:
        data = disk.path / "data"
        for _ in range(3):
            broker = BrokerProcess(data, stderr_path=tmp_path / "broker.stderr")
            broker.start()
            try:
                ledger = Ledger(broker.bootstrap)
                ledger.send(300)
                assert ledger.acknowledged
                acknowledged |= ledger.acknowledged
                disk.cut()
            finally:
                broker.kill()
            disk.unmount()
            disk.mount()
        broker.start()
        try:
            assert_kept(acknowledged, stored(broker.bootstrap))
        finally:
            broker.kill()


def test_after_a_failed_sync_nothing_more_is_acknowledged(tmp_path: Path) -> None:
    """A sync that failed is not repeated: the page cache no longer holds what was not written."""
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        ledger = Ledger(broker.bootstrap)
        ledger.send(10)
        before = dict(ledger.acknowledged)
        assert len(before) == 10
        with failing_sync(broker.pid):

            def is_refused() -> bool:
                ledger.send(1)
                return bool(ledger.refused)

            eventually(is_refused, seconds_max=15)
        count = len(ledger.acknowledged)
        status, body = broker.get("/health/ready")
        assert status == 503
        assert "cannot sync" in json.loads(body)["reason"]
        ledger.send(5)
        assert len(ledger.acknowledged) == count, "writing went on after the disk broke its promise"
        assert_kept(before, stored(broker.bootstrap))
    finally:
        broker.kill()


def test_a_full_disk_refuses_and_resumes_without_losing_anything(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=24) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(12 * 1024 * 1024))
        broker = BrokerProcess(disk / "data", stderr_path=tmp_path / "broker.stderr")
        broker.start()
        try:
            ledger = Ledger(broker.bootstrap, **{"message.timeout.ms": 2000})

            def is_full() -> bool:
                ledger.send(20, size=100_000)
                return bool(ledger.refused)

            eventually(is_full, seconds_max=30)
            assert broker.stderr.count("storage.full") == 1, "the operator is told, once"
            assert_kept(ledger.acknowledged, stored(broker.bootstrap))
            ballast.unlink()
            ledger.refused.clear()
            ledger.send(20, size=1000)
            assert not ledger.refused, "writing resumes when there is space"
            assert_kept(ledger.acknowledged, stored(broker.bootstrap))
            assert broker.stop() == 0
            broker.start()
            assert_kept(ledger.acknowledged, stored(broker.bootstrap))
        finally:
            broker.kill()


def test_a_full_disk_can_be_freed_through_the_broker(tmp_path: Path) -> None:
    """Deleting records and starting again need room themselves: some is set aside for that."""
    with small_disk(tmp_path, megabytes=12) as disk:
        broker = BrokerProcess(disk / "data", stderr_path=tmp_path / "broker.stderr")
        broker.start()
        try:
            eventually((disk / "data" / "reserve").exists)
            ledger = Ledger(broker.bootstrap, **{"message.timeout.ms": 2000})

            def is_full() -> bool:
                ledger.send(20, size=100_000)
                return bool(ledger.refused)

            eventually(is_full, seconds_max=30)
            kept = dict(ledger.acknowledged)
            broker.kill()
            broker.start()
            assert_kept(kept, stored(broker.bootstrap))
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, "logger": _quiet()})
            (outcome,) = admin.delete_records([TopicPartition(TOPIC, 0, max(kept) + 1)]).values()
            assert outcome.result(10).low_watermark == max(kept) + 1
            after = Ledger(broker.bootstrap)
            after.send(5, size=1000)
            assert not after.refused, "what was deleted made room"
        finally:
            broker.kill()
