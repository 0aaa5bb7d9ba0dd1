"""The least that a broker in Python does: a yardstick for Penstock, and nothing to keep records in.

It answers ApiVersions, Metadata and Produce of one client to the only partition of one topic, stamps the
offset into each batch, writes it, and acknowledges after a sync by group commit in a thread. It checks
nothing, knows no retries, recovers nothing and cannot be read from.

    python -m benchmarks.bare_broker FOLDER     prints the line that `penstock serve` prints
"""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from struct import Struct
from threading import Thread
from typing import cast

import uvloop

TOPIC = "bare"
PRODUCE, METADATA, API_VERSIONS = 0, 3, 18
SERVED = ((PRODUCE, 3, 7), (METADATA, 0, 1), (API_VERSIONS, 0, 0))
UNSUPPORTED_VERSION = 35
RECEIVE_BYTES = 2 * 1024 * 1024
WRITE_BUFFER_BYTES = 1024 * 1024
HEADER = Struct(">hhih")
SIZE, COUNT = Struct(">i"), Struct(">i")
OFFSET, LAST_OFFSET_DELTA = Struct(">q"), Struct(">i")
LAST_OFFSET_DELTA_AT = 23
EPOCH_AT = 12
NAME = TOPIC.encode()
RECORDS_AFTER_CLIENT_ID = 2 + 2 + 4 + 4 + 2 + len(NAME) + 4 + 4 + 4
"""Null transactional id, acks, timeout, one topic, its name, one partition, its number, size of the batch."""
REPLY = Struct(f">iiih{len(NAME)}siihqqqi")

Acknowledge = Callable[[int], None]


class BareLog:
    """One file. Appends that arrive during a sync share the next one."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._loop = loop
        self._position = self._offset = 0
        self._waiting: list[tuple[Acknowledge, int]] = []
        self._syncing: list[tuple[Acknowledge, int]] = []
        self._is_busy = False
        self._syncs: SimpleQueue[None] = SimpleQueue()
        Thread(target=self._sync, daemon=True).start()

    def append(self, batch: memoryview, acknowledge: Acknowledge) -> None:
        OFFSET.pack_into(batch, 0, self._offset)
        COUNT.pack_into(batch, EPOCH_AT, 0)
        self._position += os.pwrite(self._descriptor, batch, self._position)
        self._waiting.append((acknowledge, self._offset))
        self._offset += LAST_OFFSET_DELTA.unpack_from(batch, LAST_OFFSET_DELTA_AT)[0] + 1
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._syncing, self._waiting = self._waiting, []
        self._syncs.put(None)

    def _sync(self) -> None:
        while True:
            self._syncs.get()
            os.fdatasync(self._descriptor)
            self._loop.call_soon_threadsafe(self._synced)

    def _synced(self) -> None:
        for acknowledge, offset in self._syncing:
            acknowledge(offset)
        if self._waiting:
            self._begin()
        else:
            self._is_busy = False


class BareConnection(asyncio.BufferedProtocol):
    def __init__(self, log: BareLog, received: bytearray) -> None:
        self._log = log
        self._received = memoryview(received)
        self._own: bytearray | None = None
        """An unfinished frame."""
        self._own_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received if self._own is None else memoryview(self._own)[self._own_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._own is None:
            self._frames(self._received[:nbytes])
            return
        self._own_bytes += nbytes
        if self._own_bytes < len(self._own):
            return
        whole, self._own = memoryview(self._own), None
        if len(whole) == SIZE.size:
            self._keep(whole, SIZE.size + SIZE.unpack(whole)[0])
        else:
            self._frames(whole)

    def _keep(self, begun: memoryview, size: int) -> None:
        """Keep what has come of a frame, or of its size."""
        self._own = bytearray(size)
        self._own_bytes = len(begun)
        self._own[: len(begun)] = begun

    def _frames(self, data: memoryview) -> None:
        position = 0
        while len(data) - position >= SIZE.size:
            end = position + SIZE.size + SIZE.unpack_from(data, position)[0]
            if end > len(data):
                self._keep(data[position:], end - position)
                return
            self._handle(data[position + SIZE.size : end])
            position = end
        if position < len(data):
            self._keep(data[position:], SIZE.size)

    def _handle(self, frame: memoryview) -> None:
        key, version, correlation_id, client_id_bytes = HEADER.unpack_from(frame)
        if key == PRODUCE:
            batch = frame[HEADER.size + client_id_bytes + RECORDS_AFTER_CLIENT_ID :]
            self._log.append(batch, lambda offset: self._acknowledge(correlation_id, offset))
            return
        body = self._metadata() if key == METADATA else _api_versions(version)
        self._transport.write(SIZE.pack(4 + len(body)) + SIZE.pack(correlation_id) + body)

    def _acknowledge(self, correlation_id: int, offset: int) -> None:
        reply = REPLY.pack(
            REPLY.size - SIZE.size, correlation_id, 1, len(NAME), NAME, 1, 0, 0, offset, -1, 0, 0
        )
        self._transport.write(reply)

    def _metadata(self) -> bytes:
        host, port = self._transport.get_extra_info("sockname")[:2]
        address = host.encode()
        broker = Struct(f">iih{len(address)}sihi").pack(1, 1, len(address), address, port, -1, 1)
        topic = Struct(f">ihh{len(NAME)}s?").pack(1, 0, len(NAME), NAME, False)
        return broker + topic + Struct(">ihiiiiii").pack(1, 0, 0, 1, 1, 1, 1, 1)


def _api_versions(version: int) -> bytes:
    ranges = b"".join(Struct(">hhh").pack(*each) for each in SERVED)
    return Struct(">hi").pack(UNSUPPORTED_VERSION if version else 0, len(SERVED)) + ranges


async def _serve(folder: Path) -> None:
    loop = asyncio.get_running_loop()
    log, received = BareLog(folder / "log", loop), bytearray(RECEIVE_BYTES)
    server = await loop.create_server(lambda: BareConnection(log, received), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(f"penstock ready kafka=127.0.0.1:{port} http=none", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1])))
