"""A minimal HTTP server for when the HTTP application cannot be loaded.

It uses nothing but asyncio. /health/live returns 200, and every other path returns 503 with the reason. Each
connection gets one response and is closed.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

HEAD_BYTES_MAX: Final = 8 * 1024
ANSWER_SECONDS_MAX: Final = 5.0
_LIVE: Final = b"/health/live"


class FallbackHttpServer:
    def __init__(self, not_ready: Callable[[], str | None]) -> None:
        self._not_ready = not_ready
        self._server: asyncio.Server | None = None

    async def start_serving(self, listening: socket.socket) -> None:
        self._server = await asyncio.start_server(self._answer, sock=listening, limit=HEAD_BYTES_MAX)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client that sends no request or too long a request, or that disconnects, gets no response.
        with suppress(TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(response(head, self._not_ready()))
                await writer.drain()
        writer.close()


def response(head: bytes, reason: str | None) -> bytes:
    """The response to a request, of which only the head is read."""
    _, _, rest = head.partition(b" ")
    target = rest.partition(b" ")[0].partition(b"?")[0]
    status, content = b"503 Service Unavailable", {"status": "not ready", "reason": reason}
    if target == _LIVE:
        status, content = b"200 OK", {"status": "live"}
    body = json.dumps(content).encode()
    fields = (
        b"HTTP/1.1 " + status,
        b"Content-Type: application/json; charset=utf-8",
        b"Content-Length: %d" % len(body),
        b"Connection: close",
    )
    return b"\r\n".join((*fields, b"", body))
