"""The client side of one connection to a broker, without a socket.

`version_request` and `ask` return the buffers to send. The caller receives bytes into `receive_buffer()`,
and `bytes_received` returns the reply that they complete. A shell (`blocking_client.py`, `async_client.py`)
moves the bytes.

Rule 1: only ApiVersions is sent before the broker has returned its versions; after that every request uses
        the newest version that both sides support.
Rule 2: a broker replies in the order of the requests. A reply with another correlation id than the oldest
        open request means that the stream cannot be trusted any more.
Rule 3: the announced size of a response is checked before memory is allocated for it.
Rule 4: a response is received into one buffer of its size, and records are views of that buffer: the kernel
        makes the only copy. The buffer lives as long as the last view of it.
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
"""The limit of a broker on one request, and far more than any response needs."""
_RESPONSE_BYTES_MIN: Final = 4
_ERROR_CODE_AT: Final = 4
_OLDEST_GREETING: Final = 0


class VersionMismatch(Exception):
    """Raised when no version of an API is common to the broker and this client."""


class _OpenRequest(NamedTuple):
    """A request without a response."""

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

    # Versions

    def version_request(self) -> list[Buffer]:
        """Encode ApiVersions, which must be the first request."""
        message = ApiVersionsRequest(SOFTWARE_NAME, __version__)
        return self._encode_request(API_VERSIONS, self._greeting_version, message)

    def accept_versions(self, answer: ApiVersionsResponse) -> bool:
        """Handle the ApiVersions response. False: send the request again, in a version that the broker
        supports."""
        offered = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
        if answer.error_code == ErrorCode.NONE:
            self._broker_versions = offered
            return True
        if answer.error_code != ErrorCode.UNSUPPORTED_VERSION or self._greeting_version == _OLDEST_GREETING:
            raise ProtocolError(
                f"the broker rejected the request for its versions (error {answer.error_code})"
            )
        _, newest = offered.get(API_VERSIONS.key, (_OLDEST_GREETING, _OLDEST_GREETING))
        # Always older than the rejected version, or both sides could repeat this for ever.
        self._greeting_version = max(min(newest, self._greeting_version - 1), _OLDEST_GREETING)
        return False

    def version_of(self, api: Api[Request, Response], *, newest: int = VERSION_MAX) -> int:
        """Newest common version, at most `newest`."""
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

    # Requests and responses

    def ask(
        self, api: Api[Request, Response], message: Request, *, version: int | None = None
    ) -> list[Buffer]:
        """Encode a request. `bytes_received` returns its response after those of all earlier requests."""
        return self._encode_request(api, self.version_of(api) if version is None else version, message)

    def receive_buffer(self) -> memoryview:
        """Buffer for the next bytes: never empty, and never larger than the rest of the current frame."""
        return self._buffer[self._filled :]

    def bytes_received(self, count: int) -> Struct | None:
        """Response completed by `count` more bytes, or None. ProtocolError if the bytes cannot be a
        response."""
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
        # The system commits memory of a large buffer only as it is written.
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
            version = _OLDEST_GREETING  # every broker rejects a version in this format
        correlation_id, message = decode_response(expected.api, version, frame)
        if correlation_id != expected.correlation_id:
            raise ProtocolError(f"response {correlation_id} came where {expected.correlation_id} was due")
        return message


def _refuses_version(frame: memoryview) -> bool:
    if len(frame) < _ERROR_CODE_AT + 2:
        return False
    (error_code,) = unpack_from(">h", frame, _ERROR_CODE_AT)
    return bool(error_code == ErrorCode.UNSUPPORTED_VERSION)
