"""The work, done in client processes: the same code for every protocol.

Each function is named by a question and called by `processes.py` with the client module's name. Clocks
start when clients are connected and stop with the last acknowledgement or the last record.
"""

import asyncio
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, TypeVar

import uvloop

from benchmarks.peers.clients.work import ClientFailed, Consumer, Producer, Work
from benchmarks.phase import Gauge, Phase

Result = TypeVar("Result")
STAMP = struct.Struct(">q")
NOT_COUNTED = 0
CHUNK_BYTES = 100_000
CHUNK_RECORDS_MAX = 500
TICK_S = 0.001
STALL_S_MAX = 15.0
LATE_S = 1.0
"""A steady flow that the server holds back ends so much later than it should."""
LAST_S_MAX = 3.0
"""How long a reader waits beyond that for records that are still on their way."""
WARM_S = 0.5
"""Steady flow that is not counted."""
RETRY_S = 0.01
WRITE_S_MAX = 60.0
ATTEMPT_S_MAX = 5.0


def run(module: str, function: str, work: Work) -> Any:
    """Run one of the functions below with a client module."""
    chosen: Callable[[Any, Work], Coroutine[Any, Any, Any]] = globals()[function]
    return uvloop.run(chosen(import_module(module), work))


async def ping(_: Any, __: Work) -> None:
    """Does nothing: the process has started and the client module is loaded."""


async def create(client: Any, work: Work) -> None:
    await client.create(work)


async def delete(client: Any, work: Work) -> None:
    await client.delete(work)


async def leader(client: Any, work: Work) -> int:
    found: int = await client.leader(work)
    return found


async def first_record(client: Any, work: Work) -> None:
    """Create a lane and write one record, as soon as the server lets a client do so."""
    await _retried(lambda: client.create(work))
    await _retried(lambda: _write_one(client, work))


async def write_one(client: Any, work: Work) -> None:
    """Write one record to what exists."""
    await _retried(lambda: _write_one(client, work))


async def _write_one(client: Any, work: Work) -> None:
    producer: Producer = await client.producer(work)
    try:
        await producer.send(0, [bytes(work.record_bytes)])
        await producer.settle()
    finally:
        await producer.close()


