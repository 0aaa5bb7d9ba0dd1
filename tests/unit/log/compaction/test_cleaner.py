"""What one cleaning keeps, in the forms that readers, producers and Kafka's tools rely on."""

import pytest

from penstock.errors import ConfigError, CorruptData
from penstock.limits import LONG_MAX
from penstock.log.compaction.cleaner import clean
from penstock.log.compaction.cleaning_job import CleaningResult
from penstock.log.partition_log import PartitionLog
from penstock.log.reading.cold_reading import ColdRead
from penstock.protocol.batches import DELETE_HORIZON_BIT, HEADER, HEADER_BYTES, parse_header, seal_in_place
from penstock.protocol.compression import Codec
from penstock.protocol.records import Record, build_batch
from penstock.sim.disk import Mount
from penstock.types import LeaderEpoch, Offset
from tests.unit.log.compaction.compaction_support import (
    Put,
    compact,
    dirt_of,
    job_of,
    put,
    read_records,
    records_of,
)
from tests.unit.log.log_support import NOW_MS, batches, checkpoint, flip, new_disk, new_log, read, reopened

DAY_MS = 86_400_000


@pytest.fixture
def disk() -> Mount:
    return new_disk()


@pytest.fixture
def log(disk: Mount) -> PartitionLog:
    return new_log(disk)


def settle(log: PartitionLog) -> None:
    log.roll()
    checkpoint(log)


def settled(log: PartitionLog, *writes: list[Put], **options: object) -> list[Record]:
    written = [record for puts in writes for record in put(log, puts, **options)]
    settle(log)
    return written


def values(log: PartitionLog) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records_of(log)]


def test_only_the_last_record_of_each_key_is_left_at_its_offset(log: PartitionLog) -> None:
    written = settled(log, [Put(b"a", b"1"), Put(b"b", b"2")], [Put(b"a", b"3")], [Put(b"c", b"4")])
    cleaned = compact(log, job_of(log))
    assert records_of(log) == written[1:]
    assert (cleaned.records_removed, cleaned.keys, cleaned.end_offset) == (1, 3, 4)
    assert cleaned.bytes_after < cleaned.bytes_before


def test_batches_of_which_nothing_goes_are_the_same_bytes(log: PartitionLog) -> None:
    settled(log, [Put(b"a", b"1")], [Put(b"b", b"2")], [Put(b"a", b"3"), Put(b"c", b"3")], codec=Codec.ZSTD)
    before = batches(log)
    compact(log, job_of(log))
    assert batches(log)[1:] == before[1:]


def test_a_log_without_anything_to_remove_is_not_rewritten(log: PartitionLog) -> None:
    settled(log, [Put(b"a", b"1")], [Put(b"b", b"2")])
    (step,) = clean(log.disk, job_of(log))
    assert isinstance(step, CleaningResult)


def test_gaps_become_one_empty_batch_and_stay_one(log: PartitionLog) -> None:
    settled(log, *[[Put(b"a", b"%d" % number)] for number in range(50)], [Put(b"b", b"")])
    compact(log, job_of(log))
    first, *rest = [parse_header(batch) for batch in batches(log)]
    assert (first.base_offset, first.last_offset, first.record_count, first.size) == (0, 48, 0, 61)
    assert [(header.base_offset, header.record_count) for header in rest] == [(49, 1), (50, 1)]
    settled(log, [Put(b"a", b"newer")])
    compact(log, job_of(log, clean_to=51))
    headers = [parse_header(batch) for batch in batches(log)]
    assert [(header.base_offset, header.last_offset) for header in headers] == [(0, 49), (50, 50), (51, 51)]


@pytest.mark.parametrize("codec", list(Codec))
def test_records_that_are_left_of_a_batch_keep_their_codec_times_and_headers(
    log: PartitionLog, codec: Codec
) -> None:
    puts = [Put(b"a", b"1", NOW_MS + 9), Put(b"b", b"2", NOW_MS - 5), Put(b"c", b"3", NOW_MS + 3)]
    written = settled(log, puts, codec=codec)
    put(log, [Put(b"a", b"newer")])
    settle(log)
    compact(log, job_of(log))
    header = parse_header(batches(log)[0])
    assert records_of(log)[:2] == written[1:]
    assert (header.codec, header.record_count, header.last_offset_delta) == (codec, 2, 2)
    assert header.max_timestamp == NOW_MS + 3


