"""`python -m tools.fuzz.capture`: records the requests that real clients send, into tests/fuzz/corpus.

A proxy forwards between the clients and a broker that advertises the proxy's address. Every request frame is
kept once, in a file named after its API, version and content: Fetch-v17-1a2b3c4d.bin. A file holds the frame
without its size.

Rule 1: no more than FRAMES_MAX of one API, version and client id, and none larger than
        FRAME_BYTES_MAX: the corpus is read by every run of the tests.
"""

import asyncio
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition

from penstock.errors import ProtocolError
from penstock.protocol.apis import APIS
from penstock.protocol.frames import parse_request_header
from tests.fuzz.mutations import CORPUS
from tests.integration.broker_process import serving

FRAMES_MAX = 6
FRAME_BYTES_MAX = 1500
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# kafka-python needs a library for snappy that nothing else here does.
CODECS_OF_KAFKA_PYTHON = ("none", "gzip", "lz4", "zstd")
SECONDS_MAX = 20


class Recorder:
    """Keeps one frame of each kind."""

    def __init__(self) -> None:
        self._frames: dict[str, bytes] = {}
        self._kinds: Counter[tuple[int, int, str | None]] = Counter()
        self._lock = threading.Lock()

    def keep(self, frame: bytes) -> None:
        try:
            header, _ = parse_request_header(frame)
        except ProtocolError:
            return
        kind = (header.api_key, header.api_version, header.client_id)
        api = APIS.get(header.api_key)
        name = f"{api.name if api else header.api_key}-v{header.api_version}"
        with self._lock:
            # Correlation ids differ in every run and make no other frame.
            file = f"{name}-{sha256(frame[8:]).hexdigest()[:8]}.bin"
            if len(frame) > FRAME_BYTES_MAX or file in self._frames or self._kinds[kind] >= FRAMES_MAX:
                return
            self._kinds[kind] += 1
            self._frames[file] = frame

    def write(self, folder: Path) -> int:
        folder.mkdir(exist_ok=True)
        for old in folder.glob("*.bin"):
            old.unlink()
        for name, frame in self._frames.items():
            (folder / name).write_bytes(frame)
        return len(self._frames)


def _forward(source: socket.socket, target: socket.socket, seen: Callable[[bytes], None]) -> None:
    try:
        while data := source.recv(65_536):
            seen(data)
            target.sendall(data)
    except OSError:  # either side left: so must the other
        pass
    for each in (source, target):
        with closing(each):
            pass


def _splitter(recorder: Recorder) -> Callable[[bytes], None]:
    pending = bytearray()

    def seen(data: bytes) -> None:
        pending.extend(data)
        while len(pending) >= 4 and len(pending) >= (end := 4 + int.from_bytes(pending[:4], "big")):
            recorder.keep(bytes(pending[4:end]))
            del pending[:end]

    return seen


@contextmanager
def proxied(recorder: Recorder) -> Iterator[str]:
    """Run a proxy in front of a broker, and yield the proxy's address."""
    with socket.create_server(("127.0.0.1", 0)) as listening, tempfile.TemporaryDirectory() as folder:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with serving(Path(folder) / "data", "--advertised", address) as broker:
            host, _, port = broker.bootstrap.rpartition(":")

            def accept() -> None:
                while True:
                    try:
                        client, _ = listening.accept()
                    except OSError:
                        return
                    server = socket.create_connection((host, int(port)))
                    for arguments in (
                        (client, server, _splitter(recorder)),
                        (server, client, lambda data: None),
                    ):
                        threading.Thread(target=_forward, args=arguments, daemon=True).start()

            threading.Thread(target=accept, daemon=True).start()
            yield address


def use_confluent(address: str) -> None:
    common: dict[str, Any] = {"bootstrap.servers": address, "client.id": "confluent"}
    admin = AdminClient(common)
    _wait(admin.create_topics([NewTopic("c", 2, 1), NewTopic("c2", 1, 1)]))
    resource = ConfigResource("topic", "c")
    _wait(admin.describe_configs([resource]))
    entry = ConfigEntry("retention.ms", "90000000", incremental_operation=AlterConfigOpType.SET)
    _wait(admin.incremental_alter_configs([ConfigResource("topic", "c", incremental_configs=[entry])]))
    _wait(admin.create_partitions([NewPartitions("c", 3)]))
    for codec in CODECS:
        producer = Producer({**common, "compression.type": codec, "enable.idempotence": codec == "lz4"})
        for number in range(3):
            producer.produce("c", b"value" * 20, key=b"key", partition=number % 2, headers={"a": b"b"})
        producer.flush(SECONDS_MAX)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    _wait(admin.list_offsets({TopicPartition("c", 0): latest}))
    _wait(admin.delete_records([TopicPartition("c", 0, 1)]))
    consumer = Consumer({**common, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("c", number, 0) for number in range(3)])
    consumer.consume(10, 3)
    consumer.close()
    _wait(admin.delete_topics(["c2"]))
    admin.describe_cluster().result(SECONDS_MAX)


def _wait(futures: "Mapping[Any, Future[Any]]") -> None:
    for future in futures.values():
        future.result(SECONDS_MAX)


def use_kafka_python(address: str) -> None:
    for codec in CODECS_OF_KAFKA_PYTHON:
        producer = KafkaProducer(
            bootstrap_servers=address,
            client_id="kafka-python",
            compression_type=None if codec == "none" else codec,
        )
        producer.send("k", b"value" * 20, key=b"key", headers=[("a", b"b")]).get(SECONDS_MAX)
        producer.close()
    consumer = KafkaConsumer(bootstrap_servers=address, client_id="kafka-python")
    partition = PyTopicPartition("k", 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    consumer.poll(timeout_ms=2000)
    consumer.end_offsets([partition])
    consumer.close()


async def use_aiokafka(address: str) -> None:
    for codec in CODECS:
        kind = None if codec == "none" else codec
        producer = AIOKafkaProducer(bootstrap_servers=address, client_id="aiokafka", compression_type=kind)
        await producer.start()
        await producer.send_and_wait("a", b"value" * 20, key=b"key", headers=[("a", b"b")])
        await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=address, client_id="aiokafka")
    await consumer.start()
    partition = AioTopicPartition("a", 0)
    consumer.assign([partition])
    await consumer.seek_to_beginning(partition)
    await consumer.getmany(partition, timeout_ms=2000)
    await consumer.stop()


def main() -> int:
    recorder = Recorder()
    with proxied(recorder) as address:
        use_confluent(address)
        use_kafka_python(address)
        asyncio.run(use_aiokafka(address))
    count = recorder.write(CORPUS)
    total = sum(path.stat().st_size for path in CORPUS.iterdir())
    print(f"{count} frames, {total} bytes in {CORPUS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
