"""penstock.testing as its users meet it."""

import logging
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from penstock.errors import ConfigError, StorageFailed
from penstock.testing import Broker, broker

START_SECONDS_MAX = 0.3
SECONDS_MAX = 20.0


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made during this test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def send(running: Broker, value: bytes) -> None:
    problems: list[object] = []
    producer = Producer({"bootstrap.servers": running.bootstrap, "log_level": 0})
    producer.produce("orders", value, on_delivery=lambda error, _: problems.append(error))
    producer.flush(SECONDS_MAX)
    assert problems == [None]


def offsets(running: Broker) -> object:
    consumer = Consumer({"bootstrap.servers": running.bootstrap, "group.id": "unused", "log_level": 0})
    try:
        return consumer.get_watermark_offsets(TopicPartition("orders", 0), SECONDS_MAX)
    finally:
        consumer.close()


def test_a_client_can_use_it() -> None:
    with broker() as running:
        send(running, b"hello")
        assert offsets(running) == (0, 1)


def test_what_it_stores_is_not_open_to_everybody(tmp_path: Path) -> None:
    """Although the process it is in may let everybody read its files."""
    before = os.umask(0o022)
    try:
        with broker(tmp_path / "data") as running:
            send(running, b"hello")
            paths = [running.data_dir, *running.data_dir.rglob("*")]
            assert {"metadata.sqlite", "metadata.sqlite-wal"} <= {path.name for path in paths}
            assert [path.name for path in paths if path.stat().st_mode & 0o007] == []
    finally:
        os.umask(before)


def test_it_needs_no_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with broker() as running:
        send(running, b"hello")
        assert offsets(running) == (0, 1)


def test_it_starts_faster_than_anybody_notices() -> None:
    taken = []
    for _ in range(5):
        asked_at = time.perf_counter()
        with broker():
            taken.append(time.perf_counter() - asked_at)
    assert min(taken) < START_SECONDS_MAX


def test_nothing_is_left_behind(temporary: Path) -> None:
    before = set(threading.enumerate())
    with broker() as running:
        send(running, b"hello")
        assert list(temporary.iterdir()) == [running.data_dir]
    assert list(temporary.iterdir()) == []
    assert {thread for thread in threading.enumerate() if thread.name != "rdkafka"} <= before


def test_nothing_is_left_behind_by_a_test_that_fails(temporary: Path) -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), broker():
        _ = 1 / 0
    assert list(temporary.iterdir()) == []
    assert threading.active_count() == before


def test_a_folder_that_was_given_is_kept_and_can_be_used_again(tmp_path: Path) -> None:
    with broker(tmp_path / "data") as running:
        send(running, b"hello")
    with broker(tmp_path / "data") as running:
        assert offsets(running) == (0, 1)


def test_settings_have_the_names_that_kafka_gives_them() -> None:
    with broker(**{"num.partitions": 3, "auto.create.topics.enable": False}) as running:
        consumer = Consumer({"bootstrap.servers": running.bootstrap, "group.id": "unused"})
        topics = consumer.list_topics("orders", SECONDS_MAX).topics
        consumer.close()
    assert topics["orders"].error is not None, "not created by asking"


@pytest.mark.parametrize(
    ("settings", "shown"), [({}, "0"), ({"group.initial.rebalance.delay.ms": 700}, "700")]
)
def test_new_groups_wait_for_nobody_unless_that_is_asked_for(settings: dict[str, int], shown: str) -> None:
    with broker(**settings) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        resource = ConfigResource(ResourceType.BROKER, "1")
        found = admin.describe_configs([resource])[resource].result(SECONDS_MAX)
        assert found["group.initial.rebalance.delay.ms"].value == shown


def test_two_at_once_know_nothing_of_each_other() -> None:
    with broker() as first, broker() as second:
        assert first.bootstrap != second.bootstrap
        send(first, b"hello")
        assert offsets(first) == (0, 1)
        with pytest.raises(Exception, match="UNKNOWN"):
            offsets(second)


def test_a_bad_setting_is_raised_where_the_broker_was_asked_for(temporary: Path) -> None:
    with pytest.raises(ConfigError) as refusal, broker(**{"num.partitions": "many"}):
        pass
    assert str(refusal.value).startswith("num.partitions = 'many'")
    assert str(refusal.value).endswith("(from the settings given to penstock.testing.broker)")
    assert list(temporary.iterdir()) == []


def test_whatever_prevents_the_start_is_raised_where_the_broker_was_asked_for(tmp_path: Path) -> None:
    before = threading.active_count()
    with broker(tmp_path) as running:
        with pytest.raises(StorageFailed, match="in use"), broker(tmp_path):
            pass
        taken = f"PLAINTEXT://{running.bootstrap}"
        with pytest.raises(ConfigError, match="address already in use"), broker(listeners=taken):
            pass
    assert threading.active_count() == before


def test_advancing_the_clock_ages_what_was_written() -> None:
    with broker(**{"log.retention.hours": 1}) as running:
        send(running, b"old")
        running.advance(ms=30 * 60 * 1000)
        assert offsets(running) == (0, 1)
        running.advance(ms=31 * 60 * 1000)
        assert offsets(running) == (1, 1)


def test_the_clock_does_not_go_back() -> None:
    with broker() as running, pytest.raises(AssertionError):
        running.advance(ms=-1)


def test_each_listener_has_an_address() -> None:
    listeners = "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0"
    protocols = "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"
    with broker(**{"listeners": listeners, "listener.security.protocol.map": protocols}) as running:
        assert running.bootstrap == running.address("inside") != running.address("outside")
        with pytest.raises(ValueError, match="no listener is called NOPE; there are INSIDE, OUTSIDE"):
            running.address("nope")


def test_what_the_broker_has_to_say_goes_to_pythons_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="penstock"), broker(**{"log.retention.hours": 1}) as running:
        send(running, b"old")
        running.advance(ms=2 * 3600 * 1000)
    assert any(line.startswith("partition.trimmed partition=orders-0 ") for line in caplog.messages)
