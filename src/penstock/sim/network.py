"""Simulated connections between processes: byte streams that are slow, stall, and break.

Servers and clients use them like sockets, through `create_server` and `create_connection` of their loop.
Each direction of a connection delivers its bytes in order, each chunk after its own delay.

    cut         bytes from one host to another stay in flight until the cut is healed
    half-cut    the same in one direction only
    loss        TCP retransmits lost bytes, with growing delays, and the bytes after them wait
    reset       both ends of a connection get an error; bytes in flight are lost

Rule 1: Bytes are never changed, duplicated or reordered, because TCP does not do that. A client that
        retries duplicates whole requests.
Rule 2: No process gets an error for a cut. A client that waits for a reply has to time out.
Rule 3: The machine of a killed process stays up: it refuses new connections and resets old ones.
"""

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from random import Random
from typing import Any, Final, NamedTuple

from penstock.sim.processes import NO_PROCESS, NO_PROCESS_CONTEXT, ProcessLoop, SimProcess, current_process

_FIRST_PORT: Final = 30_000
_WRITE_BUFFER_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 256 * 1024
_RETRANSMIT_S: Final = 0.2
_RETRANSMIT_S_MAX: Final = 10.0


class NetworkConditions(NamedTuple):
    """How long bytes take on their way."""

    delay_s: float = 0.0005
    slow_share: float = 0.0
    """The share of chunks that take up to `slow_s`."""
    slow_s: float = 1.5
    lost_share: float = 0.0
    """The share of chunks that are lost and retransmitted, with a delay that doubles each time."""


class SimServer:
    """The result of `create_server`."""

    def __init__(self, network: "SimNetwork", process: SimProcess, port: int, factory: Any) -> None:
        self._network = network
        self.process = process
        self.factory: Callable[[], asyncio.BaseProtocol] = factory
        self.is_serving = False
        self.port = port
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return self.process.host, self.port

    async def start_serving(self) -> None:
        self.is_serving = True

    def close(self) -> None:
        self._network.remove_server(self)

    async def wait_closed(self) -> None:
        """Return at once: nothing is left to wait for."""


