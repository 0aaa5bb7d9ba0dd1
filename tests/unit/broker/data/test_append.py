"""Batches that take long to look into: others feel nothing of them, and order is kept.

The thread that looks into batches is held by the test until it lets it go; what is answered before
that was not kept waiting.
"""

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Unpack

import pytest

from penstock.broker.broker import BROKER_LIMITS, BrokerLimits, Environment, RunningBroker, running_broker
from penstock.config.sources import load
from penstock.controller.topics import NewTopicFacts, TopicDefaults, TopicRequest, create_topic, delete_topic
from penstock.errors import ErrorCode
from penstock.limits import RECORDS_NAMED_MAX
from penstock.protocol.batches import split_batches
from penstock.protocol.compression import Codec
from penstock.protocol.frames import decode_response, encode_request
from penstock.protocol.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from penstock.protocol.records import BatchOptions, Record, build_batch
from penstock.replication.partition import Partition
from penstock.types import Offset, TopicId
from tests.unit.broker.waiting import until

VERSION = 9
NOW_MS = 1_700_000_000_000
MANY = 1_000
COMPACTED = {"cleanup.policy": "compact"}
SECONDS_MAX = 20


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sent = 0

    def send(self, topic: str, *batches: bytes, acks: int = -1, timeout_ms: int = 10_000) -> None:
        self._sent += 1
        data = [PartitionProduceData(0, batch) for batch in batches]
        request = ProduceRequest(None, acks, timeout_ms, [TopicProduceData(topic, partition_data=data)])
        self._writer.write(b"".join(encode_request(PRODUCE, VERSION, self._sent, "tests", request)))

    async def receive_all(self) -> tuple[int, list[PartitionProduceResponse]]:
        """The number of the request, and the answer for each batch."""
        async with asyncio.timeout(SECONDS_MAX):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            number, reply = decode_response(PRODUCE, VERSION, await self._reader.readexactly(size))
        return number, reply.responses[0].partition_responses

    async def receive(self) -> tuple[int, PartitionProduceResponse]:
        number, answers = await self.receive_all()
        return number, answers[0]

    async def is_closed(self) -> bool:
        """Waits for the broker to close it, and nothing may have come before."""
        async with asyncio.timeout(SECONDS_MAX):
            return await self._reader.read() == b""

    async def ask(self, topic: str, batch: bytes) -> PartitionProduceResponse:
        self.send(topic, batch)
        return (await self.receive())[1]

    def leave(self) -> None:
        self._writer.close()

    async def left(self) -> None:
        self.leave()
        with suppress(ConnectionError):  # what was on its way is lost, as it may be
            await self._writer.wait_closed()


class Wiring:
    def __init__(self, broker: RunningBroker, clients: list[Client]) -> None:
        self.broker = broker
        self.release = threading.Event()
        self._clients = clients

    async def topic(self, name: str, overrides: Mapping[str, str]) -> Partition:
        request = TopicRequest(name=name, partitions=1, overrides=overrides)
        await self.broker.cluster.change(
            lambda image: create_topic(
                image,
                request,
                NewTopicFacts(TopicId(name.encode().ljust(16, b"*")), NOW_MS),
                defaults=TopicDefaults(1, 1),
            )
        )
        (partition,) = self.broker.storage.partitions.of_topic(name)
        return partition

    async def client(self) -> Client:
        listener = self.broker.listeners[0]
        client = Client(*await asyncio.open_connection(listener.host, listener.port))
        self._clients.append(client)
        return client

    def hold_validations(self) -> None:
        """Nothing is validated by the thread until `release` is set."""
        self.broker.storage.deep_validations.add(
            self, 0, lambda: self.release.wait(SECONDS_MAX), lambda *_: None
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition, seconds_max=SECONDS_MAX)


@asynccontextmanager
async def serving(
    folder: Path, world: Environment | None = None, limits: BrokerLimits = BROKER_LIMITS
) -> AsyncIterator[Wiring]:
    config = load({"data_dir": str(folder / "data"), "kafka": "127.0.0.1:0"})
    clients: list[Client] = []
    try:
        async with running_broker(config, world or Environment(), limits) as broker:
            wiring = Wiring(broker, clients)
            try:
                yield wiring
            finally:
                wiring.release.set()
    finally:  # not before the broker has stopped: who waits for an answer still gets it
        for client in clients:
            await client.left()


def batch_of(count: int, key: bytes | None = b"k", **options: Unpack[BatchOptions]) -> bytes:
    return build_batch([Record(Offset(0), NOW_MS, key, b"v")] * count, **options)


def numbered(count: int, sequence: int) -> bytes:
    """By one idempotent producer."""
    return batch_of(count, producer_id=5, producer_epoch=0, base_sequence=sequence)


def stored(partition: Partition) -> list[tuple[int, int]]:
    """Base sequence and number of records of every batch, in the order of the log."""
    data = partition.log.active.file.read(0, partition.log.size_bytes)
    return [(header.base_sequence, header.record_count) for _, header in split_batches(data)]


