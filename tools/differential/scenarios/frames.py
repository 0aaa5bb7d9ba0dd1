"""Frames and headers, valid and malformed, and ApiVersions, the first request of every connection."""

import struct

from penstock.protocol.messages.api_versions import API_VERSIONS, ApiVersionsRequest
from penstock.protocol.messages.metadata import METADATA
from tools.differential.scenarios.asking import every_version
from tools.differential.steps import FrameStep, RequestStep, Scenario

_CLIENT = struct.pack(">h", 1) + b"c"
_UNKNOWN_KEY = 999
_REMOVED_KEY = 4
_CONTROLLER_KEY = 52
_PRODUCE_KEY = 0
_FRAME_BYTES_MAX = 104_857_600


def _frame(key: int, version: int, body: bytes, client: bytes = _CLIENT) -> bytes:
    inner = struct.pack(">hhi", key, version, 7) + client + body
    return struct.pack(">i", len(inner)) + inner


def _size(size: int) -> bytes:
    return struct.pack(">i", size)


def _versions(name: str, version: int, body: bytes, reads: int = 0) -> FrameStep:
    return FrameStep(name, _frame(API_VERSIONS.key, version, body), (API_VERSIONS, reads))


def _metadata(name: str, version: int, body: bytes, client: bytes = _CLIENT) -> FrameStep:
    return FrameStep(name, _frame(METADATA.key, version, body, client), (METADATA, version))


def _other(name: str, key: int, version: int, body: bytes) -> FrameStep:
    return FrameStep(name, _frame(key, version, body), (METADATA, 0))


def _raw(name: str, frame: bytes) -> FrameStep:
    return FrameStep(name, frame, (METADATA, 0))


_NO_TOPICS = _size(0)

SCENARIOS = (
    Scenario(
        "api-versions",
        (
            *(
                RequestStep(f"v{version}", API_VERSIONS, version, ApiVersionsRequest("penstock", "1.0"))
                for version in every_version(API_VERSIONS)
            ),
            RequestStep("bad software name", API_VERSIONS, 3, ApiVersionsRequest("-penstock", "1.0")),
            RequestStep("bad software version", API_VERSIONS, 3, ApiVersionsRequest("penstock", "1.0-")),
            RequestStep("empty software name", API_VERSIONS, 3, ApiVersionsRequest("", "1.0")),
            _versions("v5", 5, b"\0"),
            _versions("v99", 99, b"\0"),
            _versions("v99 with more behind", 99, b"\0zzzz"),
            _versions("v99 without a tag section", 99, b""),
            _versions("v-1", -1, b""),
            _versions("v3 with an empty body", 3, b"\0", reads=3),
            _versions("v0 with bytes behind", 0, b"zzzz"),
        ),
    ),
    Scenario(
        "frames",
        (
            _other("unknown key", _UNKNOWN_KEY, 0, b""),
            _other("removed key", _REMOVED_KEY, 0, bytes(20)),
            _other("controller key", _CONTROLLER_KEY, 0, bytes(20)),
            _other("unknown version", METADATA.key, 99, b""),
            _other("produce v2", _PRODUCE_KEY, 2, bytes(10)),
            _other("produce v14", _PRODUCE_KEY, 14, bytes(20)),
            _metadata("body too short", 1, b"\0\0"),
            _metadata("bytes behind the body", 1, _NO_TOPICS + b"behind"),
            _metadata("bytes behind a flexible body", 9, b"\0\1\0\0\0\0behind"),
            _metadata("array longer than the frame", 1, _size(2**31 - 1)),
            _metadata("negative array length", 1, _size(-2)),
            _metadata("negative string length", 1, _size(1) + b"\xff\xfe"),
            _metadata("string that is not UTF-8", 1, _size(1) + b"\0\1\xff"),
            _metadata("a boolean of two", 4, _NO_TOPICS + b"\2"),
            _metadata("an unknown tag", 9, b"\0\1\0\0\0\1\x63\2ab"),
            _metadata("null client id", 1, _NO_TOPICS, client=b"\xff\xff"),
            _metadata("client id of length -2", 1, _NO_TOPICS, client=b"\xff\xfe"),
            _raw("size -1", _size(-1)),
            _raw("size 0", _size(0)),
            _raw("size 4, half a header", _size(4) + b"\0\3\0\0"),
            _raw("size one above the maximum", _size(_FRAME_BYTES_MAX + 1)),
            _raw("size of the maximum", _size(_FRAME_BYTES_MAX)),
        ),
    ),
)