def test_a_tombstone_stays_until_its_horizon_and_then_goes(log: PartitionLog) -> None:
    written = settled(log, [Put(b"a", b"1")], [Put(b"a", None), Put(b"b", b"2")], [Put(b"z", b"")])
    compact(log, job_of(log, now_ms=NOW_MS, delete_retention_ms=DAY_MS))
    assert records_of(log) == written[1:]
    tombstone = parse_header(batches(log)[1])
    assert tombstone.attributes & DELETE_HORIZON_BIT
    assert tombstone.base_timestamp == NOW_MS + DAY_MS
    settled(log, [Put(b"z", b"2")])
    compact(log, job_of(log, 4, now_ms=NOW_MS + DAY_MS - 1, delete_retention_ms=5 * DAY_MS))
    assert (b"a", None) in values(log), "a horizon is set once"
    settled(log, [Put(b"z", b"3")])
    compact(log, job_of(log, 5, now_ms=NOW_MS + DAY_MS, delete_retention_ms=5 * DAY_MS))
    assert (b"a", None) not in values(log)
    assert written[2] in records_of(log), "with its own time, though the batch has another"


def test_a_tombstone_goes_by_the_trusted_time_and_gets_its_horizon_by_the_later(
    log: PartitionLog,
) -> None:
    settled(log, [Put(b"a", None, NOW_MS)], [Put(b"z", b"")])
    compact(log, job_of(log, now_ms=NOW_MS - 400 * DAY_MS, delete_retention_ms=DAY_MS))
    assert parse_header(batches(log)[0]).base_timestamp == NOW_MS + DAY_MS, "the clock was behind the record"
    settled(log, [Put(b"z", b"2")])
    compact(log, job_of(log, 2, now_ms=NOW_MS + 9 * DAY_MS, trusted_ms=NOW_MS, delete_retention_ms=DAY_MS))
    assert (b"a", None) in values(log)
    settled(log, [Put(b"z", b"3")])
    compact(log, job_of(log, 3, now_ms=NOW_MS, trusted_ms=NOW_MS + DAY_MS, delete_retention_ms=DAY_MS))
    assert (b"a", None) not in values(log)


@pytest.mark.parametrize(
    ("retention_ms", "time_ms"), [(LONG_MAX, NOW_MS), (DAY_MS, LONG_MAX), (LONG_MAX, -1)]
)
def test_a_tombstone_whose_time_never_ends_stays_for_ever(
    log: PartitionLog, retention_ms: int, time_ms: int
) -> None:
    written = settled(log, [Put(b"a", b"1")], [Put(b"b", b"", NOW_MS), Put(b"a", None, time_ms)])
    compact(log, job_of(log, delete_retention_ms=retention_ms))
    assert records_of(log) == written[1:]
    header = parse_header(batches(log)[1])
    assert header.attributes & DELETE_HORIZON_BIT
    assert header.base_timestamp == LONG_MAX
    settled(log, [Put(b"z", b"2")])
    compact(log, job_of(log, 3, now_ms=NOW_MS + 10_000 * DAY_MS, delete_retention_ms=DAY_MS))
    assert written[2] in records_of(log)


def test_a_batch_with_times_far_from_the_horizon_keeps_its_tombstone(
    log: PartitionLog,
) -> None:
    written = settled(log, [Put(b"x", b"1", -(2**62)), Put(b"a", None), Put(b"b", b"", -(2**62))])
    settled(log, [Put(b"x", b"2")])
    compact(log, job_of(log, delete_retention_ms=LONG_MAX))
    assert records_of(log)[:2] == written[1:]
    assert not parse_header(batches(log)[0]).attributes & DELETE_HORIZON_BIT


def test_times_that_no_batch_can_say_do_not_end_the_cleaning(log: PartitionLog) -> None:
    batch = bytearray(build_batch([Record(Offset(0), NOW_MS + at, b"%d" % at, b"") for at in range(3)]))
    HEADER.pack_into(batch, 0, *parse_header(batch)._replace(base_timestamp=LONG_MAX))
    seal_in_place(batch)
    log.append(batch, parse_header(batch), LeaderEpoch(1))
    settled(log, [Put(b"1", b"newer")])
    assert compact(log, job_of(log)).records_removed == 1
    header = parse_header(batches(log)[0])
    assert (header.record_count, header.max_timestamp) == (2, LONG_MAX)


def test_a_tombstone_takes_with_it_what_was_cleaned_before(log: PartitionLog) -> None:
    settled(log, [Put(b"a", b"1")], [Put(b"b", b"1")], [Put(b"b", b"2")])
    compact(log, job_of(log))
    settled(log, [Put(b"a", None)])
    compact(log, job_of(log, 3, delete_retention_ms=DAY_MS))
    assert values(log) == [(b"b", b"2"), (b"a", None)]


