"""From a time to an offset: what is opened for it, and what answers when that would be too much."""

from collections.abc import Sequence

import pytest

from penstock.errors import CorruptData
from penstock.log.partition_log import PartitionLog
from penstock.log.reading import time_lookup
from penstock.log.reading.time_lookup import (
    LOOKUP_LIMITS,
    LookupLimits,
    TimedOffset,
    TimedSegment,
    TimeLookup,
    TimeSearch,
    look_up,
)
from penstock.protocol.batches import HEADER, parse_header, seal_in_place
from penstock.protocol.records import timed_records
from penstock.sim.disk import Mount
from penstock.types import LeaderEpoch, Offset
from tests.unit.log.compaction.compaction_support import Put, compact, job_of, put, records_of
from tests.unit.log.log_support import NOW_MS, append, batch_of, checkpoint, flush, new_disk, new_log

LATER = NOW_MS + 1_000_000


def lookup_in(log: PartitionLog, end: int | None = None) -> TimeLookup:
    segments = [TimedSegment(log.view(s), s) for s in log.segments if s.size_bytes]
    return TimeLookup(segments, log.log_start_offset, log.log_end_offset if end is None else Offset(end))


def searched(search: TimeSearch) -> tuple[TimedOffset | None, int]:
    """The answer, and in how many steps it came."""
    steps = 1
    while not (step := search.run()).is_done:
        steps += 1
    return step.found, steps


def search(
    log: PartitionLog,
    timestamp: int | None,
    limits: LookupLimits = LOOKUP_LIMITS,
) -> TimeSearch:
    return TimeSearch(lookup_in(log), timestamp, lambda: None, limits)


def append_claiming(log: PartitionLog, claimed: int, values: Sequence[bytes]) -> Offset:
    """A batch whose header says that its records are newer than they are."""
    batch = bytearray(batch_of(values))
    batch[: HEADER.size] = HEADER.pack(*parse_header(batch)._replace(max_timestamp=claimed))
    seal_in_place(batch)
    return log.append(batch, parse_header(batch), LeaderEpoch(1))


