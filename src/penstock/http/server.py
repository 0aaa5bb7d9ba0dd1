"""The HTTP server: binds its port at once, and loads the application afterwards.

Loading aiohttp takes a fifth of a second, half as long as the rest of a broker's start. So the port is bound
first, where a configuration error shows, and requests wait in the kernel's queue while a thread loads the
rest.

Rule: every request gets a response. If the application cannot be loaded, a server without dependencies
      reports that (fallback_server.py), and the broker is not ready.
"""

import asyncio
import os
import socket
from importlib import import_module
from typing import Any, NamedTuple

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.groups.cluster_groups import ClusterGroups
from penstock.broker.groups.group_lag import GroupLagReporter
from penstock.broker.network.server import Server
from penstock.broker.storage.compaction import Compaction
from penstock.broker.storage.partition_storage import Storage
from penstock.config.listeners import Address
from penstock.errors import ConfigError
from penstock.http.fallback_server import FallbackHttpServer, Readiness
from penstock.http.tokens import read_tokens
from penstock.limits import CONNECTION_BACKLOG_MAX
from penstock.observability.logs import Log


class Sources(NamedTuple):
    """The parts of a running broker that the HTTP application uses."""

    groups: ClusterGroups
    own_groups: GroupLagReporter
    storage: Storage
    server: Server
    compaction: Compaction
    cluster: MetadataService
    log: Log
    tokens_path: str | None = None
    """The file with the tokens that authorize changes; None: there are no tokens."""


class HttpServer:
    def __init__(self, address: Address, readiness: Readiness, sources: Sources) -> None:
        """Bind the port. ConfigError if it is in use, or if the file of tokens is invalid."""
        if sources.tokens_path is not None:
            read_tokens(sources.tokens_path)
        self._readiness = readiness
        self._sources = sources
        self._runner: Any = None
        self._fallback: FallbackHttpServer | None = None
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            self._socket = socket.create_server(
                (address.host, address.port), family=family, backlog=CONNECTION_BACKLOG_MAX
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {address} for HTTP: {_reason(error)}. Choose another address with --http"
            ) from error
        self.address = Address(address.host, self._socket.getsockname()[1])
        """The address with the real port."""

    async def serve(self) -> None:
        """Load the application. Returns when requests are served."""
        app = await asyncio.to_thread(import_module, "penstock.http.app")
        self._runner = await app.start_serving(self._socket, self._readiness, self._sources)

    async def serve_fallback(self) -> None:
        """Respond that the broker is not ready, after `serve` failed."""
        self._fallback = FallbackHttpServer(self._readiness)
        await self._fallback.start_serving(self._socket)

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._fallback is not None:
            await self._fallback.stop()
        self._socket.close()


def _reason(error: OSError) -> str:
    number = error.errno or 0
    if number < 0:  # an error of the name lookup, whose numbers are not those of the operating system
        return "no such host"
    return os.strerror(number).lower() if number else str(error)
