"""Compacted topics in a real broker: real clients write and read while its cleaner runs, or is killed."""

import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from tests.integration.broker_process import BrokerProcess, eventually, serving, size_of_files
from tests.integration.messages import QUIET
from tests.integration.test_clients_confluent import assign_all
from tests.integration.test_durability import consumer_of, create, watermarks

MIB = 1024 * 1024
KEYS = 40
OFTEN = {"log.cleaner.backoff.ms": 100, "log.cleaner.dedupe.buffer.size": MIB}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(MIB),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
KILLS = 5
ROUNDS = 200
COMPACT_BYTES = MIB + MIB // 4
State = dict[bytes, bytes]


@pytest.fixture
def cleaning_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with serving(tmp_path / "data", settings=OFTEN) as broker:
        yield broker


def write(bootstrap: str, topic: str, rounds: range, state: State, codec: str = "none") -> None:
    """So many values of every key, the last of some of them a tombstone. Returns when all are safe."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": codec, **QUIET}
    )
    filler = random.Random(rounds.start)
    for number in rounds:
        for index in range(KEYS):
            key = b"key-%d" % index
            if (number + index) % 17 == 0:
                state.pop(key, None)
                producer.produce(topic, key=key, value=None)
            else:
                state[key] = b"%d " % number + filler.randbytes(450).hex().encode()
                producer.produce(topic, key=key, value=state[key])
        producer.poll(0)
    assert producer.flush(30) == 0


def consumed(bootstrap: str, topic: str, from_offset: int = 0) -> tuple[State, int]:
    """What a consumer that begins there knows at the end, and how many records it was sent."""
    consumer = consumer_of(bootstrap)
    assign_all(consumer, topic, 1)
    consumer.seek(assignment_of(topic, from_offset))
    _, end = watermarks(bootstrap, topic)
    state: State = {}
    count = 0
    deadline = time.monotonic() + 30
    while consumer.position([assignment_of(topic, 0)])[0].offset < end:
        assert time.monotonic() < deadline, "the consumer is stuck"
        message = consumer.poll(0.2)
        if message is None:
            continue
        assert message.error() is None
        count += 1
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        if value is None:
            state.pop(key, None)
        else:
            assert isinstance(value, bytes)
            state[key] = value
    consumer.close()
    return state, count


def assignment_of(topic: str, offset: int) -> TopicPartition:
    return TopicPartition(topic, 0, offset)


def wait_until_compact(broker: BrokerProcess, topic: str) -> None:
    """Until there is little more than the segment that is being written."""
    folder = broker.data_dir / "logs" / f"{topic}-0"
    eventually(lambda: size_of_files(folder, ".log") < COMPACT_BYTES, seconds_max=30, every=0.05)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_compacted_topic_shrinks_to_its_keys_and_every_client_reads_it(
    cleaning_broker: BrokerProcess, codec: str
) -> None:
    bootstrap = cleaning_broker.bootstrap
    create(bootstrap, "state", config=COMPACTED)
    state: State = {}
    write(bootstrap, "state", range(ROUNDS), state, codec)
    written = KEYS * ROUNDS
    wait_until_compact(cleaning_broker, "state")
    found, count = consumed(bootstrap, "state")
    assert found == state
    assert count < written / 2
    assert watermarks(bootstrap, "state") == (0, written)
    # From within a gap, the next record that is left.
    assert consumed(bootstrap, "state", from_offset=written // 3)[0] == state
    assert read_by_kafka_python(bootstrap, "state", written) == state


def read_by_kafka_python(bootstrap: str, topic: str, end: int) -> State:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    partition = KafkaPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    state: State = {}
    deadline = time.monotonic() + 30
    while consumer.position(partition) < end:
        assert time.monotonic() < deadline, "the consumer is stuck"
        for records in consumer.poll(200).values():
            for record in records:
                state[record.key] = record.value
    consumer.close()
    return {key: value for key, value in state.items() if value is not None}


async def test_aiokafka_reads_past_gaps(cleaning_broker: BrokerProcess) -> None:
    bootstrap = cleaning_broker.bootstrap
    create(bootstrap, "state", config=COMPACTED)
    state: State = {}
    write(bootstrap, "state", range(100), state)
    wait_until_compact(cleaning_broker, "state")
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        partition = AioPartition("state", 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        found: State = {}
        deadline = time.monotonic() + 30
        while await consumer.position(partition) < KEYS * 100:
            assert time.monotonic() < deadline, "the consumer is stuck"
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found |= {record.key: record.value for record in records}
    finally:
        await consumer.stop()
    assert {key: value for key, value in found.items() if value is not None} == state


def test_a_broker_killed_while_cleaning_loses_no_key(cleaning_broker: BrokerProcess) -> None:
    create(cleaning_broker.bootstrap, "state", config=COMPACTED)
    state: State = {}
    for kill in range(KILLS):
        write(cleaning_broker.bootstrap, "state", range(kill * 60, kill * 60 + 60), state)
        folder = cleaning_broker.data_dir / "logs" / "state-0"
        wait_until_cleaning(folder)
        cleaning_broker.kill()
        cleaning_broker.start()
        assert not [name for name in os.listdir(folder) if name.endswith(".swap")]
        assert consumed(cleaning_broker.bootstrap, "state")[0] == state
    wait_until_compact(cleaning_broker, "state")
    assert consumed(cleaning_broker.bootstrap, "state")[0] == state


def wait_until_cleaning(folder: Path) -> None:
    def is_cleaning() -> bool:
        return any(name.endswith((".cleaned", ".swap")) for name in os.listdir(folder))

    eventually(is_cleaning, seconds_max=20, every=0.001)


def test_the_cleaner_is_a_process_that_ends_with_its_broker(cleaning_broker: BrokerProcess) -> None:
    bootstrap = cleaning_broker.bootstrap
    create(bootstrap, "state", config=COMPACTED)
    assert cleaners_of(cleaning_broker.pid) == [], "it is started when there is something to clean"
    write(bootstrap, "state", range(60), {})
    (cleaner,) = eventually(lambda: cleaners_of(cleaning_broker.pid), seconds_max=20)
    cleaning_broker.kill()
    eventually(lambda: not Path(f"/proc/{cleaner}").exists(), seconds_max=5)


def cleaners_of(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
            command = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if re.search(rf"^PPid:\t{pid}$", text, re.MULTILINE) and b"cleaner_worker" in command:
            found.append(int(status.parent.name))
    return found