async def test_a_batch_that_takes_long_delays_nobody_else(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        compacted = await wiring.topic("compacted", COMPACTED)
        await wiring.topic("plain", {})
        await wiring.topic("other", COMPACTED)
        slow, quick = await wiring.client(), await wiring.client()
        wiring.hold_validations()
        slow.send("compacted", batch_of(MANY))
        await wiring.until(lambda: compacted.batches_waiting == 1)
        assert (await quick.ask("plain", batch_of(1))).error_code == 0
        assert (await quick.ask("other", batch_of(1))).error_code == 0, "a small one is validated at once"
        assert compacted.log.log_end_offset == 0
        wiring.release.set()
        _, answer = await slow.receive()
        assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (0, 0, 0)
        assert compacted.high_watermark == MANY, "what is acknowledged is safe"


async def test_batches_of_a_partition_are_appended_in_the_order_they_came(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        client, other = await wiring.client(), await wiring.client()
        wiring.hold_validations()
        client.send("compacted", numbered(MANY, 0))
        client.send("compacted", numbered(1, MANY))
        await wiring.until(lambda: partition.batches_waiting == 2)
        other.send("compacted", batch_of(2))
        await wiring.until(lambda: partition.batches_waiting == 3)
        client.send("compacted", numbered(3, MANY + 1))
        await wiring.until(lambda: partition.batches_waiting == 4)
        wiring.release.set()
        answers = [await client.receive() for _ in range(3)]
        assert [(number, answer.error_code, answer.base_offset) for number, answer in answers] == [
            (1, 0, 0),
            (2, 0, MANY),
            (3, 0, MANY + 3),
        ]
        assert (await other.receive())[1].base_offset == MANY + 1
        assert stored(partition) == [(0, MANY), (MANY, 1), (-1, 2), (MANY + 1, 3)]
        assert partition.batches_waiting == 0


async def test_order_is_kept_when_the_topic_no_longer_asks_for_a_look(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        plain = await wiring.topic("plain", {})
        client = await wiring.client()
        wiring.hold_validations()
        client.send("compacted", numbered(MANY, 0))
        await wiring.until(lambda: partition.batches_waiting == 1)
        partition.reconfigure(plain.config)
        client.send("compacted", numbered(1, MANY))
        await wiring.until(lambda: partition.batches_waiting == 2)
        wiring.release.set()
        assert [(await client.receive())[1].base_offset for _ in range(2)] == [0, MANY]


async def test_replies_of_a_connection_keep_their_order_across_partitions(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        compacted = await wiring.topic("compacted", COMPACTED)
        plain = await wiring.topic("plain", {})
        client = await wiring.client()
        wiring.hold_validations()
        client.send("compacted", batch_of(MANY))
        client.send("plain", batch_of(1))
        await wiring.until(lambda: plain.high_watermark == 1)
        assert compacted.batches_waiting == 1
        wiring.release.set()
        assert [(await client.receive())[0] for _ in range(2)] == [1, 2]


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        (COMPACTED, {"codec": Codec.ZSTD}),
        ({"message.timestamp.before.max.ms": str(10**15)}, {}),
        ({"compression.type": "gzip"}, {}),
    ],
    ids=["compressed and compacted", "bounded age", "compression"],
)
async def test_whatever_takes_long_is_done_elsewhere(
    tmp_path: Path, overrides: dict[str, str], options: BatchOptions
) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("checked", overrides)
        client = await wiring.client()
        wiring.hold_validations()
        client.send("checked", batch_of(MANY, **options))
        await wiring.until(lambda: partition.batches_waiting == 1)
        wiring.release.set()
        assert (await client.receive())[1].error_code == 0
        assert partition.high_watermark == MANY


async def test_a_rejection_by_the_thread_names_records_and_the_next_batch_is_taken(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        client = await wiring.client()
        answer = await client.ask("compacted", batch_of(MANY, key=None))
        assert answer.error_code == ErrorCode.INVALID_RECORD
        named = [error.batch_index for error in answer.record_errors]
        assert (answer.base_offset, named) == (-1, list(range(RECORDS_NAMED_MAX)))
        assert (await client.ask("compacted", batch_of(MANY))).base_offset == 0
        assert partition.log.log_end_offset == MANY


async def test_a_topic_that_is_deleted_meanwhile_is_unknown(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        client = await wiring.client()
        wiring.hold_validations()
        client.send("compacted", batch_of(MANY))
        await wiring.until(lambda: partition.batches_waiting == 1)
        await wiring.broker.cluster.change(lambda image: delete_topic(image, name="compacted"))
        wiring.release.set()
        assert (await client.receive())[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not (tmp_path / "data" / "logs" / "compacted-0").exists()


async def test_more_than_fits_is_refused_so_that_clients_try_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        wiring.broker.storage.deep_validations.bytes_max = 30_000
        client = await wiring.client()
        wiring.hold_validations()
        for _ in range(20):
            client.send("compacted", batch_of(MANY))
        await wiring.until(lambda: partition.batches_waiting > 0)
        wiring.release.set()
        codes = [(await client.receive())[1].error_code for _ in range(20)]
        assert set(codes) == {0, ErrorCode.REQUEST_TIMED_OUT}
        assert partition.log.log_end_offset == MANY * codes.count(0)
        assert (await client.ask("compacted", batch_of(MANY))).error_code == 0


async def test_without_acks_a_long_batch_is_stored_and_nothing_is_sent_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        client = await wiring.client()
        client.send("compacted", batch_of(MANY), acks=0)
        client.send("compacted", batch_of(1))
        number, answer = await client.receive()
        assert (number, answer.base_offset) == (2, MANY)
        assert partition.high_watermark == MANY + 1


@pytest.mark.parametrize("acks", [0, -1])
async def test_a_stop_stores_the_batches_that_wait(tmp_path: Path, acks: int) -> None:
    async with serving(tmp_path) as wiring:
        partition = await wiring.topic("compacted", COMPACTED)
        client = await wiring.client()
        wiring.hold_validations()
        for _ in range(30):
            client.send("compacted", batch_of(MANY), acks=acks)
        await wiring.until(lambda: partition.batches_waiting == 30)
    log = partition.log
    assert log.log_end_offset == 30 * MANY
    assert (log.recovery_point, partition.high_watermark) == (log.log_end_offset, log.log_end_offset)
    assert (tmp_path / "data" / "clean-shutdown").exists()
