"""RabbitMQ's quorum queues through pika on asyncio: publisher confirms, and consumers that acknowledge.

A lane is a queue. A reader of its own needs a queue of its own: with several readers the queues are bound
to one fan-out exchange, and each gets every record. To read is to acknowledge: the record leaves the queue.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from benchmarks.peers.clients.work import CONNECT_S_MAX, IDLE_S, ClientFailed, Work

BLOCKS = False
IN_FLIGHT_MAX = 2_000
PREFETCH = 1_000
ACKNOWLEDGE_EVERY = 250
PERSISTENT = pika.BasicProperties(delivery_mode=2)
Waiting = asyncio.Future[Any]


def _done(future: Waiting) -> Callable[..., None]:
    """A callback that ends the wait with its last argument."""

    def callback(*arguments: Any) -> None:
        if not future.done():
            future.set_result(arguments[-1] if arguments else None)

    return callback


def _failed(future: Waiting) -> Callable[..., None]:
    def callback(*arguments: Any) -> None:
        if not future.done():
            future.set_exception(ClientFailed(f"the connection ended: {arguments[-1]!r}"))

    return callback


async def _call(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    future: Waiting = asyncio.get_running_loop().create_future()
    method(*arguments, callback=_done(future), **options)
    return await asyncio.wait_for(future, CONNECT_S_MAX)


async def _connect(work: Work) -> Any:
    """A connection and its channel, to the first member that answers."""
    problem: Exception | None = None
    for host, port in work.addresses:
        parameters = pika.ConnectionParameters(host=host, port=port, heartbeat=60)
        opened: Waiting = asyncio.get_running_loop().create_future()
        AsyncioConnection(
            parameters,
            on_open_callback=_done(opened),
            on_open_error_callback=_failed(opened),
            on_close_callback=_failed(opened),
        )
        try:
            return await asyncio.wait_for(opened, CONNECT_S_MAX)
        except ClientFailed as failure:
            problem = failure
    assert problem is not None
    raise problem


async def _channel(connection: Any) -> Any:
    opened: Waiting = asyncio.get_running_loop().create_future()
    connection.channel(on_open_callback=_done(opened))
    return await asyncio.wait_for(opened, CONNECT_S_MAX)


def _queue(work: Work, lane: int, reader: int) -> str:
    return f"{work.lane(lane)}-reader-{reader}"


def _queues(work: Work) -> list[str]:
    return [_queue(work, lane, reader) for lane in range(work.lanes) for reader in range(work.readers)]


def _has_exchange(work: Work) -> bool:
    return work.readers > 1


async def create(work: Work) -> None:
    connection = await _connect(work)
    channel = await _channel(connection)
    arguments: dict[str, Any] = {"x-queue-type": "quorum", "x-quorum-initial-group-size": work.replicas}
    arguments["x-queue-leader-locator"] = "client-local"
    if _has_exchange(work):
        await _call(channel.exchange_declare, exchange=work.name, exchange_type="fanout", durable=True)
    for queue in _queues(work):
        await _call(channel.queue_declare, queue=queue, durable=True, arguments=arguments)
        if _has_exchange(work):
            await _call(channel.queue_bind, queue=queue, exchange=work.name)
    connection.close()


async def delete(work: Work) -> None:
    connection = await _connect(work)
    channel = await _channel(connection)
    for queue in _queues(work):
        await _call(channel.queue_delete, queue=queue)
    if _has_exchange(work):
        await _call(channel.exchange_delete, exchange=work.name)
    connection.close()


async def leader(_: Work) -> int:
    """The queue was declared through the first member, which leads it: `client-local`."""
    return 0


class QuorumProducer:
    def __init__(self, work: Work, connection: Any, channel: Any) -> None:
        self._connection = connection
        self._channel = channel
        self._settle_s = work.settle_s
        self._exchange = work.name if _has_exchange(work) else ""
        self._keys = [_queue(work, lane, 0) for lane in range(work.lanes)]
        self._sent = 0
        self._error = ""
        self._came = asyncio.Event()
        self._open: set[int] = set()
        channel.add_on_close_callback(self._on_close)

    async def confirm(self) -> None:
        await _call(self._channel.confirm_delivery, self._on_confirm)

    def _on_close(self, _: Any, reason: Any) -> None:
        self._error = self._error or f"the channel was closed: {reason!r}"
        self._came.set()

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        if method.NAME == "Basic.Nack":
            self._error = "the queue rejected a record"
        if method.multiple:
            self._open = {tag for tag in self._open if tag > method.delivery_tag}
        else:
            self._open.discard(method.delivery_tag)
        self._came.set()

    async def send(self, lane: int, values: Sequence[bytes]) -> None:
        publish, key, exchange = self._channel.basic_publish, self._keys[lane], self._exchange
        for value in values:
            self._sent += 1
            self._open.add(self._sent)
            publish(exchange, key, value, PERSISTENT)
        if len(values) > 1:
            await asyncio.sleep(0)
        if len(self._open) > IN_FLIGHT_MAX:
            await self._wait(IN_FLIGHT_MAX // 2)

    async def settle(self) -> None:
        await self._wait(0)

    async def _wait(self, most: int) -> None:
        deadline = time.monotonic() + self._settle_s
        while len(self._open) > most and not self._error:
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), deadline - time.monotonic())
            except TimeoutError:
                raise ClientFailed(
                    f"{len(self._open)} records were not confirmed in {self._settle_s} s"
                ) from None
        if self._error:
            raise ClientFailed(self._error)

    async def poll(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        if not self._connection.is_closed:
            self._connection.close()
        await asyncio.sleep(0.01)  # the connection says good-bye


async def producer(work: Work) -> QuorumProducer:
    connection = await _connect(work)
    made = QuorumProducer(work, connection, await _channel(connection))
    await made.confirm()
    return made


class QuorumConsumer:
    def __init__(self, connection: Any, channel: Any) -> None:
        self._connection = connection
        self._channel = channel
        self._values: list[bytes] = []
        self._unacknowledged = self._last_tag = 0
        self._came = asyncio.Event()

    async def subscribe(self, work: Work, reader: int) -> None:
        await _call(self._channel.basic_qos, prefetch_count=PREFETCH, global_qos=False)
        for lane in range(work.lanes):
            await _call(self._channel.basic_consume, _queue(work, lane, reader), self._on_record)

    def _on_record(self, _: Any, method: Any, __: Any, body: bytes) -> None:
        self._values.append(body)
        self._last_tag = method.delivery_tag
        self._unacknowledged += 1
        if self._unacknowledged >= ACKNOWLEDGE_EVERY:
            self._acknowledge()
        self._came.set()

    def _acknowledge(self) -> None:
        if self._unacknowledged:
            self._channel.basic_ack(self._last_tag, multiple=True)
            self._unacknowledged = 0

    async def receive(self) -> list[bytes]:
        if not self._values:
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), IDLE_S)
            except TimeoutError:
                self._acknowledge()
                return []
        await asyncio.sleep(0)
        values, self._values = self._values, []
        return values

    async def close(self) -> None:
        self._acknowledge()
        self._connection.close()
        await asyncio.sleep(0.05)  # the last acknowledgements leave


async def consumer(work: Work, reader: int) -> QuorumConsumer:
    connection = await _connect(work)
    made = QuorumConsumer(connection, await _channel(connection))
    await made.subscribe(work, reader)
    return made


class QuorumCrowd:
    def __init__(self, work: Work, producers: list[QuorumProducer], silent: list[Any]) -> None:
        self._work = work
        self._producers = producers
        self._silent = silent

    async def run(self, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        numbers = range(len(self._producers))
        return sum(await asyncio.gather(*(self._one(number, deadline) for number in numbers)))

    async def _one(self, number: int, deadline: float) -> int:
        values, acknowledged = [bytes(self._work.record_bytes)], 0
        while time.monotonic() < deadline:
            await self._producers[number].send(number % self._work.lanes, values)
            await self._producers[number].settle()
            acknowledged += 1
        return acknowledged

    async def close(self) -> None:
        for connection in self._silent:
            connection.close()
        for each in self._producers:
            await each.close()


async def crowd(work: Work) -> QuorumCrowd:
    producers = [await producer(work) for _ in range(work.producers)]
    silent = [await _connect(work) for _ in range(work.connections - work.producers)]
    return QuorumCrowd(work, producers, silent)
