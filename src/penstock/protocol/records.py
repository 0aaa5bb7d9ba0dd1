"""The records of a batch: reading them one by one, and building new batches.

Reading has two steps. `_frames` iterates over the records and reads only what every caller needs (offset,
timestamp, position of the key); `_body` reads the rest for callers that need whole records.

Rule 1: nothing is read before the header is consistent and the checksum matches, and compressed data is
        expanded only up to a limit.
Rule 2: every malformed byte is CorruptData, whichever function finds it. Reading is lazy: records before
        the damage are returned first, so accepting a batch requires reading all of it.
Rule 3: integers inside a batch are zigzag varints, unlike those of the requests around it.

Not here: the header and its checks (`batches.py`), codecs (`compression.py`).
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypedDict, Unpack

from penstock.errors import CorruptData
from penstock.limits import DECOMPRESSED_BYTES_MAX
from penstock.protocol.batches import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    check_client_shape,
    check_shape,
    crc_matches,
    parse_only_header,
    seal_in_place,
)
from penstock.protocol.compression import Codec, compress, decompress
from penstock.types import NO_EPOCH, NO_PRODUCER, Buffer, Offset

Headers = tuple[tuple[str, bytes | None], ...]

_VARINT_BYTES_MAX = 5
_VARLONG_BYTES_MAX = 10
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_NULL_LENGTH = -1
_HEADER_BYTES_MIN = 2
"""Minimum size of a record header: the lengths of its key and its value."""


class Record(NamedTuple):
    offset: Offset
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


_Frame = tuple[Offset, int, int, int]
"""One record, read up to its key: offset, timestamp delta, position of the key's length, and end of the
record. A bare tuple, because there are millions."""


class BatchOptions(TypedDict, total=False):
    """Options of `build_batch`. The defaults are those of an ordinary producer."""

    codec: int
    level: int | None
    base_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    log_append_time_ms: int | None
    """For topics with LogAppendTime: replaces the largest timestamp and sets the attribute bit."""
    transactional: bool
    control: bool


def iterate_records(batch: Buffer, *, limit_bytes: int, strict: bool = False) -> Iterator[Record]:
    """Iterate over the records in offset order.

    `strict` is for batches from a client: offsets ascend by one from the first, and the header must pass
    `check_client_shape`. Otherwise the gaps that compaction leaves are accepted.
    """
    header, payload = _open(batch, limit_bytes=limit_bytes, strict=strict)
    return _records(header, payload, strict=strict)


def keys_missing(batch: Buffer, *, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> list[int]:
    """Indices of a client's records without a key, for compacted topics.

    It reads every record to its end, because the cleaner must be able to read every record that a compacted
    topic accepted.
    """
    header, payload = _open(batch, limit_bytes=limit_bytes, strict=True)
    missing = []
    for index, (_, timestamp_delta, key_at, end) in enumerate(_frames(header, payload, strict=True)):
        _timestamp(header, timestamp_delta)
        key, _, _ = _body(payload, key_at, end)
        if key is None:
            missing.append(index)
    return missing


def timed_records(batch: Buffer, *, limit_bytes: int) -> tuple[int, Iterator[tuple[Offset, int]]]:
    """Expanded size of the records, and the offset and timestamp of each."""
    header, payload = _open(batch, limit_bytes=limit_bytes, strict=False)
    return len(payload), _times(header, payload)


def build_batch(records: Iterable[Record], **options: Unpack[BatchOptions]) -> bytes:
    """Build a batch of these records. Offsets count from the base offset; `Record.offset` is ignored."""
    numbered = list(records)
    assert numbered, "a batch holds at least one record"
    codec = Codec(options.get("codec", Codec.NONE))
    base_timestamp = numbered[0].timestamp
    encoded = b"".join(
        _encode_record(record, timestamp_delta=record.timestamp - base_timestamp, offset_delta=index)
        for index, record in enumerate(numbered)
    )
    payload = compress(codec, encoded, options.get("level"))
    append_time_ms = options.get("log_append_time_ms")
    newest_ms = max(record.timestamp for record in numbered) if append_time_ms is None else append_time_ms
    fields = (
        options.get("base_offset", 0),
        HEADER_BYTES - LOG_OVERHEAD + len(payload),
        options.get("leader_epoch", NO_EPOCH),
        MAGIC,
        0,  # the checksum, which `_assemble` sets
        _attributes(codec, options),
        len(numbered) - 1,
        base_timestamp,
        newest_ms,
        options.get("producer_id", NO_PRODUCER),
        options.get("producer_epoch", -1),
        options.get("base_sequence", NO_SEQUENCE),
        len(numbered),
    )
    return _assemble(fields, payload)


def recompress(
    batch: Buffer, codec: int, level: int | None = None, *, limit_bytes: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """Recompress a batch with another codec, without parsing its records.

    As in Kafka, a batch that already has the codec is unchanged whatever its level; so is a control batch,
    which is never compressed.
    """
    header = parse_only_header(batch)
    if header.codec == codec or header.is_control:
        return bytes(batch)
    header, expanded = _open(batch, limit_bytes=limit_bytes, strict=False)
    payload = compress(Codec(codec), expanded, level)
    rewritten = header._replace(
        batch_length=HEADER_BYTES - LOG_OVERHEAD + len(payload),
        attributes=header.attributes & ~CODEC_MASK | codec,
    )
    return _assemble(rewritten, payload)


def _open(batch: Buffer, *, limit_bytes: int, strict: bool) -> tuple[BatchHeader, bytes]:
    header = parse_only_header(batch)
    if strict:
        check_client_shape(header)
    else:
        check_shape(header)
    if not crc_matches(batch, header):
        raise CorruptData("the batch does not match its checksum")
    blob = memoryview(batch)[HEADER_BYTES:]
    if header.record_count == 0 and not blob:
        return header, b""  # emptied by compaction; no codec writes an empty frame
    return header, decompress(Codec(header.codec), blob, limit_bytes=limit_bytes)


def _records(header: BatchHeader, payload: bytes, *, strict: bool) -> Iterator[Record]:
    for offset, timestamp_delta, key_at, end in _frames(header, payload, strict=strict):
        key, value, headers = _body(payload, key_at, end)
        yield Record(offset, _timestamp(header, timestamp_delta), key, value, headers)


def _times(header: BatchHeader, payload: bytes) -> Iterator[tuple[Offset, int]]:
    for offset, timestamp_delta, _, _ in _frames(header, payload, strict=False):
        yield offset, _timestamp(header, timestamp_delta)


def _frames(header: BatchHeader, payload: bytes, *, strict: bool) -> Iterator[_Frame]:
    position = 0
    offset_delta_before = -1
    base_offset, last_offset_delta = header.base_offset, header.last_offset_delta
    for _ in range(header.record_count):
        length, start = _varint(payload, position)
        position = start + length
        if length < 0 or position > len(payload):
            raise CorruptData(f"a record of {length} bytes does not fit its batch")
        # The byte between is the record's attributes, which are unused so far.
        timestamp_delta, at = _varint(payload, start + 1, bytes_max=_VARLONG_BYTES_MAX)
        offset_delta, key_at = _varint(payload, at)
        if not offset_delta_before < offset_delta <= last_offset_delta:
            raise CorruptData(f"offset delta {offset_delta} follows {offset_delta_before}")
        if strict and offset_delta != offset_delta_before + 1:
            raise CorruptData(f"offset delta {offset_delta} leaves a gap after {offset_delta_before}")
        offset_delta_before = offset_delta
        yield Offset(base_offset + offset_delta), timestamp_delta, key_at, position
    if position != len(payload):
        raise CorruptData(f"{len(payload) - position} bytes follow the last record")


def _timestamp(header: BatchHeader, delta: int) -> int:
    if header.attributes & LOG_APPEND_TIME_BIT:
        return header.max_timestamp
    timestamp = header.base_timestamp + delta
    if not _INT64_MIN <= timestamp <= _INT64_MAX:
        raise CorruptData(f"timestamp delta {delta} leaves the range of timestamps")
    return timestamp


def _body(payload: bytes, at: int, end: int) -> tuple[bytes | None, bytes | None, Headers]:
    key, at = _nullable_bytes(payload, at, end)
    value, at = _nullable_bytes(payload, at, end)
    count, at = _varint(payload, at)
    headers: Headers = ()
    if count:
        headers, at = _headers(payload, at, end, count=count)
    if at != end:
        raise CorruptData(f"the fields of a record end {end - at} bytes before the record does")
    return key, value, headers


def _headers(payload: bytes, at: int, end: int, *, count: int) -> tuple[Headers, int]:
    if not 0 <= count <= (end - at) // _HEADER_BYTES_MIN:
        raise CorruptData(f"{count} headers do not fit their record")
    headers = []
    for _ in range(count):
        key, at = _nullable_bytes(payload, at, end)
        if key is None:
            raise CorruptData("a header has no key")
        value, at = _nullable_bytes(payload, at, end)
        # Some clients write header keys that are not UTF-8. Kafka's own readers replace what they cannot
        # decode; rejecting would let one producer stop every reader of the partition.
        headers.append((key.decode(errors="replace"), value))
    return tuple(headers), at


def _nullable_bytes(payload: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, start = _varint(payload, at)
    stop = start + length
    if length >= 0 and stop <= end:
        return payload[start:stop], stop
    if length == _NULL_LENGTH:
        return None, start
    raise CorruptData(f"a field of {length} bytes does not fit its record")


def _varint(data: bytes, at: int, bytes_max: int = _VARINT_BYTES_MAX) -> tuple[int, int]:
    """Read a varint; returns the value and its end. Most take one or two bytes, hence the early returns."""
    try:
        byte = data[at]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
        second = data[at + 1]
    except IndexError:
        raise CorruptData("the batch ends inside a record") from None
    if second < 0x80:
        raw = byte & 0x7F | second << 7
        return (raw >> 1) ^ -(raw & 1), at + 2
    return _long_varint(data, at, bytes_max)


def _long_varint(data: bytes, at: int, bytes_max: int) -> tuple[int, int]:
    bits = 32 if bytes_max == _VARINT_BYTES_MAX else 64
    raw = 0
    window = data[at : at + bytes_max]
    for index, byte in enumerate(window):
        raw |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if raw >> bits:
                raise CorruptData(f"a varint needs more than {bits} bits")
            return (raw >> 1) ^ -(raw & 1), at + index + 1
    if len(window) < bytes_max:
        raise CorruptData("the batch ends inside a record")
    raise CorruptData(f"a varint is longer than {bytes_max} bytes")


def _assemble(fields: tuple[int, ...], payload: bytes) -> bytes:
    batch = bytearray(HEADER.pack(*fields) + payload)
    seal_in_place(batch)
    return bytes(batch)


def _attributes(codec: Codec, options: BatchOptions) -> int:
    attributes = int(codec)
    if options.get("log_append_time_ms") is not None:
        attributes |= LOG_APPEND_TIME_BIT
    if options.get("transactional", False):
        attributes |= TRANSACTIONAL_BIT
    if options.get("control", False):
        attributes |= CONTROL_BIT
    return attributes


def _encode_record(record: Record, *, timestamp_delta: int, offset_delta: int) -> bytes:
    body = bytearray(1)  # attributes: none are defined
    _write_varint(body, timestamp_delta)
    _write_varint(body, offset_delta)
    _write_nullable_bytes(body, record.key)
    _write_nullable_bytes(body, record.value)
    _write_varint(body, len(record.headers))
    for key, value in record.headers:
        _write_nullable_bytes(body, key.encode())
        _write_nullable_bytes(body, value)
    framed = bytearray()
    _write_varint(framed, len(body))
    return bytes(framed + body)


def _write_nullable_bytes(target: bytearray, data: bytes | None) -> None:
    if data is None:
        _write_varint(target, _NULL_LENGTH)
    else:
        _write_varint(target, len(data))
        target += data


def _write_varint(target: bytearray, value: int) -> None:
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    while raw > 0x7F:
        target.append(raw & 0x7F | 0x80)
        raw >>= 7
    target.append(raw)
