"""When the first record at or after an offset was written."""

from dataclasses import replace

import pytest

from penstock.errors import CorruptData
from penstock.log.partition_log import PartitionLog
from penstock.log.reading.first_record_time import plan_first_record
from penstock.protocol.batches import HEADER_BYTES, parse_header, seal_in_place, with_log_append_time
from penstock.protocol.compression import Codec
from penstock.types import LeaderEpoch, Offset
from tests.unit.log.log_support import NOW_MS, append, batch_of, flip, flush, new_disk, new_log


def time_at(
    log: PartitionLog, offset: int, records_max: int = 1_000, expanded_bytes_max: int = 1_000_000
) -> int | None:
    read = plan_first_record(log, Offset(offset), log.log_end_offset)
    read = replace(read, records_max=records_max, expanded_bytes_max=expanded_bytes_max)
    return read.run().timestamp_ms


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_the_time_is_that_of_the_record_itself_wherever_it_is_in_its_batch(codec: Codec) -> None:
    log = new_log(new_disk())
    append(log, [b"a", b"b", b"c"], [NOW_MS, NOW_MS + 5_000, NOW_MS + 1_000], codec=codec)
    append(log, [b"d"], [NOW_MS + 9_000], codec=codec)
    flush(log)
    times = [time_at(log, offset) for offset in range(4)]
    assert times == [NOW_MS, NOW_MS + 5_000, NOW_MS + 1_000, NOW_MS + 9_000]


def test_records_of_one_second_are_as_old_as_the_first_of_them() -> None:
    log = new_log(new_disk())
    append(log, [b"a", b"b"], [NOW_MS, NOW_MS + 1_000])
    flush(log)
    assert [time_at(log, 0), time_at(log, 1)] == [NOW_MS, NOW_MS]


def test_the_brokers_time_counts_where_the_topic_says_so() -> None:
    log = new_log(new_disk())
    batch = with_log_append_time(batch_of([b"a", b"b"], [NOW_MS - 900, NOW_MS - 800]), NOW_MS + 5)
    log.append(batch, parse_header(batch), LeaderEpoch(1))
    flush(log)
    assert [time_at(log, 0), time_at(log, 1)] == [NOW_MS + 5, NOW_MS + 5]


def test_old_segments_are_looked_into_too() -> None:
    log = new_log(new_disk(), segment_bytes=1_000)
    for number in range(40):
        append(log, [b"x" * 100], [NOW_MS + number])
    flush(log)
    assert len(log.segments) > 2
    assert [time_at(log, offset) for offset in (0, 13, 39)] == [NOW_MS, NOW_MS + 13, NOW_MS + 39]


def test_a_batch_too_large_to_be_opened_answers_with_its_header() -> None:
    log = new_log(new_disk())
    append(log, [b"a", b"b" * 100, b"c"], [NOW_MS, NOW_MS + 5_000, NOW_MS + 9_000], codec=Codec.ZSTD)
    flush(log)
    assert time_at(log, 1) == NOW_MS + 5_000
    assert time_at(log, 1, records_max=2) == NOW_MS + 9_000
    assert time_at(log, 1, expanded_bytes_max=100) == NOW_MS + 9_000


def test_a_batch_that_cannot_be_opened_answers_with_its_header() -> None:
    log = new_log(new_disk())
    batch = bytearray(batch_of([b"a", b"b"], [NOW_MS, NOW_MS + 7_000], codec=Codec.GZIP))
    batch[HEADER_BYTES:] = b"x" * (len(batch) - HEADER_BYTES)
    seal_in_place(batch)
    log.append(batch, parse_header(batch), LeaderEpoch(1))
    flush(log)
    assert time_at(log, 1) == NOW_MS + 7_000


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_batch_that_is_opened_and_damaged_is_damage(codec: Codec) -> None:
    """What its producer sent unreadable has a valid checksum."""
    disk = new_disk()
    log = new_log(disk)
    append(log, [b"a", b"b"], [NOW_MS, NOW_MS + 5_000], codec=codec)
    flush(log)
    flip(disk, log.active.path(), log.active.size_bytes - 1)
    with pytest.raises(CorruptData, match="checksum of the batch at offset 0"):
        time_at(log, 1)
