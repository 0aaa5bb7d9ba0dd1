"""RabbitMQ's streams through rstream. A lane is a stream; records are bare bytes, the lightest form it
takes."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import rstream
from rstream import ConsumerOffsetSpecification, OffsetType
from rstream.exceptions import StreamAlreadyExists, StreamDoesNotExist

from benchmarks.peers.clients.work import CONNECT_S_MAX, IDLE_S, ClientFailed, Work

BLOCKS = False
IN_FLIGHT_MAX = 10_000
"""What RabbitMQ's own clients for streams allow by default."""
CREDIT = 10
LOGIN = {"username": "guest", "password": "guest"}


def _streams(work: Work) -> list[str]:
    return [work.lane(number) for number in range(work.lanes)]


def _library(work: Work) -> Any:
    host, port = work.addresses[0]
    return rstream.Producer(host=host, port=port, **LOGIN)


async def create(work: Work) -> None:
    arguments = {"initial-cluster-size": str(work.replicas)} if work.replicas > 1 else {}
    async with _library(work) as library:
        # The library's own `create_stream` closes its connection after each, which takes a fifth of a second.
        client = await library.default_client
        for stream in _streams(work):
            with suppress(StreamAlreadyExists):
                await client.create_stream(stream, arguments)


async def delete(work: Work) -> None:
    async with _library(work) as library:
        client = await library.default_client
        for stream in _streams(work):
            with suppress(StreamDoesNotExist):
                await client.delete_stream(stream)


async def leader(work: Work) -> int:
    """Number of the member that leads lane 0."""
    async with _library(work) as library:
        found, _ = await (await library.default_client).query_leader_and_replicas(work.lane(0))
    return work.addresses.index((found.host, found.port))


class StreamProducer:
    def __init__(self, work: Work, library: Any) -> None:
        self._library = library
        self._streams = _streams(work)
        self._settle_s = work.settle_s
        self._sent = self._confirmed = 0
        self._error = ""
        self._came = asyncio.Event()

    def _on_confirm(self, status: Any) -> None:
        if not status.is_confirmed:
            self._error = f"the stream rejected a record: {status.response_code}"
        self._confirmed += 1
        self._came.set()

    async def send(self, lane: int, values: Sequence[bytes]) -> None:
        self._sent += len(values)
        # One callback for each batch: the library searches the sets of all callbacks for each record.
        await self._library.send_batch(
            self._streams[lane], list(values), on_publish_confirm=lambda status: self._on_confirm(status)
        )
        if self._sent - self._confirmed > IN_FLIGHT_MAX:
            await self._wait(IN_FLIGHT_MAX // 2)

    async def settle(self) -> None:
        await self._wait(0)

    async def _wait(self, most: int) -> None:
        deadline = time.monotonic() + self._settle_s
        while self._sent - self._confirmed > most and not self._error:
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), deadline - time.monotonic())
            except TimeoutError:
                missing = self._sent - self._confirmed
                raise ClientFailed(
                    f"{missing} records were not confirmed within {self._settle_s} s"
                ) from None
        if self._error:
            raise ClientFailed(self._error)

    async def poll(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        await asyncio.wait_for(self._library.close(), CONNECT_S_MAX)


async def producer(work: Work) -> StreamProducer:
    library = _library(work)
    await asyncio.wait_for(library.start(), CONNECT_S_MAX)
    return StreamProducer(work, library)


class StreamConsumer:
    def __init__(self, library: Any) -> None:
        self._library = library
        self._values: list[bytes] = []
        self._came = asyncio.Event()

    async def subscribe(self, work: Work) -> None:
        for stream in _streams(work):
            await self._library.subscribe(
                stream,
                self._on_record,
                decoder=bytes,
                offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None),
                initial_credit=CREDIT,
            )

    def _on_record(self, value: bytes, _: Any) -> None:
        self._values.append(value)
        if not self._came.is_set():
            self._came.set()

    async def receive(self) -> list[bytes]:
        if not self._values:
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), IDLE_S)
            except TimeoutError:
                return []
        await asyncio.sleep(0)
        values, self._values = self._values, []
        return values

    async def close(self) -> None:
        await asyncio.wait_for(self._library.close(), CONNECT_S_MAX)


async def consumer(work: Work, _: int) -> StreamConsumer:
    host, port = work.addresses[0]
    library = rstream.Consumer(host=host, port=port, **LOGIN)
    await asyncio.wait_for(library.start(), CONNECT_S_MAX)
    made = StreamConsumer(library)
    await made.subscribe(work)
    return made


class StreamCrowd:
    """Producers with one connection for a stream's leader and one to find it."""

    def __init__(self, work: Work, producers: list[StreamProducer]) -> None:
        self._work = work
        self._producers = producers

    async def run(self, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        active = range(self._work.producers)
        return sum(await asyncio.gather(*(self._one(number, deadline) for number in active)))

    async def _one(self, number: int, deadline: float) -> int:
        values, acknowledged = [bytes(self._work.record_bytes)], 0
        while time.monotonic() < deadline:
            await self._producers[number].send(number % self._work.lanes, values)
            await self._producers[number].settle()
            acknowledged += 1
        return acknowledged

    async def close(self) -> None:
        # All at once: the library takes a fifth of a second to close a connection.
        await asyncio.gather(*(each.close() for each in self._producers))


async def crowd(work: Work) -> StreamCrowd:
    return StreamCrowd(work, [await producer(work) for _ in range(work.producers)])
