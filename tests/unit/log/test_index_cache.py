"""Indexes in memory stay within their size, whoever reads."""

from penstock.log.index.offset_index import ENTRY_BYTES as INDEX_ENTRY_BYTES
from penstock.log.index.offset_index import OffsetIndex
from penstock.log.index.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from penstock.log.index.time_index import TimeIndex
from penstock.log.reading.cold_reading import Indexes
from penstock.log.segment import Segment
from penstock.log.shared_resources import IndexCache
from penstock.types import Offset
from tests.unit.log.log_support import new_disk

ENTRIES = 10
SEGMENT_INDEX_BYTES = ENTRIES * (INDEX_ENTRY_BYTES + TIME_ENTRY_BYTES)


def sealed(number: int) -> Segment:
    """A segment whose indexes were read from disk."""
    base = Offset(number * 100)
    segment = Segment(new_disk(), "data", base, size_bytes=1)
    by_offset, by_time = OffsetIndex(base), TimeIndex(base)
    for entry in range(ENTRIES):
        by_offset.add(Offset(base + entry), entry)
        by_time.add(entry, Offset(base + entry))
    by_offset.stored_entries = by_time.stored_entries = ENTRIES
    segment.install_indexes(Indexes(by_offset, by_time))
    return segment


def test_the_longest_unused_indexes_go_when_there_are_too_many() -> None:
    cache = IndexCache(2 * SEGMENT_INDEX_BYTES)
    first, second, third = sealed(1), sealed(2), sealed(3)
    for segment in (first, second, first, third):
        cache.keep(segment)
    assert [segment.has_index for segment in (first, second, third)] == [True, False, True]
    assert len(cache) == 2


def test_a_removed_segment_makes_room() -> None:
    cache = IndexCache(2 * SEGMENT_INDEX_BYTES)
    first, second, third = sealed(1), sealed(2), sealed(3)
    cache.keep(first)
    cache.keep(second)
    cache.drop(first)
    cache.keep(third)
    assert (second.has_index, third.has_index) == (True, True)


def test_indexes_that_are_not_on_disk_are_never_forgotten() -> None:
    cache = IndexCache(1)
    unstored, other = sealed(1), sealed(2)
    unstored.index.add(Offset(199), 99)
    cache.keep(unstored)
    cache.keep(other)
    assert unstored.has_index
