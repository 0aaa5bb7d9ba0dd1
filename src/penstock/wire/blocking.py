"""The wire client for those who may wait: one question, one answer.

    with open_stream("127.0.0.1", 9092, timeout_s=10) as stream:
        client = BlockingClient(stream, "penstock-cli")
        answer = client.ask(METADATA, MetadataRequest(topics=None))

What the network does wrong is an OSError (ConnectionError when the broker hangs up, TimeoutError
when it is silent); what the broker says wrong is ProtocolError or VersionMismatch.
"""

from collections.abc import Sequence
from typing import Protocol

from penstock.protocol.messages.api_versions import ApiVersionsResponse
from penstock.protocol.schema import Api, Request, Response, Struct
from penstock.types import Buffer
from penstock.wire.core import WireCore


class ByteStream(Protocol):
    def send(self, buffers: Sequence[Buffer]) -> None: ...

    def receive(self) -> bytes:
        """Some bytes; none at all once the peer has closed its side."""


class BlockingClient:
    """A connection that is ready to be asked: making one exchanges the greeting."""

    def __init__(self, stream: ByteStream, client_id: str) -> None:
        self._stream = stream
        self._core = WireCore(client_id)
        self._greet()

    def ask(self, api: Api[Request, Response], message: Request) -> Response:
        answer = self._exchange(self._core.ask(api, message))
        assert isinstance(answer, api.response)
        return answer

    def _greet(self) -> None:
        while True:
            answer = self._exchange(self._core.greeting())
            assert isinstance(answer, ApiVersionsResponse)
            if self._core.learn(answer):
                return

    def _exchange(self, buffers: Sequence[Buffer]) -> Struct:
        self._stream.send(buffers)
        while True:
            data = self._stream.receive()
            if not data:
                raise ConnectionError("the broker closed the connection before it answered")
            if answers := self._core.received(data):
                assert len(answers) == 1, "one question was open"
                return answers[0]
