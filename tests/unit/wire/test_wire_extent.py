"""How much of what was fetched is of use, found without opening a batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.protocol.records import Record, build_batch
from penstock.types import Offset
from penstock.wire.range_fetcher import extent_of, next_fetch_bytes

FAR = Offset(10**9)


def batch(base: int, count: int) -> bytes:
    return build_batch([Record(Offset(0), 1, None, b"v")] * count, base_offset=base)


def test_whole_batches_are_counted_and_a_cut_one_is_left_out() -> None:
    whole = batch(5, 3) + batch(8, 2)

    for cut in (b"", batch(10, 4)[:-1], batch(10, 4)[:20]):
        assert extent_of(memoryview(whole + cut), FAR) == (len(whole), 5, 10)


def test_batches_beyond_the_end_are_left_out() -> None:
    first = batch(0, 5)

    assert extent_of(memoryview(first + batch(5, 5)), Offset(5)) == (len(first), 0, 5)
    assert extent_of(memoryview(first + batch(5, 5)), Offset(6)) == (len(first) * 2, 0, 10)


def test_a_gap_that_spans_the_end_still_brings_the_reader_past_it() -> None:
    after_the_gap = batch(100, 1)

    assert extent_of(memoryview(after_the_gap), Offset(50)) == (len(after_the_gap), 100, 101)


def test_less_than_a_batch_is_nothing() -> None:
    assert extent_of(memoryview(b""), FAR) is None
    assert extent_of(memoryview(batch(0, 3)[:-1]), FAR) is None


@pytest.mark.parametrize(
    ("position", "value"),
    [(8, b"\xff\xff\xff\xff"), (8, b"\x00\x00\x00\x00"), (16, b"\x01"), (23, b"\xff\xff\xff\xff")],
    ids=["negative length", "no length", "old format", "negative delta"],
)
def test_what_is_no_batch_is_corrupt(position: int, value: bytes) -> None:
    data = bytearray(batch(0, 3) + batch(3, 3))
    start = len(data) // 2 + position
    data[start : start + len(value)] = value

    with pytest.raises(CorruptData):
        extent_of(memoryview(data), FAR)


def test_batches_that_go_back_are_corrupt() -> None:
    with pytest.raises(CorruptData, match="offset 1 follows offset 2"):
        extent_of(memoryview(batch(0, 3) + batch(1, 3)), FAR)


@given(st.binary(max_size=300))
def test_any_bytes_have_an_extent_within_them_or_are_refused(data: bytes) -> None:
    try:
        extent = extent_of(memoryview(data), FAR)
    except CorruptData:
        return
    assert extent is None or 0 < extent.bytes <= len(data)


def test_about_as_much_is_asked_for_as_is_left() -> None:
    assert next_fetch_bytes(10_000, 100.0, 8 << 20) == 1_100_000
    assert next_fetch_bytes(10, 100.0, 8 << 20) == 65_536
    assert next_fetch_bytes(10**9, 100.0, 8 << 20) == 8 << 20
