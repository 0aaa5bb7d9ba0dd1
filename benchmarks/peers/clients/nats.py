"""JetStream through nats-py: one stream, whose subjects are the lanes.

Records are published with a reply subject of our own, and acknowledgements are counted as they come: that
is what `publish_async` of the library does, without a future for each record, and two to three times as
fast. Readers are ordered consumers, JetStream's way to read a stream without storing a position.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import nats
from nats.js.api import StreamConfig

from benchmarks.peers.clients.work import CONNECT_S_MAX, IDLE_S, ClientFailed, Work

BLOCKS = False
IN_FLIGHT_MAX = 4_000
"""What the library's own `publish_async` allows."""
CALL_S_MAX = 30
PENDING_MAX = 10_000_000


async def _connect(work: Work) -> Any:
    servers = [f"nats://{host}:{port}" for host, port in work.addresses]
    return await nats.connect(
        servers=servers,
        connect_timeout=CONNECT_S_MAX,
        allow_reconnect=len(servers) > 1,
        reconnect_time_wait=0.1,
        error_cb=_ignored,
        dont_randomize=True,
    )


async def _ignored(_: Exception) -> None:
    """Errors come back from the calls; the library would also print each."""


async def create(work: Work) -> None:
    connection = await _connect(work)
    try:
        # A server that lists subjects of its own in many filters is slower than one wildcard.
        config = StreamConfig(name=work.name, subjects=[f"{work.name}.>"], num_replicas=work.replicas)
        await connection.jetstream(timeout=CALL_S_MAX).add_stream(config)
    finally:
        await connection.close()


async def delete(work: Work) -> None:
    connection = await _connect(work)
    try:
        await connection.jetstream(timeout=CALL_S_MAX).delete_stream(work.name)
    finally:
        await connection.close()


async def leader(work: Work) -> int:
    """Number of the member that leads the stream: the servers are named node-0, node-1, node-2."""
    connection = await _connect(work)
    try:
        found = await connection.jetstream(timeout=CALL_S_MAX).stream_info(work.name)
    finally:
        await connection.close()
    return int(found.cluster.leader.rpartition("-")[2])


class NatsProducer:
    def __init__(self, work: Work, connection: Any) -> None:
        self._connection = connection
        self._subjects = [f"{work.name}.{lane}" for lane in range(work.lanes)]
        self._inbox = connection.new_inbox()
        self._sent = self._acknowledged = 0
        self._settle_s = work.settle_s
        self._error = ""
        self._came = asyncio.Event()

    async def subscribe(self) -> None:
        await self._connection.subscribe(
            self._inbox, cb=self._on_reply, pending_msgs_limit=PENDING_MAX, pending_bytes_limit=2**40
        )

    async def _on_reply(self, message: Any) -> None:
        if b'"error"' in message.data or not message.data:
            self._error = _reason(message.data)
        self._acknowledged += 1
        self._came.set()

    async def send(self, lane: int, values: Sequence[bytes]) -> None:
        subject, publish, inbox = self._subjects[lane], self._connection.publish, self._inbox
        for value in values:
            await publish(subject, value, reply=inbox)
        self._sent += len(values)
        if len(values) > 1:
            await asyncio.sleep(0)  # acknowledgements are read and the buffer is written meanwhile
        if self._sent - self._acknowledged > IN_FLIGHT_MAX:
            await self._wait(IN_FLIGHT_MAX // 2)

    async def settle(self) -> None:
        await self._wait(0)
        if self._error:
            raise ClientFailed(self._error)

    async def _wait(self, most: int) -> None:
        deadline = time.monotonic() + self._settle_s
        while self._sent - self._acknowledged > most:
            self._came.clear()
            left = deadline - time.monotonic()
            try:
                await asyncio.wait_for(self._came.wait(), left)
            except TimeoutError:
                missing = self._sent - self._acknowledged
                raise ClientFailed(
                    f"{missing} records were not acknowledged within {self._settle_s} s"
                ) from None

    async def poll(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        await self._connection.close()


def _reason(reply: bytes) -> str:
    return str(json.loads(reply)["error"].get("description")) if reply else "no stream took the record"


async def producer(work: Work) -> NatsProducer:
    connection = await _connect(work)
    made = NatsProducer(work, connection)
    await made.subscribe()
    return made


class NatsConsumer:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._values: list[bytes] = []
        self._came = asyncio.Event()

    async def subscribe(self, work: Work) -> None:
        await self._connection.jetstream(timeout=CALL_S_MAX).subscribe(
            f"{work.name}.>",
            stream=work.name,
            ordered_consumer=True,
            cb=self._on_record,
            pending_msgs_limit=PENDING_MAX,
            pending_bytes_limit=2**40,
        )

    async def _on_record(self, message: Any) -> None:
        self._values.append(message.data)
        if not self._came.is_set():
            self._came.set()

    async def receive(self) -> list[bytes]:
        if not self._values:
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), IDLE_S)
            except TimeoutError:
                return []
        values, self._values = self._values, []
        return values

    async def close(self) -> None:
        await self._connection.close()


async def consumer(work: Work, _: int) -> NatsConsumer:
    made = NatsConsumer(await _connect(work))
    await made.subscribe(work)
    return made


class NatsCrowd:
    def __init__(self, work: Work, connections: list[Any]) -> None:
        self._work = work
        self._connections = connections

    async def run(self, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        return sum(
            await asyncio.gather(*(self._one(number, deadline) for number in range(self._work.producers)))
        )

    async def _one(self, number: int, deadline: float) -> int:
        jetstream = self._connections[number].jetstream(timeout=CALL_S_MAX)
        subject, value = f"{self._work.name}.{number % self._work.lanes}", bytes(self._work.record_bytes)
        acknowledged = 0
        while time.monotonic() < deadline:
            await jetstream.publish(subject, value)
            acknowledged += 1
        return acknowledged

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()


async def crowd(work: Work) -> NatsCrowd:
    return NatsCrowd(work, [await _connect(work) for _ in range(work.connections)])
