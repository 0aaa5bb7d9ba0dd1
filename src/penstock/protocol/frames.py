"""Request and response frames: the size prefix, the headers, and the body.

A frame on the wire is four bytes of size, a header and a body. A received `frame` here is the part after
the size; an encoded one includes the size. The header version depends on whether the version of the API is
flexible:

    request   version 1: key, version, correlation id, client id     version 2: and a tag section
    response  version 0: correlation id                              version 1: and a tag section

Two exceptions let any broker and client exchange a first request: the client id has a two-byte length even
in header version 2, and the ApiVersions response has header version 0.

Bytes after the body of a request are ignored, as in Kafka.
"""

from collections.abc import Callable
from struct import Struct as Layout
from struct import error as StructError
from typing import Any, Final

import msgspec

from penstock.errors import ProtocolError
from penstock.protocol.apis import APIS, NOT_SERVED
from penstock.protocol.compiler import Encoder, decoder, encoder
from penstock.protocol.decoders import skip_tags
from penstock.protocol.messages.api_versions import API_VERSIONS
from penstock.protocol.schema import Api, Request, Response
from penstock.types import Buffer

NULL_LENGTH: Final = -1
_REQUEST_HEADER: Final = Layout(">hhih")
_SIZED_REQUEST_HEADER: Final = Layout(">ihhih")
_CORRELATION_ID: Final = Layout(">i")
_SIZED_CORRELATION_ID: Final = Layout(">ii")
_SIZED_CORRELATION_ID_AND_TAGS: Final = Layout(">iix")
_SIZE_BYTES: Final = 4

_NO_VERSIONS: Final = range(0)
_FLEXIBLE_VERSIONS: Final = {
    api.key: range(max(api.flexible, api.versions[0]), api.versions[1] + 1)
    for api in (*APIS.values(), *NOT_SERVED)
    if api.flexible is not None
}

_response_encoders: dict[tuple[type, int], tuple[Encoder[Any], Callable[[int, int], bytes], int]] = {}


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def parse_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """Parse the header of a request; returns it and the position of the body.

    For an unknown key or version it is unknown whether a tag section follows: the position is then that
    after the client id.
    """
    try:
        api_key, version, correlation_id, length = _REQUEST_HEADER.unpack_from(frame)
        position = _REQUEST_HEADER.size
        client_id = None
        if length >= 0:
            end = position + length
            client_id = bytes(frame[position:end]).decode()
            position = end
        elif length != NULL_LENGTH:
            raise ProtocolError(f"the client id has length {length}")
        if version in _FLEXIBLE_VERSIONS.get(api_key, _NO_VERSIONS):
            # Nearly every client sends an empty tag section, which is one zero byte.
            position += 1
            if tags := frame[position - 1]:
                position = skip_tags(frame, position, tags)
    except (StructError, IndexError, UnicodeDecodeError) as problem:
        raise ProtocolError(f"the request header is broken: {problem}") from problem
    if position > len(frame):
        raise ProtocolError("the request ends within its header")
    return RequestHeader(api_key, version, correlation_id, client_id), position


def decode_request(
    api: Api[Request, Response], version: int, frame: Buffer, position: int | None = None
) -> Request:
    """Decode the body of a request. `position` is its start, if the caller has parsed the header."""
    if not api.has_version(version):
        raise ProtocolError(f"{api.name} has no version {version} here")
    if position is None:
        _, position = parse_request_header(frame)
    message, _ = decoder(api.request, version, api.is_flexible(version))(frame, position)
    return message


def encode_response(
    api: Api[Request, Response], version: int, correlation_id: int, message: Response
) -> list[Buffer]:
    """Encode a response frame, as buffers to be written in order."""
    found = _response_encoders.get((api.response, version)) or _response_encoder(api, version)
    encode, pack_header, header_size = found
    buffers = encode(message)
    size = header_size + (sum(map(len, buffers)) if len(buffers) > 1 else len(buffers[0]))
    # Only the first buffer is copied; records in later buffers stay views.
    buffers[0] = b"".join((pack_header(size, correlation_id), buffers[0]))
    return buffers


def _response_encoder(
    api: Api[Request, Response], version: int
) -> tuple[Encoder[Response], Callable[[int, int], bytes], int]:
    assert api.has_version(version), f"{api.name} has no version {version}"
    flexible = api.is_flexible(version)
    has_tags = flexible and api.key != API_VERSIONS.key
    layout = _SIZED_CORRELATION_ID_AND_TAGS if has_tags else _SIZED_CORRELATION_ID
    found = encoder(api.response, version, flexible), layout.pack, layout.size - _SIZE_BYTES
    _response_encoders[api.response, version] = found
    return found


def encode_request(
    api: Api[Request, Response],
    version: int,
    correlation_id: int,
    client_id: str | None,
    message: Request,
) -> list[Buffer]:
    """Encode a request frame, as buffers to be written in order."""
    flexible = api.is_flexible(version)
    buffers = encoder(api.request, version, flexible)(message)
    name = b"" if client_id is None else client_id.encode()
    name_length = NULL_LENGTH if client_id is None else len(name)
    tags = b"\x00" if flexible else b""
    size = _REQUEST_HEADER.size + len(name) + len(tags) + sum(map(len, buffers))
    header = _SIZED_REQUEST_HEADER.pack(size, api.key, version, correlation_id, name_length)
    buffers[0] = b"".join((header, name, tags, buffers[0]))
    return buffers


def decode_response(api: Api[Request, Response], version: int, frame: Buffer) -> tuple[int, Response]:
    """Decode a response; returns the correlation id and the body."""
    flexible = api.is_flexible(version)
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        position = _CORRELATION_ID.size
        if flexible and api.key != API_VERSIONS.key:
            position = skip_tags(frame, position + 1, frame[position])
    except (StructError, IndexError) as problem:
        raise ProtocolError(f"the response header is broken: {problem}") from problem
    message, _ = decoder(api.response, version, flexible)(frame, position)
    return correlation_id, message
