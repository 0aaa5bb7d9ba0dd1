"""The blocking wire client: one connection to a broker.

    with open_stream("127.0.0.1", 9092, timeout_s=10) as stream:
        client = BlockingClient(stream, "penstock-cli")
        answer = client.ask(METADATA, MetadataRequest(topics=None))

Several requests may be in flight: `send` returns a `PendingResponse`, and `wait` its reply. Replies to
earlier requests that arrive meanwhile are stored in their own `PendingResponse`.

Network errors are an OSError (ConnectionError when the broker closes the connection, TimeoutError without a
reply); invalid replies are ProtocolError or VersionMismatch. After any of them the connection is unusable.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, Protocol

from penstock.protocol.messages.api_versions import ApiVersionsResponse
from penstock.protocol.schema import VERSION_MAX, Api, Request, Response, Struct
from penstock.types import Buffer
from penstock.wire.client_protocol import ClientProtocol


class ByteStream(Protocol):
    def send(self, buffers: Sequence[Buffer]) -> None: ...

    def receive_into(self, receive_buffer: memoryview) -> int:
        """Number of bytes received; 0 once the peer has closed its side."""


class PendingResponse(Generic[Response]):
    """A request that was sent."""

    def __init__(self, api: Api[Any, Response], version: int) -> None:
        self.api = api
        self.version = version
        self.answer: Response | None = None
        self.is_expected = True


class BlockingClient:
    """A connection after version negotiation, which the constructor performs."""

    def __init__(self, stream: ByteStream, client_id: str) -> None:
        self._stream = stream
        self._core = ClientProtocol(client_id)
        self._pending: deque[PendingResponse[Any]] = deque()
        self._greet()

    @property
    def is_idle(self) -> bool:
        return not self._pending

    @property
    def is_abandoned(self) -> bool:
        """Whether replies are outstanding and all of them were discarded."""
        return bool(self._pending) and not any(pending.is_expected for pending in self._pending)

    def ask(self, api: Api[Request, Response], message: Request, *, newest: int = VERSION_MAX) -> Response:
        return self.wait(self.send(api, message, newest=newest))

    def send(
        self, api: Api[Request, Response], message: Request, *, newest: int = VERSION_MAX
    ) -> PendingResponse[Response]:
        """Send a request in the newest common version, at most `newest`."""
        version = self._core.version_of(api, newest=newest)
        self._stream.send(self._core.ask(api, message, version=version))
        pending: PendingResponse[Response] = PendingResponse(api, version)
        self._pending.append(pending)
        return pending

    def wait(self, pending: PendingResponse[Response]) -> Response:
        """Return the reply; it can be taken once."""
        # Replies come in the order of the requests: earlier ones are received and stored first.
        while pending.answer is None:
            self._receive_oldest()
        answer, pending.answer = pending.answer, None
        return answer

    def discard(self, pending: PendingResponse[Any]) -> None:
        """Drop the reply when it arrives."""
        pending.is_expected = False
        pending.answer = None

    def _receive_oldest(self) -> None:
        assert self._pending, "the answer was given out already"
        answer = self._receive()
        pending = self._pending.popleft()
        assert isinstance(answer, pending.api.response)
        if pending.is_expected:
            pending.answer = answer

    def _greet(self) -> None:
        while True:
            self._stream.send(self._core.version_request())
            answer = self._receive()
            assert isinstance(answer, ApiVersionsResponse)
            if self._core.accept_versions(answer):
                return

    def _receive(self) -> Struct:
        while True:
            count = self._stream.receive_into(self._core.receive_buffer())
            if not count:
                raise ConnectionError("the broker closed the connection before it answered")
            if (answer := self._core.bytes_received(count)) is not None:
                return answer
