"""What must be there after a stop, after a crash, and what must be gone when it is too old or too much."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import ErrorCode
from penstock.protocol.batches import split_batches
from penstock.protocol.messages.fetch import FETCH
from penstock.protocol.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from penstock.protocol.messages.produce import PRODUCE
from penstock.protocol.records import iterate_records
from penstock.testing import Broker, broker
from tests.integration.broker_process import BrokerProcess, eventually, size_of_files
from tests.integration.clients.confluent_client import ConfluentClient
from tests.integration.messages import assert_same, spread, varied_messages
from tests.integration.raw_client import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    Closed,
    RawClient,
    batch_of,
    connected,
    fetch_request,
    produce_request,
    records_of,
)

MIB = 1024 * 1024
DAY_MS = 24 * 3600 * 1000
SEGMENT_BYTES = 2 * MIB
KILLS = 10
BATCHES_IN_FLIGHT = 20


def watermarks(bootstrap: str, topic: str) -> tuple[int, int]:
    return ConfluentClient(bootstrap).watermarks(topic)


def values_in(client: RawClient, topic: str) -> list[bytes]:
    """Every value of partition 0, from its first record to its last."""
    found: list[bytes] = []
    while data := records_of(client.fetch(topic, len(found))):
        walk = split_batches(data)
        for start, _ in walk:
            batch = data[start : walk.position]
            found += [record.value or b"" for record in iterate_records(batch, limit_bytes=MIB)]
    return found


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_everything_is_there_after_a_restart(own_broker: BrokerProcess, how: str) -> None:
    sent = spread(varied_messages(300), 3)
    confluent = ConfluentClient(own_broker.bootstrap)
    confluent.create_topic("orders", 3, {"retention.ms": "123456789"})
    confluent.produce("orders", sent)
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
    with connected(own_broker.bootstrap) as client:
        before = client.ask(METADATA, 12, asked)

    getattr(own_broker, how)()
    own_broker.start()

    with connected(own_broker.bootstrap) as client:
        after = client.ask(METADATA, 12, asked)
    assert after.cluster_id == before.cluster_id
    assert after.topics[0].topic_id == before.topics[0].topic_id
    confluent = ConfluentClient(own_broker.bootstrap)
    with confluent.administration() as admin:
        assert admin.setting("orders", "retention.ms") == "123456789"
    with confluent.reading("orders", 3) as reader:
        assert_same(reader.read(300), sent)
    assert watermarks(own_broker.bootstrap, "orders") == (0, 100)


def test_every_acknowledged_record_survives_being_killed_under_load(own_broker: BrokerProcess) -> None:
    """Again and again, at other moments, over the same data."""
    acknowledged: list[bytes] = []
    for round_number in range(KILLS):
        with connected(own_broker.bootstrap) as client:
            client.create_topic("load")
            there = values_in(client, "load")
            assert_kept(acknowledged, there)
            acknowledged += produce_until_ended(client, own_broker, BrokerProcess.kill, round_number)
        own_broker.start()
    with connected(own_broker.bootstrap) as client:
        assert_kept(acknowledged, values_in(client, "load"))
    assert len(acknowledged) > KILLS * 10


def test_what_was_accepted_before_a_stop_is_acknowledged(own_broker: BrokerProcess) -> None:
    """Nobody has to send again what is there already."""
    with connected(own_broker.bootstrap) as client:
        client.create_topic("load")
        acknowledged = produce_until_ended(client, own_broker, BrokerProcess.stop, 0)
    own_broker.start()
    with connected(own_broker.bootstrap) as client:
        assert values_in(client, "load") == acknowledged


def produce_until_ended(
    client: RawClient, victim: BrokerProcess, end: Callable[[BrokerProcess], object], round_number: int
) -> list[bytes]:
    """Keep requests in flight all the time, end it in their midst, and return what was acknowledged."""
    values = [b"%d-%d" % (round_number, number) for number in range(1_000)]
    end_after = 10 + 13 * round_number
    sent = acknowledged = 0
    try:
        while True:
            while victim.is_running and sent - acknowledged < BATCHES_IN_FLIGHT:
                client.send(PRODUCE, PRODUCE_VERSION, produce_request("load", batch_of(values[sent])))
                sent += 1
            if acknowledged == end_after:
                end(victim)
            _, reply = client.receive(PRODUCE, PRODUCE_VERSION)
            assert reply.responses[0].partition_responses[0].error_code == 0
            acknowledged += 1
    except (Closed, OSError):
        assert not victim.is_running
    return values[:acknowledged]


def assert_kept(acknowledged: list[bytes], there: list[bytes]) -> None:
    """All of it, in its order; others between them were sent and not acknowledged."""
    positions = {value: position for position, value in enumerate(there)}
    assert len(positions) == len(there), "a record is there twice"
    missing = [value for value in acknowledged if value not in positions]
    assert not missing
    places = [positions[value] for value in acknowledged]
    assert places == sorted(places)


def test_the_start_of_a_log_survives_being_killed(own_broker: BrokerProcess) -> None:
    with connected(own_broker.bootstrap) as client:
        client.create_topic("trimmed")
        assert client.produce("trimmed", batch_of(*[b"x"] * 20)).error_code == 0
    with ConfluentClient(own_broker.bootstrap).administration() as admin:
        admin.delete_records("trimmed", 12)

    own_broker.kill()
    own_broker.start()

    assert watermarks(own_broker.bootstrap, "trimmed") == (12, 20)


def test_deleted_records_give_their_disk_back() -> None:
    with broker(**{"log.segment.bytes": SEGMENT_BYTES}) as running:
        fill(running, "trimmed", 5)
        with ConfluentClient(running.bootstrap).administration() as admin:
            admin.delete_records("trimmed", 5)
        assert watermarks(running.bootstrap, "trimmed") == (5, 5)

        running.advance(ms=0)

        assert data_bytes(running.data_dir) == 0


def test_a_deleted_topic_gives_its_disk_back(tmp_path: Path) -> None:
    with broker(tmp_path) as running:
        fill(running, "gone", 3)
        with ConfluentClient(running.bootstrap).administration() as admin:
            admin.delete("gone")
            assert "gone" not in admin.topics()

        eventually(lambda: size_of_files(tmp_path) < MIB)


def fill(running: Broker, topic: str, mebibytes: int) -> None:
    with connected(running.bootstrap) as client:
        client.create_topic(topic)
        for _ in range(mebibytes):
            assert client.produce(topic, batch_of(bytes(MIB - 1024))).error_code == 0


def test_records_older_than_their_retention_go() -> None:
    with broker(**{"log.segment.bytes": SEGMENT_BYTES, "log.retention.ms": DAY_MS}) as running:
        fill(running, "aged", 3)

        running.advance(ms=DAY_MS // 2)
        assert watermarks(running.bootstrap, "aged") == (0, 3)

        running.advance(ms=DAY_MS // 2 + 1)
        assert watermarks(running.bootstrap, "aged") == (3, 3)
        assert data_bytes(running.data_dir) == 0


def test_records_beyond_the_size_of_their_topic_go() -> None:
    with broker(**{"log.segment.bytes": SEGMENT_BYTES, "log.retention.bytes": 4 * MIB}) as running:
        fill(running, "bounded", 9)

        running.advance(ms=0)

        start, end = watermarks(running.bootstrap, "bounded")
        assert (start, end) == (4, 9), "whole segments of two go, and at least what was asked for stays"
        assert 4 * MIB <= data_bytes(running.data_dir) <= 5 * MIB


def test_a_consumer_beyond_what_was_removed_is_told_so() -> None:
    with broker(**{"log.segment.bytes": SEGMENT_BYTES, "log.retention.ms": DAY_MS}) as running:
        fill(running, "aged", 2)
        running.advance(ms=DAY_MS * 2)

        with connected(running.bootstrap) as client:
            partition = client.fetch("aged", 0).responses[0].partitions[0]

    assert partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def data_bytes(data_dir: Path) -> int:
    return size_of_files(data_dir / "logs", ending=".log")


def test_a_waiting_fetch_is_answered_as_soon_as_the_record_is_safe(bootstrap: str, topic: str) -> None:
    with connected(bootstrap) as writer, connected(bootstrap) as reader:
        writer.create_topic(topic)
        reader.send(FETCH, FETCH_VERSION, fetch_request(topic, 0, max_wait_ms=60_000, min_bytes=1))
        written_at = time.monotonic()
        assert writer.produce(topic, batch_of(b"now")).error_code == 0
        _, reply = reader.receive(FETCH, FETCH_VERSION)

        assert time.monotonic() - written_at < 2
        assert records_of(reply)
