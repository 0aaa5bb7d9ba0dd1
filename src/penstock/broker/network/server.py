"""The server: binds listeners, tracks connections, and closes connections that stall."""

import asyncio
import os
import socket
from collections import Counter
from functools import partial
from ssl import SSLContext
from typing import Final, NamedTuple

from penstock.broker.context import RequestContext
from penstock.broker.network.connection import Connection, ConnectionResources
from penstock.broker.network.memory_budget import MemoryBudget
from penstock.config.broker import NetworkConfig
from penstock.config.listeners import Listener
from penstock.errors import ConfigError
from penstock.limits import (
    CONNECTION_BACKLOG_MAX,
    CONNECTION_SWEEP_MS,
    LAST_REPLIES_MS_MAX,
    MEMORY_RELIEF_PARTS,
    REJECTIONS_LOGGED_PER_SECOND_MAX,
    TLS_HANDSHAKE_MS_MAX,
)
from penstock.observability.logs import Log
from penstock.security.access import ANONYMOUS, Authorizer

UNKNOWN_PEER = "unknown"


class ServerLimits(NamedTuple):
    """How long a TLS handshake and the last replies may take, and how often connections are checked."""

    tls_handshake_ms_max: int = TLS_HANDSHAKE_MS_MAX
    connection_sweep_ms: int = CONNECTION_SWEEP_MS
    last_replies_ms_max: int = LAST_REPLIES_MS_MAX


SERVER_LIMITS: Final = ServerLimits()


