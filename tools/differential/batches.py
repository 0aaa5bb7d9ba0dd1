"""Batches for scenarios, honest and lying. The same call gives the same bytes in every run."""

import struct

from penstock.protocol.batches import HEADER_BYTES, LOG_OVERHEAD, seal_in_place
from penstock.protocol.compression import Codec
from penstock.protocol.records import Record, build_batch
from penstock.types import Offset

BASE_MS = 1_700_000_000_000
"""When the records of scenarios were made: long ago, so that no clock has a part in the answers."""

FUTURE_MS = 4_102_444_800_000
"""Beyond what any broker accepts."""

_FIELDS = {
    "base_offset": (0, ">q"),
    "batch_length": (8, ">i"),
    "leader_epoch": (12, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}
_CRC_AT = 17
_SMALL_MAX = 63
"""The largest number whose varint is one byte."""


def records(
    *values: bytes, keys: tuple[bytes | None, ...] = (), times_ms: tuple[int, ...] = ()
) -> list[Record]:
    """Records with keys k0, k1 ... and times one millisecond apart, unless said otherwise."""
    return [
        Record(
            Offset(index),
            times_ms[index] if times_ms else BASE_MS + index,
            keys[index] if keys else b"k%d" % index,
            value,
            (),
        )
        for index, value in enumerate(values)
    ]


def batch(*values: bytes, codec: Codec = Codec.NONE, **lies: int) -> bytes:
    """A batch of these values; each lie overwrites a header field, and the checksum is made good."""
    return altered(build_batch(records(*(values or (b"v0",))), codec=codec), **lies)


def timed(*times_ms: int, codec: Codec = Codec.NONE, **lies: int) -> bytes:
    values = tuple(b"v%d" % index for index in range(len(times_ms)))
    return altered(build_batch(records(*values, times_ms=times_ms), codec=codec), **lies)


def keyed(*keys: bytes | None, codec: Codec = Codec.NONE, times_ms: tuple[int, ...] = ()) -> bytes:
    values = tuple(b"v%d" % index for index in range(len(keys)))
    return build_batch(records(*values, keys=keys, times_ms=times_ms), codec=codec)


def sequenced(producer_id: int, epoch: int, sequence: int, *values: bytes) -> bytes:
    return batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def altered(original: bytes, **lies: int) -> bytes:
    changed = bytearray(original)
    for name, value in lies.items():
        position, layout = _FIELDS[name]
        struct.pack_into(layout, changed, position, value)
    seal_in_place(changed)
    return bytes(changed)


def with_bad_crc(original: bytes) -> bytes:
    changed = bytearray(original)
    changed[_CRC_AT] ^= 0xFF
    return bytes(changed)


def with_payload(payload: bytes, **lies: int) -> bytes:
    """A header for one record before a payload that need not be one."""
    header = batch()[:HEADER_BYTES]
    return altered(header + payload, batch_length=HEADER_BYTES - LOG_OVERHEAD + len(payload), **lies)


def record_bytes(*, offset_delta: int = 0, header_count: int = 0, rest: bytes = b"") -> bytes:
    """A record with key k and value v as it stands in a payload."""
    body = bytes([0, 0, _zigzag(offset_delta), _zigzag(1)]) + b"k" + bytes([_zigzag(1)]) + b"v"
    body += bytes([_zigzag(header_count)]) + rest
    return bytes([_zigzag(len(body))]) + body


def _zigzag(number: int) -> int:
    assert abs(number) <= _SMALL_MAX, "written for one-byte varints"
    return number * 2 if number >= 0 else -number * 2 - 1
