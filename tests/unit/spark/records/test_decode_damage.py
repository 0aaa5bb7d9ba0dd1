"""Batches that contradict themselves although their checksum holds: every one of them is refused.

Each byte of some small batches is changed in every telling way, one at a time, and the answer compared
with that of protocol/records.py. What takes two changes at once is written down case by case.
"""

from collections.abc import Iterator, Sequence

import pytest

from penstock.errors import CorruptData
from penstock.protocol.batches import HEADER_BYTES
from tests.unit.spark.records.decode_cases import (
    SMALL_LANES,
    Made,
    Stamp,
    check_against_house,
    made_batch,
    pieces_of,
    rows_in,
    rows_of_house,
    sealed,
    varint,
)

TELLING_BYTES = (0x00, 0x01, 0x02, 0x7F, 0x80, 0xFE, 0xFF)
CHECKED_FROM = 12
"""Base offset and length in front of it are not covered by the checksum."""
TEXT = b"0123456789" * 8

SEEDS = {
    "plain": made_batch([Made(0, 5, b"key", b"value"), Made(1, -70, None, None), Made(3, 9000, b"", b"")]),
    "headers": made_batch([Made(0, headers=((b"a", b"bc"), (b"", None))), Made(1, headers=((b"k", b""),))]),
    "longer": made_batch([Made(index, 64, b"k", TEXT[index:]) for index in range(3)]),
    "padded": made_batch([Made(index, 2**40, b"k", b"v", padding=4) for index in range(3)]),
}


def damaged(batch: bytes) -> Iterator[bytes]:
    for at in range(CHECKED_FROM, len(batch)):
        if batch[at] in TEXT:
            continue  # what a value says does not matter
        changes = {batch[at] ^ 1 << bit for bit in range(8)} | {*TELLING_BYTES, (batch[at] + 2) & 0xFF}
        for byte in sorted(changes - {batch[at]}):
            yield sealed(batch[:at] + bytes([byte]) + batch[at + 1 :])
    for at in range(HEADER_BYTES, len(batch), 3):
        yield resized(batch[:at] + batch[at + 1 :])
        yield resized(batch[:at] + batch[at : at + 1] + batch[at:])


def resized(batch: bytes) -> bytes:
    return sealed(batch[:8] + (len(batch) - 12).to_bytes(4, "big") + batch[12:])


@pytest.mark.parametrize("in_lanes", [False, True])
@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
def test_every_byte_counts(seed: bytes, in_lanes: bool) -> None:
    for batch in damaged(seed):
        check_against_house(batch, in_lanes)


def numbers_of_records(count: int) -> bytes:
    """A batch of two records that claims to have another number of them."""
    batch = made_batch([Made(0), Made(1)], Stamp(offsets_behind=5))
    return sealed(batch[:57] + count.to_bytes(4, "big") + batch[61:])


def lengths(*extra: int) -> bytes:
    """Three records whose lengths are wrong by as much, in a batch that is as long as they are."""
    parts = []
    for index, wrong in enumerate(extra):
        body = b"\0" + varint(0) + varint(index) + varint(-1) + varint(3) + b"abc" + varint(0)
        parts.append(varint(len(body) + wrong) + body)
    batch = made_batch([Made(0), Made(1), Made(2)])
    return resized(batch[:HEADER_BYTES] + b"".join(parts))


TWICE_WRONG: dict[str, bytes] = {
    "a byte behind the fields": made_batch([Made(0, behind=b"\0"), Made(1)]),
    "bytes behind the headers": made_batch([Made(0, headers=((b"a", b"b"),), behind=b"\0\0")]),
    "equal offsets": made_batch([Made(0), Made(0), Made(1)]),
    "descending offsets": made_batch([Made(1), Made(0), Made(2)]),
    "a negative offset delta": made_batch([Made(-1), Made(1)]),
    "an offset beyond the last": made_batch([Made(0), Made(5)], Stamp(offsets_behind=-4)),
    "fewer records than there are": numbers_of_records(1),
    "more records than there are": numbers_of_records(3),
    "no records but bytes": numbers_of_records(0),
    "a record too long by one": lengths(1, -1, 0),
    "a record too short by one": lengths(-1, 1, 0),
    "a last record too long": lengths(0, 0, 4),
    "a negative length": lengths(-20, 0, 0),
    "a timestamp before all timestamps": made_batch([Made(0, -(2**62) - 2)], Stamp(0, -(2**62))),
    "a negative base offset": made_batch([Made(0)], Stamp(-1)),
    "no room for the next offset": made_batch([Made(0), Made(1)], Stamp(2**63 - 2)),
}


@pytest.mark.parametrize("in_lanes", [False, True])
@pytest.mark.parametrize("batch", TWICE_WRONG.values(), ids=TWICE_WRONG)
def test_a_batch_that_contradicts_itself_is_refused(batch: bytes, in_lanes: bool) -> None:
    check_against_house(batch, in_lanes)
    with pytest.raises(CorruptData):
        pieces_of(batch)


def varints_of(timestamp: bytes, offset: bytes) -> bytes:
    body = b"\0" + timestamp + offset + varint(-1) + varint(-1) + varint(0)
    batch = made_batch([Made(0)], Stamp(0, 0))
    return resized(batch[:HEADER_BYTES] + varint(len(body)) + body)


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [
        (b"\xff" * 9 + b"\x02", b"\0"),
        (b"\x80" * 9 + b"\x80\0", b"\0"),
        (b"\0", b"\x80" * 4 + b"\x10"),
        (b"\0", b"\x80" * 5 + b"\0"),
    ],
)
def test_a_varint_of_too_many_bits_or_bytes_is_refused(timestamp: bytes, offset: bytes) -> None:
    batch = varints_of(timestamp, offset)
    check_against_house(batch, in_lanes=False)
    with pytest.raises(CorruptData):
        pieces_of(batch)


def test_the_longest_varints_are_read() -> None:
    batch = varints_of(b"\xff" * 9 + b"\x01", b"\x80" * 4 + b"\0")
    assert [row[:2] for row in rows_in(pieces_of(batch))] == [(0, -(2**63))]
    assert rows_in(pieces_of(batch)) == rows_of_house(batch)


def several(batches: Sequence[bytes]) -> bytes:
    return b"".join((10 * index).to_bytes(8, "big") + batch[8:] for index, batch in enumerate(batches))


@pytest.mark.parametrize(
    "name", [name for name in TWICE_WRONG if "ase offset" not in name and "next" not in name]
)
def test_one_wrong_batch_among_many_is_found(name: str) -> None:
    sound = made_batch([Made(index, value=TEXT) for index in range(10)])
    data = several([sound] * 20 + [TWICE_WRONG[name]] + [sound] * 20)
    check_against_house(data, in_lanes=False)
    with pytest.raises(CorruptData):
        pieces_of(data, lanes=SMALL_LANES)
