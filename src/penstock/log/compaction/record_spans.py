"""Positions of the records of a batch, and of their keys: all that compaction needs.

The reader in protocol/records.py makes an object for every record. This one makes six numbers, with varints
of one and two bytes decoded in place: a cleaning reads millions of records, and the time for one record
determines its speed.

Rule 1: a record that does not fit its batch, or a field that does not fit its record, is CorruptData.
"""

from collections.abc import Iterator

from penstock.errors import CorruptData

RecordSpan = tuple[int, int, int, int, bool, int]
"""Start of a record, its offset delta, start and end of its key (-1 and -1 without a key), whether it is a
tombstone, and its end. A bare tuple, because millions are made."""

NO_KEY = -1
_NULL = 0x01
"""Varint of -1, the length of a null field."""


def spans(payload: bytes, record_count: int, last_offset_delta: int) -> Iterator[RecordSpan]:
    """Yield the records. Raises CorruptData at the first invalid one, after yielding those before it."""
    at, delta_before = 0, -1
    try:
        for _ in range(record_count):
            start = at
            signs = first = payload[at]
            if first < 0x80:
                length, at = first >> 1, at + 1
            elif (second := payload[at + 1]) < 0x80:
                length, at = (first & 0x7F | second << 7) >> 1, at + 2
            else:
                length, at = zigzag_varint(payload, at)
            end = at + length
            at += 1  # attributes, unused in this record format
            while payload[at] >= 0x80:  # the timestamp delta
                at += 1
            at += 1
            first = payload[at]
            signs |= first
            if first < 0x80:
                delta, at = first >> 1, at + 1
            elif (second := payload[at + 1]) < 0x80:
                delta, at = (first & 0x7F | second << 7) >> 1, at + 2
            else:
                delta, at = zigzag_varint(payload, at)
            first = payload[at]
            if first == _NULL:
                key_start = key_end = NO_KEY
                at += 1
            else:
                signs |= first
                if first < 0x80:
                    key_start, key_end = at + 1, at + 1 + (first >> 1)
                else:
                    length, key_start = zigzag_varint(payload, at)
                    key_end = key_start + length
                at = key_end
            # The lowest bit of a zigzag varint is its sign: none of these values may be negative.
            if signs & 1 or at >= end or not delta_before < delta <= last_offset_delta:
                raise CorruptData(f"the record at byte {start} of a batch makes no sense")
            delta_before = delta
            yield start, delta, key_start, key_end, payload[at] == _NULL, end
            at = end
    except IndexError:
        raise CorruptData("a batch ends inside a record") from None
    if at != len(payload):
        raise CorruptData(f"a batch of {len(payload)} bytes has records of {at}")


def zigzag_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a zigzag varint of any length. Returns the value and its end."""
    raw = shift = 0
    while (byte := data[at]) >= 0x80:
        raw |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise CorruptData("a varint is longer than ten bytes")
    raw |= byte << shift
    return (raw >> 1) ^ -(raw & 1), at + 1


def zigzag_varint_bytes(value: int) -> bytes:
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while raw > 0x7F:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)


def timestamp_delta(payload: bytes, start: int) -> tuple[int, int]:
    """Timestamp delta of the record at `start`, and the position behind it."""
    _, at = zigzag_varint(payload, start)
    return zigzag_varint(payload, at + 1)


def with_timestamp_delta(payload: bytes, start: int, end: int, delta: int) -> bytes:
    """Copy a record with another timestamp delta."""
    _, at = zigzag_varint(payload, start)
    _, rest_at = zigzag_varint(payload, at + 1)
    encoded = zigzag_varint_bytes(delta)
    body_bytes = 1 + len(encoded) + end - rest_at
    return b"".join((zigzag_varint_bytes(body_bytes), payload[at : at + 1], encoded, payload[rest_at:end]))