def test_the_last_sequence_of_a_producer_outlives_its_records(disk: Mount, log: PartitionLog) -> None:
    for sequence in range(3):
        put(log, [Put(b"a", b"%d" % sequence)], producer_id=7, producer_epoch=1, base_sequence=sequence)
    settled(log, [Put(b"a", b"another's")])
    compact(log, job_of(log))
    assert values(log) == [(b"a", b"another's")]
    emptied = [header for header in map(parse_header, batches(log)) if header.producer_id == 7]
    assert [(header.base_offset, header.record_count, header.base_sequence) for header in emptied] == [
        (2, 0, 2)
    ]
    for offset in log.snapshots:
        disk.remove(log.snapshot_path(offset))
    log.close()
    ((producer_id, producer),) = reopened(disk).log.producers.items()
    assert (producer_id, producer.epoch, producer.last.last_sequence) == (7, 1, 2)


def test_an_emptied_batch_goes_when_its_producer_has_gone_on(log: PartitionLog) -> None:
    put(log, [Put(b"a", b"1")], producer_id=7, producer_epoch=1, base_sequence=0)
    settled(log, [Put(b"a", b"2")])
    compact(log, job_of(log))
    put(log, [Put(b"b", b"3")], producer_id=7, producer_epoch=1, base_sequence=1)
    settled(log, [Put(b"a", b"4")])
    compact(log, job_of(log, 2))
    assert [parse_header(batch).producer_id for batch in batches(log)] == [-1, 7, -1]


def test_records_without_a_key_are_dropped_and_counted(log: PartitionLog) -> None:
    settled(log, [Put(None, b"1"), Put(b"a", b"2")], [Put(None, b"3")])
    cleaned = compact(log, job_of(log))
    assert values(log) == [(b"a", b"2")]
    assert (cleaned.keyless_removed, cleaned.records_removed) == (2, 2)


def test_control_batches_of_other_kinds_are_passed_on_as_they_are(log: PartitionLog) -> None:
    put(log, [Put(b"a", b"1")])
    put(log, [Put(b"\0\0\0\2", b"marker")], control=True, producer_id=7, producer_epoch=0)
    settled(log, [Put(b"a", b"2")], [Put(b"\0\0\0\2", b"a record with the same key")])
    marker = batches(log)[1]
    compact(log, job_of(log))
    assert marker in batches(log)


def test_a_cleaning_out_of_memory_reports_its_end_and_the_next_continues(
    log: PartitionLog,
) -> None:
    settled(log, *[[Put(b"%d" % (number % 30), b"%d" % number)] for number in range(100)])
    clean_to, rounds = 0, 0
    while dirt_of(log, clean_to).dirty_bytes:
        cleaned = compact(log, job_of(log, clean_to, memory_bytes=40 * 8))
        assert cleaned.end_offset > clean_to
        clean_to, rounds = cleaned.end_offset, rounds + 1
    assert rounds == 3
    assert [record.offset for record in records_of(log)] == list(range(70, 100))


def test_a_gap_longer_than_what_can_be_noted_is_passed(log: PartitionLog) -> None:
    settled(log, *[[Put(b"a", b"%d" % number)] for number in range(30)], [Put(b"b", b"")])
    compact(log, job_of(log))
    settled(log, [Put(b"b", b"newer")])
    clean_to = None  # what was cleaned is forgotten
    for _ in range(3):
        clean_to = compact(log, job_of(log, clean_to, memory_bytes=80)).end_offset
        if not dirt_of(log, clean_to).dirty_bytes:
            break
    assert values(log) == [(b"a", b"29"), (b"b", b"newer")]


def test_a_batch_that_does_not_fit_the_memory_is_said(log: PartitionLog) -> None:
    settled(log, [Put(b"%d" % number, b"") for number in range(20)])
    with pytest.raises(ConfigError, match=r"log\.cleaner\.dedupe\.buffer\.size = 80 is too small"):
        next(clean(log.disk, job_of(log, memory_bytes=80)))


@pytest.mark.parametrize("position", [3, 20, 65])
def test_damage_ends_the_cleaning_and_changes_nothing(disk: Mount, log: PartitionLog, position: int) -> None:
    settled(log, [Put(b"a", b"1")], [Put(b"a", b"2")])
    flip(disk, log.segments[0].path(), position)
    names = [name for name in disk.list_folder(log.folder) if name.endswith(".log")]
    with pytest.raises(CorruptData, match=r"00000000000000000000\.log at 0"):
        next(clean(log.disk, job_of(log)))
    left = disk.list_folder(log.folder)
    assert [name for name in left if name.endswith(".log")] == names
    assert not [name for name in left if name.endswith(".swap")]


