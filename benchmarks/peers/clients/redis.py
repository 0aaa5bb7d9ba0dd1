"""Redis Streams through redis-py with its fast parser (hiredis): pipelines of XADD, and XREAD."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import redis
import redis.asyncio

from benchmarks.peers.clients.work import CONNECT_S_MAX, IDLE_S, ClientFailed, Work

BLOCKS = True
MOST_AT_ONCE = 1_000
FIELD = b"v"
REPLICATION_MS_MAX = 10_000


def _client(work: Work) -> Any:
    host, port = work.addresses[0]
    return redis.Redis(host=host, port=port, socket_connect_timeout=CONNECT_S_MAX, socket_timeout=60)


def _keys(work: Work) -> list[str]:
    return [work.lane(number) for number in range(work.lanes)]


async def create(work: Work) -> None:
    """XADD makes a stream; only the connection is tried here."""
    with _client(work) as client:
        client.ping()


async def delete(work: Work) -> None:
    with _client(work) as client:
        client.unlink(*_keys(work))


class RedisProducer:
    def __init__(self, work: Work) -> None:
        self._client = _client(work)
        self._lanes = _keys(work)
        self._is_replicated = work.replicas > 1
        self._pipeline = self._client.pipeline(transaction=False)

    async def send(self, lane: int, values: Sequence[bytes]) -> None:
        add, key = self._pipeline.xadd, self._lanes[lane]
        for value in values:
            add(key, {FIELD: value})
        if len(self._pipeline) >= MOST_AT_ONCE:
            await self.settle()

    async def settle(self) -> None:
        if not len(self._pipeline):
            return
        if self._is_replicated:
            self._pipeline.wait(1, REPLICATION_MS_MAX)
        replies = self._pipeline.execute()
        if self._is_replicated and replies[-1] < 1:
            raise ClientFailed(f"no replica confirmed within {REPLICATION_MS_MAX} ms")

    async def poll(self) -> None:
        """Send what has been added since the last tick, in one pipeline, and wait for its replies."""
        await self.settle()

    async def close(self) -> None:
        self._client.close()


async def producer(work: Work) -> RedisProducer:
    return RedisProducer(work)


class RedisConsumer:
    def __init__(self, work: Work) -> None:
        self._client = _client(work)
        self._positions: dict[str, Any] = dict.fromkeys(_keys(work), "0-0")

    async def receive(self) -> list[bytes]:
        values: list[bytes] = []
        found = self._client.xread(self._positions, count=MOST_AT_ONCE, block=int(IDLE_S * 1000))
        for key, entries in _pairs(found):
            self._positions[key.decode()] = entries[-1][0]
            values.extend(fields[FIELD] for _, fields in entries)
        return values

    async def close(self) -> None:
        self._client.close()


def _pairs(found: Any) -> list[tuple[bytes, list[Any]]]:
    """Streams with their entries: protocol 3 answers with a mapping, protocol 2 with a list."""
    if isinstance(found, dict):
        return [(key, entries[0]) for key, entries in found.items()]
    return [(key, entries) for key, entries in found or ()]


async def consumer(work: Work, _: int) -> RedisConsumer:
    return RedisConsumer(work)


class RedisCrowd:
    def __init__(self, work: Work) -> None:
        host, port = work.addresses[0]
        self._work = work
        self._clients: list[Any] = [
            redis.asyncio.Redis(host=host, port=port, single_connection_client=True)
            for _ in range(work.connections)
        ]

    async def connect(self) -> None:
        for client in self._clients:
            await client.ping()

    async def run(self, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        active = self._clients[: self._work.producers]
        return sum(await asyncio.gather(*(self._one(number, deadline) for number in range(len(active)))))

    async def _one(self, number: int, deadline: float) -> int:
        client, key = self._clients[number], self._work.lane(number % self._work.lanes)
        fields, acknowledged = {FIELD: bytes(self._work.record_bytes)}, 0
        while time.monotonic() < deadline:
            await client.xadd(key, fields)
            acknowledged += 1
        return acknowledged

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()


async def crowd(work: Work) -> RedisCrowd:
    made = RedisCrowd(work)
    await made.connect()
    return made
