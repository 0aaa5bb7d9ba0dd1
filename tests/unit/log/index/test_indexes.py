"""The two indexes of a segment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.log.index.offset_index import OffsetIndex
from penstock.log.index.time_index import TimeIndex
from penstock.types import Offset

BASE = Offset(1_000)
ENTRIES = st.lists(st.integers(1, 500), min_size=0, max_size=40, unique=True).map(sorted)


def offset_index(offsets: list[int]) -> OffsetIndex:
    index = OffsetIndex(BASE)
    for offset in offsets:
        index.add(Offset(BASE + offset), offset * 10)
    return index


def time_index(times: list[int]) -> TimeIndex:
    index = TimeIndex(BASE)
    for number, time in enumerate(times):
        index.add(time, Offset(BASE + number))
    return index


@given(ENTRIES, st.integers(0, 600))
def test_a_lookup_finds_the_last_entry_that_is_not_past_the_offset(offsets: list[int], wanted: int) -> None:
    expected = max((offset * 10 for offset in offsets if offset <= wanted), default=0)
    assert offset_index(offsets).position_at_or_before(Offset(BASE + wanted)) == expected
    assert offset_index(offsets).batch_start_at_or_before(wanted * 10) == expected


@given(ENTRIES)
def test_an_offset_index_comes_back_from_its_bytes(offsets: list[int]) -> None:
    index = offset_index(offsets)
    again = OffsetIndex.from_bytes(BASE, index.to_bytes(), 10_000)
    assert again.to_bytes() == index.to_bytes()
    assert len(again) == len(offsets)


def test_an_offset_index_has_kafkas_layout() -> None:
    index = OffsetIndex(BASE)
    index.add(Offset(BASE + 3), 4_200)
    assert index.to_bytes() == bytes.fromhex("00000003" + "00001068")


@given(ENTRIES, st.integers(0, 600))
def test_a_truncated_offset_index_forgets_what_reaches_the_offset(offsets: list[int], cut: int) -> None:
    index = offset_index(offsets)
    index.truncate(Offset(BASE + cut))
    assert index.to_bytes() == offset_index([offset for offset in offsets if offset < cut]).to_bytes()


@pytest.mark.parametrize(
    "data",
    [
        bytes(7),
        bytes(8),
        bytes.fromhex("00000005000000640000000500000074"),
        bytes.fromhex("00000005000000640000000600000064"),
        bytes.fromhex("0000000500002711"),
    ],
    ids=["inside an entry", "lost", "offset repeats", "position repeats", "past the log"],
)
def test_an_offset_index_that_cannot_be_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptData):
        OffsetIndex.from_bytes(BASE, data, 10_000)


def test_a_time_index_keeps_only_what_is_newer() -> None:
    index = time_index([5, 5, 3, 9])
    assert len(index) == 2
    assert (index.newest_timestamp, index.newest_offset) == (9, BASE + 3)


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(0, 60))
def test_everything_up_to_the_offset_found_is_older(times: list[int], wanted: int) -> None:
    last = time_index(times).offset_before(wanted) - BASE
    assert all(time < wanted for time in times[: last + 1])


@given(st.lists(st.integers(1, 50), max_size=30))
def test_a_time_index_comes_back_from_its_bytes(times: list[int]) -> None:
    index = time_index(times)
    assert TimeIndex.from_bytes(BASE, index.to_bytes()).to_bytes() == index.to_bytes()


def test_a_time_index_has_kafkas_layout() -> None:
    index = TimeIndex(BASE)
    index.add(1_700_000_000_000, Offset(BASE + 7))
    assert index.to_bytes() == bytes.fromhex("0000018bcfe56800" + "00000007")


@pytest.mark.parametrize(
    "data",
    [
        bytes(5),
        bytes(12),
        bytes.fromhex("000000000000000500000001000000000000000500000002"),
        bytes.fromhex("000000000000000500000002000000000000000600000002"),
    ],
    ids=["inside an entry", "lost", "time repeats", "offset repeats"],
)
def test_a_time_index_that_cannot_be_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptData):
        TimeIndex.from_bytes(BASE, data)