def ascending(batches: int = 60, disk: Mount | None = None) -> PartitionLog:
    """Several segments of batches of two records, each newer than those before."""
    log = new_log(disk or new_disk(), segment_bytes=1_500)
    for number in range(batches):
        append(log, [b"x" * 40, b"y"], [NOW_MS + 10 * number, NOW_MS + 10 * number + 5])
    flush(log)
    return log


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first offsets of the batches that were opened."""
    offsets: list[int] = []

    def remembered(batch: bytes, *, limit_bytes: int) -> object:
        offsets.append(parse_header(batch).base_offset)
        return timed_records(batch, limit_bytes=limit_bytes)

    monkeypatch.setattr(time_lookup, "timed_records", remembered)
    return offsets


def test_one_batch_is_opened_for_a_time_and_one_for_the_newest(opened: list[int]) -> None:
    log = ascending()
    assert len(log.segments) > 3
    assert look_up(lookup_in(log), NOW_MS + 303) == (61, NOW_MS + 305)
    assert opened == [60]
    assert look_up(lookup_in(log), None) == (119, NOW_MS + 595)
    assert opened == [60, 118]


def test_the_newest_record_is_below_the_end_that_was_given(opened: list[int]) -> None:
    log = ascending()
    for end in range(2, 120, 2):
        opened.clear()
        assert look_up(lookup_in(log, end), None) == (end - 1, NOW_MS + 5 * (end - 2) + 5)
        assert opened == [end - 2]


def test_of_a_batch_that_the_log_begins_in_only_what_is_left_counts() -> None:
    log = new_log(new_disk())
    append(log, [b"a", b"b", b"c"], [LATER, NOW_MS + 1, NOW_MS + 2])
    append(log, [b"d"], [NOW_MS + 1])
    log.advance_start(Offset(1))
    assert look_up(lookup_in(log), None) == (2, NOW_MS + 2)
    assert look_up(lookup_in(log), NOW_MS + 2) == (2, NOW_MS + 2)
    assert look_up(lookup_in(log), LATER) is None


def test_what_was_deleted_is_not_the_newest_though_its_index_says_so() -> None:
    log = new_log(new_disk())
    append(log, [b"newest" * 60], [LATER])
    for number in range(20):
        append(log, [b"x" * 100], [NOW_MS + number % 7])
    log.advance_start(Offset(1))
    assert look_up(lookup_in(log), None) == (7, NOW_MS + 6)


def test_a_long_time_without_anything_newer_is_passed_by_the_index() -> None:
    """The newest comes first, and what is looked for at the end of a long segment."""
    log = new_log(new_disk())
    append(log, [b"x" * 100], [NOW_MS + 500])
    for number in range(300):
        append(log, [b"x" * 100], [NOW_MS + number])
    append(log, [b"x" * 100], [NOW_MS + 1_000])
    for _ in range(5):
        append(log, [b"x" * 100], [NOW_MS])
    limits = LookupLimits(headers_per_step=10)
    assert searched(search(log, NOW_MS + 600, limits=limits)) == ((301, NOW_MS + 1_000), 1)


def test_the_newest_of_a_long_segment_is_found_by_its_index() -> None:
    """Wherever it lies, few headers are read."""
    for newest in (0, 150, 299):
        log = new_log(new_disk())
        for number in range(300):
            append(log, [b"x" * 100], [LATER if number == newest else NOW_MS + number])
        found, steps = searched(search(log, None, LookupLimits(headers_per_step=10)))
        assert (found, steps) == ((newest, LATER), 2)


def test_headers_that_claim_too_much_are_opened_within_a_budget(opened: list[int]) -> None:
    log = new_log(new_disk())
    for _ in range(10):
        append_claiming(log, LATER, [b"old"] * 5)
    append(log, [b"x"], [NOW_MS + 9])
    assert look_up(lookup_in(log), LATER) is None
    assert len(opened) == 10
    opened.clear()

    found, _ = searched(search(log, LATER, LookupLimits(records_max=12)))

    assert opened == [0, 5]
    assert found == (10, LATER), "all before it is older, so nothing is missed"


def test_what_is_opened_is_bounded_by_what_it_expands_to(opened: list[int]) -> None:
    log = new_log(new_disk())
    for _ in range(4):
        append_claiming(log, LATER, [bytes(1_000)])
    found, _ = searched(search(log, LATER, LookupLimits(expanded_bytes_max=2_500)))
    assert opened == [0, 1, 2]
    assert found == (2, LATER)


def test_a_batch_with_more_records_than_may_be_opened_answers_by_its_header(opened: list[int]) -> None:
    log = new_log(new_disk())
    append_claiming(log, LATER, [b"x"] * 20)
    assert searched(search(log, NOW_MS, LookupLimits(records_max=19)))[0] == (0, LATER)
    assert searched(search(log, None, LookupLimits(records_max=19)))[0] == (0, LATER)
    assert opened == []


def test_one_batch_that_claims_too_much_is_opened_for_the_newest(opened: list[int]) -> None:
    log = new_log(new_disk())
    append(log, [b"x"], [NOW_MS + 10])
    append_claiming(log, LATER, [b"old", b"old"])
    append_claiming(log, LATER - 1, [b"old"])
    assert look_up(lookup_in(log), None) == (1, NOW_MS)
    assert opened == [1]


def test_a_lookup_stops_for_others_after_some_headers() -> None:
    log = new_log(new_disk())
    append_claiming(log, LATER, [b"old"])
    for _ in range(30):
        append(log, [b"x"], [NOW_MS])
    found, steps = searched(search(log, LATER - 1, LookupLimits(headers_per_step=5)))
    assert found is None
    assert steps > 6


def test_headers_that_are_each_newer_than_the_one_before_count_too() -> None:
    """The index leads to a batch without records, so the newest is searched from header to header."""
    log = new_log(new_disk())
    put(log, [Put(b"k", b"newest", LATER)])
    for number in range(100):
        put(log, [Put(b"%d" % number, b"", NOW_MS + number)])
    put(log, [Put(b"k", b"older", NOW_MS)])
    checkpoint(log)
    log.roll()
    put(log, [Put(b"other", b"", NOW_MS)])
    checkpoint(log)
    compact(log, job_of(log))
    found, steps = searched(search(log, None, LookupLimits(headers_per_step=5)))
    assert found == (100, NOW_MS + 99)
    assert steps > 20


def test_no_file_is_open_between_steps() -> None:
    disk = new_disk()
    log = ascending(disk=disk)
    log.close_files()
    assert disk.open_files == 0
    for timestamp in (NOW_MS + 303, None):
        running, steps = search(log, timestamp, LookupLimits(headers_per_step=1)), 1
        while not running.run().is_done:
            assert disk.open_files == 0
            steps += 1
        assert disk.open_files == 0
        assert steps > 3


class Gone(Exception):
    pass


def test_a_lookup_gives_way_while_it_examines_records() -> None:
    log = new_log(new_disk())
    append_claiming(log, LATER, [b"old"] * 100)
    turns: list[int] = []

    def yield_gil() -> None:
        turns.append(1)
        if len(turns) == 4:
            raise Gone

    with pytest.raises(Gone):
        TimeSearch(lookup_in(log), LATER, yield_gil, limits=LookupLimits(records_per_chunk=10)).run()
    assert len(turns) == 4


def test_damage_is_found_though_the_budget_is_spent() -> None:
    log = new_log(new_disk())
    append_claiming(log, LATER, [b"x"] * 20)
    size = log.active.size_bytes
    log.active.file.write(size - 1, b"\xff")
    with pytest.raises(CorruptData, match="checksum"):
        search(log, LATER, LookupLimits(records_max=1)).run()


def test_what_compaction_removed_is_not_the_newest(opened: list[int]) -> None:
    """It leaves batches without records, whose headers keep the largest time of what was there."""
    log = new_log(new_disk())
    put(log, [Put(b"k", b"newest", LATER)])
    for number in range(30):
        put(log, [Put(b"%d" % number, b"x" * 100, NOW_MS + number)])
    put(log, [Put(b"k", b"older", NOW_MS)])
    checkpoint(log)
    log.roll()
    put(log, [Put(b"other", b"x", NOW_MS)])
    checkpoint(log)
    compact(log, job_of(log))
    assert [record.offset for record in records_of(log)] == list(range(1, 33))
    assert look_up(lookup_in(log), None) == (30, NOW_MS + 29)
    assert look_up(lookup_in(log), NOW_MS + 12) == (13, NOW_MS + 12)
    assert look_up(lookup_in(log), LATER) is None
    assert opened == [30, 13]


def test_a_lookup_does_not_go_on_in_a_segment_that_compaction_replaced() -> None:
    """Batches of one size, and two gaps of half of it: the next step would begin with a batch much later."""
    log = new_log(new_disk(), index_interval_bytes=1_000_000)
    for number in range(60):
        key = b"other" if number < 20 and number != 10 else b"key%02d" % number
        put(log, [Put(key, b"x" * 49, LATER if number in (33, 50) else NOW_MS)])
    put(log, [Put(b"other", b"", NOW_MS)])
    checkpoint(log)
    log.roll()
    put(log, [Put(b"last", b"", NOW_MS)])
    checkpoint(log)
    lookup = search(log, LATER, LookupLimits(headers_per_step=22))
    assert not lookup.run().is_done
    compact(log, job_of(log))
    with pytest.raises(CorruptData, match="offset 40 where 22 belongs"):
        searched(lookup)
    assert look_up(lookup_in(log), LATER) == (33, LATER)
