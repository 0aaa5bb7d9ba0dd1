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
from typing import Any

from penstock.broker.broker import RunningBroker
from penstock.config.listeners import Address
from penstock.errors import ConfigError
from penstock.host.tasks import Tasks
from penstock.http.fallback_server import FallbackHttpServer
from penstock.http.tokens import read_tokens
from penstock.limits import CONNECTION_BACKLOG_MAX
from penstock.observability.logs import Log


class HttpServer:
    def __init__(self, address: Address, broker: RunningBroker, log: Log, tokens_path: str | None) -> None:
        """Bind the port. ConfigError if it is in use, or if the file of tokens is invalid.

        `tokens_path`: the file with the tokens that authorize changes; None: there are no tokens.
        """
        if tokens_path is not None:
            read_tokens(tokens_path)
        self._broker = broker
        self._log = log
        self._tokens_path = tokens_path
        self._tasks = Tasks(self._failed)
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

    def start(self) -> None:
        """Load the application in the background, and serve requests with it."""
        self._tasks.start(self._serve(), "http")

    async def _serve(self) -> None:
        app = await asyncio.to_thread(import_module, "penstock.http.app")
        self._runner = await app.start_serving(self._socket, self._broker, self._log, self._tokens_path)

    def _failed(self, name: str, failure: BaseException) -> None:
        if self._fallback is not None:
            self._log.error("task.failed", task=name, reason=repr(failure))
            return
        self._log.error("http.failed", reason=repr(failure))
        self._broker.failure = self._broker.failure or f"HTTP cannot be served: {failure!r}"
        self._fallback = FallbackHttpServer(self._broker.not_ready)
        self._tasks.start(self._fallback.start_serving(self._socket), "http.fallback")

    async def stop(self) -> None:
        await self._tasks.stop()
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
