"""HTTP client for several equivalent servers.

Strategy: all requests go to one server as long as it replies. The first request that fails switches all later
ones to the next server. The caller interprets replies, and decides whether a request may be repeated.

Rule 1: every wait ends. The kernel detects a connection whose peer has vanished, even if nothing is being
        sent; a separate request (`is_alive`) detects a peer that has stalled.
Rule 2: a failure states whether the server may have received the request.
"""

import asyncio
import errno
import io
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import aiohttp

from penstock.limits import (
    ENDPOINT_CONNECT_MS_MAX,
    ENDPOINT_CONNECTIONS_MAX,
    ENDPOINT_LINE_BYTES_MAX,
    ENDPOINT_PIECE_BYTES,
    ENDPOINT_SILENCE_MS_MAX,
)

_CONNECT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_REQUEST_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)


class HttpReply(NamedTuple):
    status: int
    body: bytes


class HttpUnavailable(Exception):
    """No server replied."""

    def __init__(self, reason: str, *, may_be_received: bool) -> None:
        super().__init__(reason)
        self.may_be_received = may_be_received


class HttpEndpoints:
    """Client of the servers in `urls`, given without a path. To be made within a running event loop."""

    def __init__(self, urls: Sequence[str], tls: ssl.SSLContext | None = None) -> None:
        assert urls
        self._urls = tuple(urls)
        self._current = 0
        connector = aiohttp.TCPConnector(
            limit=ENDPOINT_CONNECTIONS_MAX, ssl=tls if tls is not None else True, socket_factory=_make_socket
        )
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)

    def __len__(self) -> int:
        return len(self._urls)

    @property
    def current(self) -> str:
        return self._urls[self._current]

    def fail_over_from(self, url: str) -> None:
        """Use the next server from now on, unless another request has switched already."""
        if self.current == url:
            self._current = (self._current + 1) % len(self._urls)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def post(
        self, url: str, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> HttpReply:
        """Send one request. HttpUnavailable if there is no reply in time."""
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=ENDPOINT_CONNECT_MS_MAX / 1000)
        try:
            # A long body is sent in chunks, so that other tasks run in between.
            data = body if len(body) <= ENDPOINT_PIECE_BYTES else io.BytesIO(body)
            async with self._session.post(url + path, data=data, headers=headers, timeout=timeout) as answer:
                return HttpReply(answer.status, await answer.read())
        except _REQUEST_ERRORS as problem:
            raise _unavailable(url, problem) from problem

    async def stream(
        self,
        url: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        is_alive: Callable[[], Awaitable[None]],
    ) -> AsyncGenerator[HttpReply, None]:
        """Yield each line of a reply that does not end. Its first bytes must arrive at once.

        `is_alive` is called whenever no data has arrived for a while; if it raises, the stream ends.
        """
        connecting = ENDPOINT_CONNECT_MS_MAX / 1000
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connecting)
        try:
            async with asyncio.timeout(2 * connecting):
                answer = await self._session.post(url + path, data=body, headers=headers, timeout=timeout)
        except _REQUEST_ERRORS as problem:
            raise _unavailable(url, problem) from problem
        try:
            held = bytearray()
            while chunk := await self._next(url, answer, is_alive):
                held += chunk
                if b"\n" in chunk:
                    *lines, rest = bytes(held).split(b"\n")
                    held = bytearray(rest)
                    for line in filter(None, lines):
                        yield HttpReply(answer.status, line)
                if len(held) > ENDPOINT_LINE_BYTES_MAX:
                    raise HttpUnavailable(f"{url} sends a line without end", may_be_received=True)
            if held:
                yield HttpReply(answer.status, bytes(held))
        finally:
            _abort(answer)

    async def _next(
        self, url: str, answer: aiohttp.ClientResponse, is_alive: Callable[[], Awaitable[None]]
    ) -> bytes:
        """Return the next bytes; empty at the end."""
        while True:
            try:
                async with asyncio.timeout(ENDPOINT_SILENCE_MS_MAX / 1000):
                    return await answer.content.readany()
            except TimeoutError:
                await is_alive()
            except _REQUEST_ERRORS as problem:
                raise _unavailable(url, problem) from problem

    async def close(self) -> None:
        await self._session.close()


def _abort(answer: aiohttp.ClientResponse) -> None:
    """Abort a reply that has no end: over TLS, `close` would start a handshake that nothing awaits."""
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()
    answer.close()


def _unavailable(url: str, problem: BaseException) -> HttpUnavailable:
    return HttpUnavailable(
        _describe_failure(url, problem), may_be_received=not isinstance(problem, _CONNECT_ERRORS)
    )


def _describe_failure(url: str, problem: BaseException) -> str:
    """Describe a failure for the operator: the library's messages refer to its own internals."""
    match problem:
        case aiohttp.ClientConnectorCertificateError(
            certificate_error=ssl.SSLCertVerificationError(verify_message=why)
        ):
            return f"the certificate of {url} is not trusted: {why}"
        case aiohttp.ClientSSLError() | aiohttp.ClientOSError(__cause__=ssl.SSLError()):
            return f"{url} agrees to no TLS with us: it is served without TLS, or wants another certificate"
        case aiohttp.ClientConnectorDNSError():
            return f"no address is known for the host of {url}"
        case aiohttp.ClientConnectorError(errno=errno.ECONNREFUSED):
            return f"nothing listens at {url}"
        case aiohttp.ClientConnectorError(errno=int(number)):
            return f"{url} cannot be reached: {os.strerror(number)}"
        case TimeoutError():
            return f"{url} does not answer in time"
        case aiohttp.ClientResponseError():
            return f"what answers at {url} does not speak HTTP"
        case _:
            return f"the connection to {url} broke before the answer was complete"


def _make_socket(address: tuple[int, int, int, str, object]) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    silence_s = max(1, ENDPOINT_SILENCE_MS_MAX // 1000)
    options = {"TCP_KEEPIDLE": silence_s, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}
    options["TCP_USER_TIMEOUT"] = 2 * ENDPOINT_SILENCE_MS_MAX
    for name, value in options.items():
        # Not every system has all of these; without them a stalled peer is noticed later.
        option = getattr(socket, name, None)
        if option is not None:
            with suppress(OSError):
                made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
