"""`python -m tools.faults.proxy`: a proxy in front of every machine of a cluster, which can inject faults.

    a machine or client ──> advertised address ── this process ──> address at which the machine listens

All machines reach another one at the same advertised address. So the proxy finds the sender of a connection
by the process that owns its other end (`sockets.py`). Each direction between two machines is a link. It can
be cut (data waits, neither side gets an error), slow, or reset. The proxy listens for a machine as long as
the machine listens, so a dead process refuses connections as it would without a proxy.

The machines are a JSON document in the arguments. Orders are read from stdin, one JSON document a line; the
proxy writes a line to stdout when it has carried an order out.
"""

import asyncio
import json
import socket
import struct
import sys
from collections import defaultdict
from contextlib import suppress
from typing import Any, Final

from tools.faults import sockets
from tools.faults.sockets import Address

CLIENTS: Final = "clients"
CHUNK_BYTES: Final = 1 << 16
WAITING_MAX: Final = 256
LOOK_EVERY_S: Final = 0.02


class Link:
    """One direction between two machines."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.heal()

    def heal(self) -> None:
        self.open.set()
        self._latency_s = 0.0
        self._bytes_per_s: float | None = None
        self._free_at = 0.0

    def cut(self) -> None:
        self.open.clear()

    def slow(self, latency_s: float, bytes_per_s: float) -> None:
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s

    @property
    def is_plain(self) -> bool:
        return self._bytes_per_s is None and self.open.is_set()

    def arrives_at(self, size: int, now: float) -> float:
        if self._bytes_per_s is None:
            return now
        self._free_at = max(self._free_at, now) + size / self._bytes_per_s
        return self._free_at + self._latency_s


class Pump:
    """Copies data from one end of a connection to the other."""

    def __init__(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._link = link
        self._reader = reader
        self._writer = writer
        self._waiting: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(WAITING_MAX)
        self._unsent = 0
        """Number of chunks that wait, or were taken from the queue and are not written yet."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._receive())
            tasks.create_task(self._send())

    async def _receive(self) -> None:
        data: bytes | None = b""
        while data is not None:
            data = await self._next()
            if data is not None and self._unsent == 0 and self._link.is_plain:
                await self._write(data)
            else:
                self._unsent += 1
                due = self._link.arrives_at(len(data or b""), asyncio.get_running_loop().time())
                await self._waiting.put((due, data))

    async def _next(self) -> bytes | None:
        """The next chunk; None at the end of the stream, also if the connection broke."""
        with suppress(OSError):
            if data := await self._reader.read(CHUNK_BYTES):
                return data
        return None

    async def _send(self) -> None:
        data: bytes | None = b""
        while data is not None:
            due, data = await self._waiting.get()
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            await self._link.open.wait()
            if data is not None:
                await self._write(data)
            else:
                self._end()
            self._unsent -= 1

    async def _write(self, data: bytes) -> None:
        with suppress(OSError):  # that end is closed: the other pump passes the end on
            self._writer.write(data)
            await self._writer.drain()

    def _end(self) -> None:
        broken = self._reader.exception()
        if broken is not None:
            break_off(self._writer)
        elif not self._writer.is_closing():
            with suppress(OSError):
                self._writer.write_eof()


def break_off(writer: asyncio.StreamWriter) -> None:
    """Close with a TCP reset, so that the other side notices at once."""
    line = writer.get_extra_info("socket")
    if line is not None and not writer.is_closing():
        with suppress(OSError):
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


class Proxy:
    def __init__(self, parties: dict[str, list[tuple[Address, Address]]]) -> None:
        """`parties`: by machine, pairs of advertised address and listening address."""
        self._places = {listens: (name, known) for name, pairs in parties.items() for known, listens in pairs}
        self._links: dict[tuple[str, str], Link] = defaultdict(Link)
        self._pids: dict[int, str] = {}
        self._lines: dict[frozenset[str], set[asyncio.StreamWriter]] = defaultdict(set)
        self._servers: dict[Address, asyncio.Server] = {}

    async def follow(self) -> None:
        """Listen for each machine as long as the machine itself listens."""
        while True:
            listening = sockets.listening()
            for place, (name, known) in self._places.items():
                if place in listening and place not in self._servers:
                    self._servers[place] = await self._listen(name, known, place)
                elif place not in listening and place in self._servers:
                    self._servers.pop(place).close()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _listen(self, name: str, known: Address, place: Address) -> asyncio.Server:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._forward(name, place, reader, writer)

        return await asyncio.start_server(connected, known.host, known.port, backlog=512)

    async def _forward(
        self, party: str, place: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        peer, ours = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        if peer is None:
            return
        caller = sockets.owner(Address(*peer), Address(*ours), self._pids) or CLIENTS
        there, back = self._links[caller, party], self._links[party, caller]
        lines = self._lines[frozenset((caller, party))]
        lines.add(writer)
        far_writer: asyncio.StreamWriter | None = None
        try:
            while not (there.open.is_set() and back.open.is_set()):
                await there.open.wait()
                await back.open.wait()
            far_reader, far_writer = await asyncio.open_connection(place.host, place.port)
            lines.add(far_writer)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(Pump(there, reader, far_writer).run())
                tasks.create_task(Pump(back, far_reader, writer).run())
        except OSError:
            pass
        finally:
            for each in (writer, far_writer):
                if each is not None:
                    lines.discard(each)
                    break_off(each)

    # Orders

    def execute(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "add process":
                self._pids = {pid: name for pid, name in self._pids.items() if name != order["name"]}
                self._pids[order["pid"]] = order["name"]
            case "cut":
                for ends in order["links"]:
                    self._links[ends[0], ends[1]].cut()
            case "slow":
                for ends in order["links"]:
                    self._links[ends[0], ends[1]].slow(order["latency_s"], order["bytes_per_s"])
            case "reset":
                for parties, lines in self._lines.items():
                    if order["name"] in parties:
                        for line in list(lines):
                            break_off(line)
            case "heal":
                for link in self._links.values():
                    link.heal()
            case unknown:
                raise ValueError(f"no such order: {unknown}")


async def main() -> None:
    parties = {
        name: [(Address(*known), Address(*listens)) for known, listens in pairs]
        for name, pairs in json.loads(sys.argv[1]).items()
    }
    proxy = Proxy(parties)
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    following = asyncio.create_task(proxy.follow())
    while line := await orders.readline():
        proxy.execute(json.loads(line))
        print("done", flush=True)
    following.cancel()


if __name__ == "__main__":
    asyncio.run(main())
