"""The asyncio wire client: one connection to a broker, with several requests in flight.

    async with connected(Address("127.0.0.1", 9092), "penstock-replica") as client:
        answer = await client.ask(METADATA, MetadataRequest(topics=None), timeout_s=5)

Errors are those of the blocking client: an OSError for the network (ConnectionError when the broker closes
the connection, TimeoutError without a reply), ProtocolError or VersionMismatch for an invalid reply.

Rule 1: a connection is closed after a request whose reply came too late or cannot be read: replies come in
        order, so all later requests would wait as well.
Rule 2: when the connection ends, every waiting request fails.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import cast

from penstock.config.listeners import Address
from penstock.errors import ProtocolError
from penstock.protocol.messages.api_versions import ApiVersionsResponse
from penstock.protocol.schema import Api, Request, Response, Struct
from penstock.types import Buffer
from penstock.wire.client_protocol import ClientProtocol

CONNECT_S_MAX = 5.0


class AsyncClient(asyncio.BufferedProtocol):
    def __init__(self, client_id: str) -> None:
        self._core = ClientProtocol(client_id)
        self._transport: asyncio.Transport
        self._waiting: deque[asyncio.Future[Struct]] = deque()
        self.is_closed = False

    async def ask(
        self, api: Api[Request, Response], message: Request, timeout_s: float, *, version: int | None = None
    ) -> Response:
        """Send a request and return the reply. Uses the newest common version, or the given one."""
        answer = await self._exchange(self._core.ask(api, message, version=version), timeout_s)
        assert isinstance(answer, api.response)
        return answer

    async def greet(self, timeout_s: float) -> None:
        while True:
            answer = await self._exchange(self._core.version_request(), timeout_s)
            assert isinstance(answer, ApiVersionsResponse)
            if self._core.accept_versions(answer):
                return

    async def _exchange(self, buffers: Sequence[Buffer], timeout_s: float) -> Struct:
        if self.is_closed:
            raise ConnectionError("the connection is closed")
        answer: asyncio.Future[Struct] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.writelines(buffers)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except BaseException:
            self.close()  # a late reply must not be matched to a later request
            raise

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._transport.abort()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._core.receive_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            answer = self._core.bytes_received(nbytes)
        except ProtocolError as problem:
            self._end(problem)
            self._transport.abort()
            return
        if answer is not None and not (waiting := self._waiting.popleft()).done():
            waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionError(f"the broker closed the connection{f': {exc}' if exc else ''}"))

    def _end(self, problem: Exception) -> None:
        self.is_closed = True
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if not each.done():
                each.set_exception(problem)


@asynccontextmanager
async def connected(
    address: Address, client_id: str, *, tls: SSLContext | None = None, timeout_s: float = CONNECT_S_MAX
) -> AsyncIterator[AsyncClient]:
    """Open a connection and negotiate versions; close it after the block."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        _, client = await loop.create_connection(
            lambda: AsyncClient(client_id),
            address.host,
            address.port,
            ssl=tls,
            server_hostname=address.host if tls else None,
        )
    try:
        await client.greet(timeout_s)
        yield client
    finally:
        client.close()
