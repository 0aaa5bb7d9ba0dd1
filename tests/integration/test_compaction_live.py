"""Compacted topics in a real broker: real clients write and read while its cleaner runs, or is killed."""

import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.integration.broker_process import BrokerProcess, eventually, serving, size_of_files
from tests.integration.clients.aiokafka_client import AiokafkaClient
from tests.integration.clients.client import Client
from tests.integration.clients.confluent_client import ConfluentClient
from tests.integration.clients.kafka_python_client import KafkaPythonClient
from tests.integration.messages import QUIET

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


def consumed(client: Client, topic: str, start: int | None = None) -> tuple[State, int]:
    """What a consumer that begins there knows at the end, and how many records it was sent."""
    _, end = client.watermarks(topic)
    state: State = {}
    count, position = 0, start or 0
    deadline = time.monotonic() + 30
    with client.reading(topic, 1, start=start) as reader:
        while position < end:
            assert time.monotonic() < deadline, "the consumer is stuck"
            for each in reader.poll(0.2):
                count, position = count + 1, each.offset + 1
                assert each.message.key is not None
                if each.message.value is None:
                    state.pop(each.message.key, None)
                else:
                    state[each.message.key] = each.message.value
    return state, count


def wait_until_compact(broker: BrokerProcess, topic: str) -> None:
    """Until there is little more than the segment that is being written."""
    folder = broker.data_dir / "logs" / f"{topic}-0"
    eventually(lambda: size_of_files(folder, ".log") < COMPACT_BYTES, seconds_max=30, every=0.05)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_compacted_topic_shrinks_to_its_keys_and_every_client_reads_it(
    cleaning_broker: BrokerProcess, codec: str
) -> None:
    bootstrap = cleaning_broker.bootstrap
    ConfluentClient(bootstrap).create_topic("state", 1, COMPACTED)
    state: State = {}
    write(bootstrap, "state", range(ROUNDS), state, codec)
    written = KEYS * ROUNDS
    wait_until_compact(cleaning_broker, "state")
    for kind in (ConfluentClient, KafkaPythonClient, AiokafkaClient):
        client: Client = kind(bootstrap)
        assert client.watermarks("state") == (0, written)
        found, count = consumed(client, "state")
        assert found == state, kind
        assert count < written / 2
        # From within a gap, the next record that is left.
        assert consumed(client, "state", start=written // 3)[0] == state, kind


def test_a_broker_killed_while_cleaning_loses_no_key(cleaning_broker: BrokerProcess) -> None:
    ConfluentClient(cleaning_broker.bootstrap).create_topic("state", 1, COMPACTED)
    state: State = {}
    for kill in range(KILLS):
        write(cleaning_broker.bootstrap, "state", range(kill * 60, kill * 60 + 60), state)
        folder = cleaning_broker.data_dir / "logs" / "state-0"
        wait_until_cleaning(folder)
        cleaning_broker.kill()
        cleaning_broker.start()
        assert not [name for name in os.listdir(folder) if name.endswith(".swap")]
        assert consumed(ConfluentClient(cleaning_broker.bootstrap), "state")[0] == state
    wait_until_compact(cleaning_broker, "state")
    assert consumed(ConfluentClient(cleaning_broker.bootstrap), "state")[0] == state


def wait_until_cleaning(folder: Path) -> None:
    def is_cleaning() -> bool:
        return any(name.endswith((".cleaned", ".swap")) for name in os.listdir(folder))

    eventually(is_cleaning, seconds_max=20, every=0.001)


def test_the_cleaner_is_a_process_that_ends_with_its_broker(cleaning_broker: BrokerProcess) -> None:
    bootstrap = cleaning_broker.bootstrap
    ConfluentClient(bootstrap).create_topic("state", 1, COMPACTED)
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