class Server:
    def __init__(
        self,
        shared: ConnectionResources,
        network: NetworkConfig,
        authorizer: Authorizer,
        log: Log,
        limits: ServerLimits = SERVER_LIMITS,
    ) -> None:
        self._limits = limits
        self.shared = shared
        self._network = network
        self._authorizer = authorizer
        self._log = log
        self.connections: dict[Connection, None] = {}
        """Ordered by arrival, so that operations on all connections run in a deterministic order."""
        self._one_closed = asyncio.Event()
        self._per_address: Counter[str] = Counter()
        self._servers: list[asyncio.Server] = []
        self.connections_rejected = 0
        """Connections closed on arrival, because there were too many in all or from their address."""
        self._rejections_to_log = 0
        self._is_stopping = False
        self._relief_is_due = False
        shared.on_shortage = self._expect_relief

    @property
    def connection_count(self) -> int:
        return len(self.connections)

    async def bind(self, listener: Listener, tls: SSLContext | None) -> Listener:
        """Bind the port without accepting connections yet. Returns the listener with its real port."""
        loop = asyncio.get_running_loop()
        factory = partial(self._connection, listener.name)
        try:
            server = await loop.create_server(
                factory,
                listener.host,
                listener.port,
                backlog=CONNECTION_BACKLOG_MAX,
                ssl=tls,
                ssl_handshake_timeout=self._limits.tls_handshake_ms_max / 1000 if tls else None,
                start_serving=False,
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {listener.host}:{listener.port} for listener {listener.name}: "
                f"{_bind_error_reason(error)}. Choose another address with --kafka or `listeners`"
            ) from error
        self._servers.append(server)
        return listener.bound_to(server.sockets[0].getsockname()[1])

    async def serve(self) -> None:
        for server in self._servers:
            await server.start_serving()

    async def sweep(self) -> None:
        """Task that closes stalled connections."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._limits.connection_sweep_ms / 1000)
            # Rejected connections are logged up to a rate: a client in a loop must not fill the log.
            if self._rejections_to_log > REJECTIONS_LOGGED_PER_SECOND_MAX:
                suppressed = self._rejections_to_log - REJECTIONS_LOGGED_PER_SECOND_MAX
                self._log.warning("connection.rejected_more", count=suppressed)
            self._rejections_to_log = 0
            now = loop.time()
            for connection in tuple(self.connections):
                connection.check(now, self._network.connection_idle_ms_max)

    def _expect_relief(self) -> None:
        """Schedule one check of all connections: it takes a while, so waiting connections share it."""
        if not self._relief_is_due:
            self._relief_is_due = True
            relief_ms = self.shared.memory_limits.relief_ms
            asyncio.get_running_loop().call_later(relief_ms / 1000, self._relieve)

    def _relieve(self) -> None:
        self._relief_is_due = False
        now = asyncio.get_running_loop().time()
        shared = self.shared
        for budget in (shared.small_frames, shared.large_frames, shared.decoded):
            if missing_bytes := budget.missing_bytes:
                self.relieve(budget, missing_bytes, now)
                # Repeated until no connection waits: evictions free memory only when their connections have
                # closed.
                self._expect_relief()

    def relieve(self, budget: MemoryBudget, missing_bytes: int, now: float) -> None:
        """Abort the connections that hold most memory for longest, until a part of the budget is freed."""
        part_bytes = budget.total_bytes // MEMORY_RELIEF_PARTS
        costs = [(connection.held_byte_seconds(budget, now), connection) for connection in self.connections]
        stalled = sorted((pair for pair in costs if pair[0]), key=lambda pair: pair[0], reverse=True)
        freed_bytes = 0
        for _, connection in stalled:
            if freed_bytes >= min(missing_bytes, part_bytes):
                return
            freed_bytes += connection.held_bytes_of(budget)
            connection.end_to_free_memory()
        # Requests in the decoded budget finish on their own. A budget that is overdrawn by a part already is
        # not overdrawn further.
        if budget is self.shared.decoded or budget.free_bytes <= -part_bytes:
            return
        if not any(connection.waits_for_client(budget) for connection in self.connections):
            budget.grant_first()  # all connections wait for each other

    def stop_listening(self) -> None:
        """Accept no more connections, and no more requests on the existing ones."""
        self._is_stopping = True
        for server in self._servers:
            server.close()
        for connection in self.connections:
            connection.stop_accepting_requests()

    async def stop(self) -> None:
        """Close every connection, once its finished replies are sent or a timeout has passed."""
        for connection in tuple(self.connections):
            connection.close()
        try:
            async with asyncio.timeout(self._limits.last_replies_ms_max / 1000):
                await self._until_all_are_closed()
        except TimeoutError:
            for connection in tuple(self.connections):
                connection.abort()
            await self._until_all_are_closed()
        for server in self._servers:
            await server.wait_closed()

    async def _until_all_are_closed(self) -> None:
        while self.connections:
            self._one_closed.clear()
            await self._one_closed.wait()

    def _connection(self, listener: str) -> Connection:
        return Connection(self.shared, partial(self._context, listener), self._opened, self._closed)

    def _context(self, listener: str, transport: asyncio.Transport) -> RequestContext:
        peer = transport.get_extra_info("peername")
        return RequestContext(ANONYMOUS, listener, peer[0] if peer else UNKNOWN_PEER, self._authorizer)

    def _opened(self, connection: Connection) -> bool:
        peer = connection.context.peer
        self.connections[connection] = None
        self._per_address[peer] += 1
        if self._is_stopping:
            return False
        if (reason := self._limit_exceeded(peer)) is not None:
            self.connections_rejected += 1
            self._log_rejection(peer, reason)
            return False
        connection.keep_alive()
        return True

    def _limit_exceeded(self, peer: str) -> str | None:
        if len(self.connections) > self._network.connections_max:
            return f"more than max.connections={self._network.connections_max}"
        if self._per_address[peer] > self._network.connections_per_address_max:
            return "more than max.connections.per.ip from one address"
        return None

    def _closed(self, connection: Connection, close_reason: str | None) -> None:
        self.connections.pop(connection, None)
        self._one_closed.set()
        peer = connection.context.peer
        self._per_address[peer] -= 1
        if self._per_address[peer] <= 0:
            del self._per_address[peer]
        if close_reason is not None:
            self._log_rejection(peer, close_reason)

    def _log_rejection(self, peer: str, reason: str) -> None:
        self._rejections_to_log += 1
        if self._rejections_to_log <= REJECTIONS_LOGGED_PER_SECOND_MAX:
            self._log.warning("connection.rejected", peer=peer, reason=reason)


def _bind_error_reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):  # the error numbers of getaddrinfo are not those of strerror
        return "no such host"
    return os.strerror(error.errno).lower() if error.errno else str(error)
