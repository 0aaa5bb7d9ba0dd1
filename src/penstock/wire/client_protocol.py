"""One connection to a broker, seen from the client, without a socket.

Buffers to send come out of `version_request` and `ask`. Bytes that come belong into `receive_buffer()`, and
`bytes_received` gives the answer that they complete. A shell (blocking_client.py) moves the bytes.

Rule 1: nothing but the greeting is sent before the broker has said which versions it speaks; after
        that every request goes out in the newest version both sides know.
Rule 2: a broker answers in the order it was asked. An answer with another correlation id than the
        oldest open question means that the stream can no longer be trusted.
Rule 3: the announced size of a response is judged before anything is kept for it.
Rule 4: a response is received into one buffer of its size, and records are views of that buffer: they
        are copied once, by the kernel. The buffer lives as long as the longest view of it.
"""

from collections import deque
from struct import unpack_from
from typing import Final, NamedTuple

from penstock import __version__
from penstock.errors import ErrorCode, ProtocolError
from penstock.limits import FRAME_PREFIX_BYTES, INT_MAX, REQUEST_BYTES_MAX
from penstock.protocol.frames import decode_response, encode_request
from penstock.protocol.messages.api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse
from penstock.protocol.schema import VERSION_MAX, Api, Request, Response, Struct
from penstock.types import Buffer

SOFTWARE_NAME: Final = "penstock"
RESPONSE_BYTES_MAX: Final = REQUEST_BYTES_MAX
"""As much as a broker takes in one request, and far more than any answer needs."""
_RESPONSE_BYTES_MIN: Final = 4
_ERROR_CODE_AT: Final = 4
_OLDEST_GREETING: Final = 0


class VersionMismatch(Exception):
    """The broker speaks no version of an API that we speak too."""


class _OpenRequest(NamedTuple):
    """A question that has no answer yet."""

    correlation_id: int
    api: Api[Struct, Struct]
    version: int


class ClientProtocol:
    def __init__(self, client_id: str, *, response_bytes_max: int = RESPONSE_BYTES_MAX) -> None:
        self._client_id = client_id
        self._response_bytes_max = response_bytes_max
        self._greeting_version = API_VERSIONS.versions[1]
        self._broker_versions: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0
        self._open_requests: deque[_OpenRequest] = deque()
        self._begin_frame()

    # Which versions

    def version_request(self) -> list[Buffer]:
        """The question that must come first: which versions does the broker speak?"""
        message = ApiVersionsRequest(SOFTWARE_NAME, __version__)
        return self._encode_request(API_VERSIONS, self._greeting_version, message)

    def accept_versions(self, answer: ApiVersionsResponse) -> bool:
        """Take the answer to a greeting. False: greet again, in a version the broker knows."""
        offered = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
        if answer.error_code == ErrorCode.NONE:
            self._broker_versions = offered
            return True
        if answer.error_code != ErrorCode.UNSUPPORTED_VERSION or self._greeting_version == _OLDEST_GREETING:
            raise ProtocolError(f"the broker refused to name its versions (error {answer.error_code})")
        _, newest = offered.get(API_VERSIONS.key, (_OLDEST_GREETING, _OLDEST_GREETING))
        # Always older than the refused one, or two peers could greet each other for ever.
        self._greeting_version = max(min(newest, self._greeting_version - 1), _OLDEST_GREETING)
        return False

    def version_of(self, api: Api[Request, Response], *, newest: int = VERSION_MAX) -> int:
        """The newest version up to `newest` that both sides know."""
        assert self._broker_versions, "the broker has not been asked yet which versions it speaks"
        if api.key not in self._broker_versions:
            raise VersionMismatch(f"the broker does not offer {api.name}")
        (oldest, theirs_newest), (ours_oldest, ours_newest) = self._broker_versions[api.key], api.versions
        version = min(theirs_newest, ours_newest, newest)
        if version < max(oldest, ours_oldest):
            raise VersionMismatch(
                f"the broker speaks {api.name} versions {oldest} to {theirs_newest}, "
                f"this client {ours_oldest} to {min(ours_newest, newest)}"
            )
        return version

    # Questions and answers

    def ask(
        self, api: Api[Request, Response], message: Request, *, version: int | None = None
    ) -> list[Buffer]:
        """What to send. Its answer comes out of `bytes_received` after those of all earlier questions."""
        return self._encode_request(api, self.version_of(api) if version is None else version, message)

    def receive_buffer(self) -> memoryview:
        """Where the next bytes belong: never empty, and never more than the frame that is begun."""
        return self._buffer[self._filled :]

    def bytes_received(self, count: int) -> Struct | None:
        """The answer that is complete with `count` more bytes. ProtocolError if they cannot be any."""
        self._filled += count
        if self._filled < len(self._buffer):
            return None
        if not self._is_sized:
            self._allocate_frame()
            return None
        frame = self._buffer.toreadonly()
        self._begin_frame()
        return self._decode_response(frame)

    def _begin_frame(self) -> None:
        self._is_sized = False
        self._buffer = memoryview(bytearray(FRAME_PREFIX_BYTES))
        self._filled = 0

    def _allocate_frame(self) -> None:
        (size,) = unpack_from(">i", self._buffer)
        if not _RESPONSE_BYTES_MIN <= size <= self._response_bytes_max:
            raise ProtocolError(f"a response of {size} bytes was announced")
        self._is_sized = True
        # Of a large one the system sets aside no more than is written to.
        self._buffer = memoryview(bytearray(size))
        self._filled = 0

    def _encode_request(self, api: Api[Request, Response], version: int, message: Request) -> list[Buffer]:
        self._correlation_id = (self._correlation_id + 1) & INT_MAX
        self._open_requests.append(_OpenRequest(self._correlation_id, api, version))
        return encode_request(api, version, self._correlation_id, self._client_id, message)

    def _decode_response(self, frame: memoryview) -> Struct:
        if not self._open_requests:
            raise ProtocolError("a response came that nothing was asked for")
        expected = self._open_requests.popleft()
        version = expected.version
        if expected.api.key == API_VERSIONS.key and _refuses_version(frame):
            version = _OLDEST_GREETING  # the form in which every broker says so
        correlation_id, message = decode_response(expected.api, version, frame)
        if correlation_id != expected.correlation_id:
            raise ProtocolError(f"response {correlation_id} came where {expected.correlation_id} was due")
        return message


def _refuses_version(frame: memoryview) -> bool:
    if len(frame) < _ERROR_CODE_AT + 2:
        return False
    (error_code,) = unpack_from(">h", frame, _ERROR_CODE_AT)
    return bool(error_code == ErrorCode.UNSUPPORTED_VERSION)
