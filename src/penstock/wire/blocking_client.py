"""The wire client for those who may wait.

    with open_stream("127.0.0.1", 9092, timeout_s=10) as stream:
        client = BlockingClient(stream, "penstock-cli")
        answer = client.ask(METADATA, MetadataRequest(topics=None))

Several questions may be open at once: `send` gives a `PendingResponse`, and `wait` its answer. Answers that
come before the one that is waited for are kept with their own questions.

What the network does wrong is an OSError (ConnectionError when the broker hangs up, TimeoutError
when it is silent); what the broker says wrong is ProtocolError or VersionMismatch. After any of them
the connection is of no more use.
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
        """How many bytes came; none at all once the peer has closed its side."""


class PendingResponse(Generic[Response]):
    """A question that was sent."""

    def __init__(self, api: Api[Any, Response], version: int) -> None:
        self.api = api
        self.version = version
        self.answer: Response | None = None
        self.is_expected = True


class BlockingClient:
    """A connection that is ready to be asked: making one exchanges the greeting."""

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
        """Whether answers are due, and nobody wants any of them."""
        return bool(self._pending) and not any(pending.is_expected for pending in self._pending)

    def version_of(self, api: Api[Request, Response], *, newest: int = VERSION_MAX) -> int:
        """The newest version up to `newest` that both sides know."""
        return self._core.version_of(api, newest=newest)

    def ask(self, api: Api[Request, Response], message: Request) -> Response:
        return self.wait(self.send(api, message))

    def send(
        self, api: Api[Request, Response], message: Request, *, version: int | None = None
    ) -> PendingResponse[Response]:
        version = self._core.version_of(api) if version is None else version
        self._stream.send(self._core.ask(api, message, version=version))
        pending: PendingResponse[Response] = PendingResponse(api, version)
        self._pending.append(pending)
        return pending

    def wait(self, pending: PendingResponse[Response]) -> Response:
        """Its answer, once."""
        while pending.answer is None:
            self._receive_oldest()
        answer, pending.answer = pending.answer, None
        return answer

    def discard(self, pending: PendingResponse[Any]) -> None:
        """Its answer, when it comes, is thrown away."""
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