class SimNetwork:
    def __init__(self, loop: "NetworkLoop", random: Random, conditions: NetworkConditions) -> None:
        self.loop = loop
        self.conditions = conditions
        self._random = random
        self._servers: dict[tuple[str, int], SimServer] = {}
        self._next_port = _FIRST_PORT
        self._cuts: set[tuple[str, str]] = set()
        self._transports: dict[SimTransport, None] = {}
        self._healed = asyncio.Event()

    # Faults

    def cut(self, sender: str, receiver: str) -> None:
        self._cuts.add((sender, receiver))

    def restore(self, sender: str, receiver: str) -> None:
        """End one cut. Others stay."""
        self._cuts.discard((sender, receiver))
        self._deliver_all()

    def heal(self) -> None:
        self._cuts.clear()
        self._deliver_all()

    def _deliver_all(self) -> None:
        self._healed.set()
        self._healed = asyncio.Event()
        for end in tuple(self._transports):
            end.deliver()

    def is_cut(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._cuts

    def reset(self, *, share: float = 1.0) -> None:
        """Break connections between processes, all or a share of them."""
        for end in tuple(self._transports):
            if end in self._transports and self._random.random() < share:
                end.reset_connection(ConnectionResetError("the connection was reset"))

    def kill(self, process: SimProcess) -> None:
        for server in [each for each in self._servers.values() if each.process is process]:
            self.remove_server(server)
        for end in [each for each in self._transports if each.process is process]:
            end.drop_silently()

    def delay(self) -> float:
        conditions = self.conditions
        lost_s, retransmit_s = 0.0, _RETRANSMIT_S
        while (
            conditions.lost_share
            and lost_s < _RETRANSMIT_S_MAX
            and self._random.random() < conditions.lost_share
        ):
            lost_s, retransmit_s = lost_s + retransmit_s, 2 * retransmit_s
        if conditions.slow_share and self._random.random() < conditions.slow_share:
            return lost_s + self._random.uniform(0, conditions.slow_s)
        return lost_s + conditions.delay_s * self._random.uniform(0.5, 1.5)

    # Making connections

    def listen(self, factory: Any, port: int) -> SimServer:
        process = current_process()
        if process.is_dead:
            raise OSError(103, "the process is dead")
        if not port:
            self._next_port += 1
            port = self._next_port
        place = (process.host, port)
        if place in self._servers:
            raise OSError(98, "address already in use")
        server = self._servers[place] = SimServer(self, process, port, factory)
        return server

    def remove_server(self, server: SimServer) -> None:
        self._servers.pop((server.process.host, server.port), None)

    async def connect(
        self, factory: Any, host: str, port: int
    ) -> tuple["SimTransport", asyncio.BaseProtocol]:
        client = current_process()
        if client.is_dead:
            raise ConnectionAbortedError(103, "the process is dead")
        await self._travel(client.host, host)
        server = self._servers.get((host, port))
        if server is None or not server.is_serving:
            await self._travel(host, client.host)
            raise ConnectionRefusedError(111, f"nothing listens on {host}:{port}")
        near = SimTransport(self, client, (host, port))
        far = SimTransport(self, server.process, (client.host, 0))
        near.peer, far.peer = far, near
        far.open(server.process.run(server.factory))
        await self._travel(host, client.host)
        near.open(factory())
        return near, near.protocol

    async def _travel(self, sender: str, receiver: str) -> None:
        await asyncio.sleep(self.delay())
        while self.is_cut(sender, receiver):
            await self._healed.wait()

    def add(self, end: "SimTransport") -> None:
        self._transports[end] = None

    def remove(self, end: "SimTransport") -> None:
        self._transports.pop(end, None)


class _StreamEnding(Enum):
    CLOSED = 1
    RESET = 2


class SimTransport(asyncio.Transport):
    """One end of a connection. What is written to it arrives at the other end."""

    protocol: asyncio.BaseProtocol
    peer: "SimTransport"

    def __init__(self, network: SimNetwork, process: SimProcess, peer_name: tuple[str, int]) -> None:
        super().__init__({"peername": peer_name, "sockname": (process.host, 0)})
        self._network = network
        self.process = process
        self._in_flight: list[tuple[float, bytes | _StreamEnding]] = []
        """What was sent and has not arrived: the earliest time of arrival, and the data."""
        self._unread: list[bytes | _StreamEnding] = []
        self._has_begun = False
        self._is_reading = True
        self._is_closing = False
        self._is_disconnected = False
        self._is_full = False
        self._high = _WRITE_BUFFER_BYTES
        self._low = _WRITE_BUFFER_BYTES // 4

    def open(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol
        self._network.add(self)
        self._call(self._connection_made)

    def _connection_made(self) -> None:
        if not self._is_disconnected:
            self._has_begun = True
            self.protocol.connection_made(self)
            self._read()  # bytes that the other end sent before this end was open

    # As a transport

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: Any) -> None:
        if not self._is_closing and len(data):
            self._send(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return sum(len(data) for _, data in self._in_flight if isinstance(data, bytes))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _WRITE_BUFFER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._network.loop.call_soon(self._read)

    def close(self) -> None:
        """Close after everything that was written has arrived."""
        if not self._is_closing:
            self._is_closing = True
            self._send(_StreamEnding.CLOSED)
            self._network.loop.call_soon(self._connection_lost, None)

    def abort(self) -> None:
        self.reset_connection(None)

    # Breaking

    def reset_connection(self, reason: Exception | None) -> None:
        """Break the connection. This end gets the error at once, the other end after the network delay."""
        self._in_flight.clear()
        self._is_closing = True
        self._send(_StreamEnding.RESET)
        self._network.loop.call_soon(self._connection_lost, reason)

    def drop_silently(self) -> None:
        """Disconnect the end of a dead process without a callback. Its machine resets the connection."""
        self._is_disconnected = self._is_closing = True
        self._network.remove(self)
        self.reset_connection(None)

    def _connection_lost(self, reason: Exception | None) -> None:
        if not self._is_disconnected:
            self._is_disconnected = self._is_closing = True
            self._network.remove(self)
            if self._has_begun:
                self._call(self.protocol.connection_lost, reason)

    # Moving bytes

    def _send(self, data: bytes | _StreamEnding) -> None:
        at = self._network.loop.now + self._network.delay()
        # A later chunk with a shorter delay still arrives after the earlier ones.
        if self._in_flight:
            at = max(at, self._in_flight[-1][0])
        self._in_flight.append((at, data))
        self._network.loop.call_at(at, self.deliver, context=NO_PROCESS_CONTEXT)
        self._pause_or_resume_writing()

    def deliver(self) -> None:
        """Deliver everything that is due, unless the direction is cut."""
        if self._network.is_cut(self.process.host, self.peer.process.host):
            return
        now = self._network.loop.now
        while self._in_flight and self._in_flight[0][0] <= now:
            _, data = self._in_flight.pop(0)
            self.peer._unread.append(data)
        self._pause_or_resume_writing()
        self.peer._read()

    def _pause_or_resume_writing(self) -> None:
        size = self.get_write_buffer_size()
        if size > self._high and not self._is_full:
            self._is_full = True
            self._call(self.protocol.pause_writing)
        elif self._is_full and size <= self._low:
            self._is_full = False
            if not self._is_disconnected:
                self._call(self.protocol.resume_writing)

    def _read(self) -> None:
        if self.process.is_paused and self._unread:
            self.process.run(self._network.loop.call_soon, self._read)  # runs when the process is resumed
            return
        while self._unread and self._has_begun and self._is_reading and not self._is_disconnected:
            data = self._unread.pop(0)
            if isinstance(data, bytes):
                self._call(self._receive, data)
            elif data is _StreamEnding.CLOSED:
                self._call(self._end_of_stream)
            else:
                self._connection_lost(ConnectionResetError("the peer reset the connection"))

    def _receive(self, data: bytes) -> None:
        protocol = self.protocol
        if isinstance(protocol, asyncio.Protocol):
            protocol.data_received(data)
            return
        assert isinstance(protocol, asyncio.BufferedProtocol)
        rest = memoryview(data)
        while rest and not self._is_disconnected:
            buffer = memoryview(protocol.get_buffer(len(rest))).cast("B")
            count = min(len(buffer), len(rest), _CHUNK_BYTES)
            buffer[:count] = rest[:count]
            rest = rest[count:]
            protocol.buffer_updated(count)
            if not self._is_reading and rest:
                self._unread.insert(0, bytes(rest))
                return

    def _end_of_stream(self) -> None:
        assert isinstance(self.protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        if not self.protocol.eof_received():
            self.close()

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call as the process of this end; when it is paused, after it is resumed."""
        if self.process is NO_PROCESS or not self.process.is_paused:
            self.process.run(function, *arguments)
        else:
            self.process.run(self._network.loop.call_soon, function, *arguments)


class NetworkLoop(ProcessLoop):
    """An event loop with simulated sockets."""

    network: SimNetwork

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Any, host: str, port: int, **_: object
    ) -> SimServer:
        return self.network.listen(protocol_factory, port)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Any, host: str, port: int, **_: object
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        return await self.network.connect(protocol_factory, host, port)