async def _retried(attempt: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Try until it works: a server that has just started may reject a client for a while."""
    deadline = time.monotonic() + WRITE_S_MAX
    while True:
        try:
            await asyncio.wait_for(attempt(), ATTEMPT_S_MAX)
            return
        except Exception:  # each library has its own errors
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(RETRY_S)


async def produce(client: Any, work: Work) -> Phase:
    """Produce for the given time, round the lanes, and wait for all acknowledgements."""
    producer: Producer = await client.producer(work)
    await _touch_each_lane(producer, work)
    chunk = max(1, min(CHUNK_RECORDS_MAX, CHUNK_BYTES // work.record_bytes, work.records))
    values = [bytes(work.record_bytes)] * chunk
    gauge, sent, lane = Gauge(work.pids), 0, 0
    deadline = time.monotonic() + work.seconds
    while sent < work.records and time.monotonic() < deadline:
        await producer.send(lane, values)
        sent += chunk
        lane = (lane + 1) % work.lanes
    await producer.settle()
    phase = gauge.stop(sent)
    await producer.close()
    return phase


async def _touch_each_lane(producer: Producer, work: Work) -> None:
    for lane in range(work.lanes):
        await producer.send(lane, [b"first"])
    await producer.settle()


async def consume(client: Any, work: Work) -> Phase:
    """Read from the beginning until all is read, or for the given time after the first record came.

    The clock includes connecting and subscribing.
    """
    gauge, received = Gauge(work.pids), 0
    stalled = time.monotonic() + STALL_S_MAX
    until: float | None = None
    consumer: Consumer = await client.consumer(work, 0)
    while received < work.records and (until is None or time.monotonic() < until):
        if values := await consumer.receive():
            received += len(values)
            stalled = time.monotonic() + STALL_S_MAX
            until = until or time.monotonic() + work.seconds
        elif time.monotonic() > stalled:
            raise ClientFailed(f"{received} records came, then none for {STALL_S_MAX:.0f} s")
    phase = gauge.stop(received)
    await consumer.close()
    return phase


async def count(client: Any, work: Work) -> int:
    """Number of records that can be read from the beginning."""
    consumer: Consumer = await client.consumer(work, 0)
    received, quiet_until = 0, time.monotonic() + work.seconds
    while received < work.records and time.monotonic() < quiet_until:
        if values := await consumer.receive():
            received += len(values)
            quiet_until = time.monotonic() + work.seconds
    await consumer.close()
    return received


async def produce_and_wait(client: Any, work: Work) -> tuple[Phase, list[float]]:
    """Send each record after the acknowledgement of the one before; the milliseconds of each, too."""
    producer: Producer = await client.producer(work)
    await _touch_each_lane(producer, work)
    values, clock = [bytes(work.record_bytes)], time.perf_counter
    took_ms: list[float] = []
    gauge, deadline = Gauge(work.pids), time.monotonic() + work.seconds
    while time.monotonic() < deadline:
        began = clock()
        await producer.send(len(took_ms) % work.lanes, values)
        await producer.settle()
        took_ms.append((clock() - began) * 1000)
    phase = gauge.stop(len(took_ms))
    await producer.close()
    return phase, took_ms


# A steady flow


async def send_steadily(client: Any, work: Work) -> Phase:
    """Send at each tick the records that are due, however late the tick is."""
    producer: Producer = await client.producer(work)
    await _touch_each_lane(producer, work)
    await _send_evenly(producer, work, WARM_S, is_counted=False)
    await producer.settle()  # what the warming up has left behind is not counted either
    gauge = Gauge(work.pids)
    sent = await _send_evenly(producer, work, work.seconds, is_counted=True)
    await producer.settle()
    phase = gauge.stop(sent)
    await producer.close()
    return phase


async def _send_evenly(producer: Producer, work: Work, seconds: float, *, is_counted: bool) -> int:
    padding = bytes(work.record_bytes - STAMP.size)
    began, sent, total = time.monotonic(), 0, int(work.rate * seconds)
    while sent < total and time.monotonic() < began + seconds + LATE_S:
        due = min(total, int((time.monotonic() - began) * work.rate))
        if due > sent:
            stamp = STAMP.pack(time.monotonic_ns() if is_counted else NOT_COUNTED)
            await producer.send(0, [stamp + padding] * (due - sent))  # one frame of a client that has frames
            sent = due
        await producer.poll()
        await asyncio.sleep(TICK_S)
    return sent


async def receive_steadily(client: Any, work: Work) -> list[float]:
    """Milliseconds from sending to receiving of every counted record, for all readers together.

    There are fewer than were to be sent if the server cannot keep up.
    """
    expected = int(work.rate * work.seconds)
    readers = [_receive(client, work, number, expected) for number in range(work.readers)]
    if client.BLOCKS and work.readers > 1:
        ages = _in_threads(readers)
    else:
        ages = await asyncio.gather(*readers)
    return [age for each in ages for age in each]


async def _receive(client: Any, work: Work, number: int, expected: int) -> list[float]:
    consumer: Consumer = await client.consumer(work, number)
    ages_ms: list[float] = []
    stalled = time.monotonic() + STALL_S_MAX
    until: float | None = None
    while len(ages_ms) < expected and (until is None or time.monotonic() < until):
        values = await consumer.receive()
        now = time.monotonic_ns()
        if not values:
            if time.monotonic() > stalled:
                raise ClientFailed(
                    f"{len(ages_ms)} of {expected} records came, then none for {STALL_S_MAX:.0f} s"
                )
            continue
        stalled = time.monotonic() + STALL_S_MAX
        stamps = (STAMP.unpack_from(value)[0] for value in values if len(value) == work.record_bytes)
        ages_ms.extend((now - stamp) / 1e6 for stamp in stamps if stamp != NOT_COUNTED)
        if ages_ms and until is None:
            until = time.monotonic() + work.seconds + LATE_S + LAST_S_MAX
    await consumer.close()
    return ages_ms


def _in_threads(readers: list[Coroutine[Any, Any, list[float]]]) -> list[list[float]]:
    """A thread and an event loop for each reader, for clients whose calls block."""
    found: list[list[float]] = [[] for _ in readers]
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            found[number] = asyncio.run(readers[number])
        except Exception as problem:  # raised again below, in the process's own thread
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(readers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return found


# Many connections


async def many_producers(client: Any, work: Work) -> Phase:
    crowd = await client.crowd(work)
    await crowd.run(min(WARM_S, work.seconds))  # also finds the connections that do not work
    gauge = Gauge(work.pids)
    phase = gauge.stop(await crowd.run(work.seconds))
    await crowd.close()
    return phase


# A leader is killed


async def write_through(client: Any, work: Work) -> list[float]:
    """Write one record after the other, retrying. Returns the monotonic time of each acknowledgement.

    Goes on beyond that time until a record is acknowledged: a silence that has not ended has no length.
    """
    acknowledged: list[float] = []
    deadline = time.monotonic() + work.seconds
    producer: Producer | None = None
    while time.monotonic() < deadline or not acknowledged or acknowledged[-1] < deadline:
        try:
            if producer is None:
                producer = await client.producer(work)
            await producer.send(0, [bytes(work.record_bytes)])
            await producer.settle()
        except Exception as problem:  # each library has its own errors
            if time.monotonic() > deadline + WRITE_S_MAX:
                raise ClientFailed(f"writing never worked again: {problem!r}") from problem
            if producer is not None:
                await _close_quietly(producer)
            producer = None
            await asyncio.sleep(RETRY_S)
            continue
        acknowledged.append(time.monotonic())
        await asyncio.sleep(RETRY_S)
    if producer is not None:
        await producer.close()
    return acknowledged


async def _close_quietly(producer: Producer) -> None:
    try:
        await asyncio.wait_for(producer.close(), 2)
    except Exception:  # it failed before, and the next one is a new connection
        return
