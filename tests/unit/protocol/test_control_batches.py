"""Markers of transactions have the bytes that Kafka's have."""

import pytest

from penstock.errors import CorruptData
from penstock.protocol.batches import parse_header, stamp_in_place
from penstock.protocol.control_batches import EndTransactionMarker, marker_batch, read_marker
from penstock.protocol.records import Record, build_batch
from penstock.types import Offset, ProducerId

NOW_MS = 1_700_000_000_000
COMMIT = EndTransactionMarker(ProducerId(1000), 3, True, 7)
KAFKAS = bytes.fromhex(
    "0000000000000002000000420000000402ad320ccb0030000000000000018bcfe568000000018bcfe568000000000000"
    "0003e80003ffffffff000000012000000008000000010c00000000000700"
)


def control(key: bytes | None, value: bytes | None, producer: int = 1000) -> bytes:
    record = Record(Offset(0), NOW_MS, key, value)
    return build_batch([record], producer_id=producer, producer_epoch=3, transactional=True, control=True)


def test_a_marker_has_the_bytes_of_kafkas() -> None:
    batch = marker_batch(COMMIT, NOW_MS)
    stamp_in_place(batch, 2, 4)
    assert bytes(batch) == KAFKAS


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_is_read_as_it_was_written(is_commit: bool) -> None:
    marker = COMMIT._replace(is_commit=is_commit)
    batch = marker_batch(marker, NOW_MS)
    header = parse_header(batch)
    assert read_marker(batch, header) == marker
    assert (header.is_control, header.is_transactional, header.last_offset_delta) == (True, True, 0)


def test_a_later_version_may_have_more_fields() -> None:
    batch = control(bytes(3) + b"\x01", bytes(5) + b"\x09" + b"more")
    assert read_marker(batch, parse_header(batch)) == COMMIT._replace(coordinator_epoch=9)


@pytest.mark.parametrize(("kind", "producer"), [(2, 1000), (6, 1000), (1, -1)])
def test_other_control_batches_end_no_transaction(kind: int, producer: int) -> None:
    batch = control(bytes(3) + bytes([kind]), bytes(6), producer)
    assert read_marker(batch, parse_header(batch)) is None


@pytest.mark.parametrize(
    ("key", "value"), [(None, bytes(6)), (b"\0\0\0", bytes(6)), (b"\0\0\0\1", None), (b"\0\0\0\1", bytes(5))]
)
def test_a_control_record_that_is_too_short_is_damage(key: bytes | None, value: bytes | None) -> None:
    batch = control(key, value)
    with pytest.raises(CorruptData):
        read_marker(batch, parse_header(batch))