def append_body(log: PartitionLog, body: bytes, records: int = 1) -> bytes:
    """A batch with a checksum that holds, whatever is in it. Topics that are not compacted take it."""
    like = build_batch([Record(Offset(0), NOW_MS, b"x", b"") for _ in range(records)])
    batch = bytearray(like[:HEADER_BYTES] + body)
    HEADER.pack_into(batch, 0, *parse_header(like)._replace(batch_length=len(batch) - 12))
    seal_in_place(batch)
    log.append(batch, parse_header(batch), LeaderEpoch(1))
    return bytes(batch)


TIME_OF_ELEVEN_BYTES = b"\0" + b"\x80" * 10 + b"\0"
UNREADABLE = {
    "garbage": (b"\xff" * 30, 1),
    "cut short": (b"\x10\0\0\0", 1),
    "an impossible time": (
        b"".join(
            bytes((2 * len(record),)) + record
            for record in (TIME_OF_ELEVEN_BYTES + b"\0\2k\0\0", TIME_OF_ELEVEN_BYTES + b"\2\2l\0\0")
        ),
        2,
    ),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_batch_that_cannot_be_opened_stays_whole_and_the_rest_is_cleaned(
    disk: Mount, log: PartitionLog, what: str
) -> None:
    settled(log, [Put(b"k", b"1")], [Put(b"k", b"2")])
    unreadable = append_body(log, *UNREADABLE[what])
    settled(log, [Put(b"k", b"3")], [Put(b"k", b"4")])
    end = log.log_end_offset
    cleaned = compact(log, job_of(log))
    assert (cleaned.unopened, cleaned.first_unopened, cleaned.end_offset) == (1, 2, end)
    assert cleaned.records_removed == 3
    settled(log, [Put(b"k", b"5")])
    cleaned = compact(log, job_of(log, end))
    assert (cleaned.unopened, cleaned.first_unopened) == (1, 2), "it lies in the clean part now"
    found = batches(log)
    records = parse_header(unreadable).record_count
    assert [parse_header(batch).record_count for batch in found] == [0, records, 0, 1]
    assert found[1][16:] == unreadable[16:]
    assert read_records(found[-1])[0].value == b"5"
    log.close()
    assert batches(reopened(disk).log) == found


def test_a_view_of_a_rewritten_segment_of_the_same_size_is_not_current(
    log: PartitionLog,
) -> None:
    settled(log, [Put(b"k", b"v")], [Put(b"k", None)])
    log.segments[0].forget_indexes()
    before = log.view(log.segments[0])
    read = ColdRead(before, Offset(0), Offset(2), 1000, at_least_one=True)
    result = read.run()
    assert log.is_current(before)
    compact(log, job_of(log, delete_retention_ms=LONG_MAX))
    assert (log.segments[0].base_offset, log.segments[0].size_bytes) == (0, before.size_bytes)
    assert not log.is_current(before)
    log.keep_indexes(*result.loaded)
    assert not log.segments[0].has_index, "they are the old one's"
    after = log.view(log.segments[0])
    assert log.is_current(after)
    settled(log, [Put(b"k", b"v")])
    compact(log, job_of(log, 2, delete_retention_ms=LONG_MAX))
    assert not log.is_current(after)


def test_a_view_stays_current_while_its_segment_grows_and_is_closed(log: PartitionLog) -> None:
    put(log, [Put(b"k", b"v")])
    view = log.view(log.active)
    settled(log, [Put(b"k", b"v")])
    assert log.is_current(view)
    log.drop_segments(1)
    assert not log.is_current(view)


def test_what_was_read_before_is_not_read_again_from_segments_that_are_gone(log: PartitionLog) -> None:
    written = settled(log, *[[Put(b"a", b"%d" % number)] for number in range(5)])
    assert records_of(log) == written
    compact(log, job_of(log))
    for offset in range(5):
        assert parse_header(bytes(read(log, offset).data)).last_offset == (3 if offset < 4 else 4)
    log.close()
    assert not [segment for segment in log.segments if segment.is_open]


def test_small_segments_become_one(log: PartitionLog) -> None:
    for number in range(10):
        settled(log, [Put(b"%d" % number, b"kept")])
    assert len(log.segments) == 11
    compact(log, job_of(log))
    assert len(log.segments) == 2
    assert len(records_of(log)) == 10
