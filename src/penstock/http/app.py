"""The HTTP side of the broker.

GET /health/live     200 while the process answers at all
GET /health/ready    200 when clients can be served; 503 with the reason when not
"""

from collections.abc import Callable

from aiohttp import web

from penstock.config.listeners import Address
from penstock.errors import ConfigError
from penstock.limits import HTTP_REQUEST_BYTES_MAX

Readiness = Callable[[], str | None]
"""Why the broker is not ready; None when it is."""


class HttpServer:
    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        app = web.Application(client_max_size=HTTP_REQUEST_BYTES_MAX)
        app.router.add_get("/health/live", self._live)
        app.router.add_get("/health/ready", self._ready)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, address: Address) -> Address:
        """Listen, and return the address with its real port."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, address.host, address.port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(f"cannot listen on {address} for HTTP: {error.strerror}") from error
        return Address(address.host, self._runner.addresses[0][1])

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _live(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "live"})

    async def _ready(self, request: web.Request) -> web.Response:
        reason = self._readiness()
        if reason is None:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "not ready", "reason": reason}, status=503)
