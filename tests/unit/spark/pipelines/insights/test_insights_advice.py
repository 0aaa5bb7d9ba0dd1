"""Advice follows from numbers: given where something is wrong, and nowhere else."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from penstock.limits import DAY_MS, KIB, MIB, SECOND_MS
from penstock.spark.pipelines.insights.advice import (
    Advice,
    advise,
    batch_size,
    choose_suffix_count,
    compression,
    hot_keys,
    key_text,
    lateness,
    partition_count,
    scattered_keys,
    uneven,
)
from penstock.spark.pipelines.insights.numbers import (
    BatchSample,
    DurationStats,
    KeyLoad,
    PartitionLoad,
    TimeSlice,
    TopicMeasurements,
    skew,
)
from penstock.spark.records.key_partitioner import assign_partitions


def measured(loads: Sequence[int], keys: Sequence[KeyLoad] = (), **more: object) -> TopicMeasurements:
    """A topic of nothing but these loads, in one slice of a second."""
    partitions = tuple(PartitionLoad(number, load, load) for number, load in enumerate(loads))
    found = TopicMeasurements(
        topic="orders",
        read_at_ms=0,
        ranges={},
        partitions=partitions,
        keys=tuple(keys),
        distinct_keys=10_000,
        scattered_keys=0,
        slice_ms=SECOND_MS,
        slices=(TimeSlice(0, sum(loads), sum(loads)),),
        behind=DurationStats(sum(loads), 0, 0, 0, 0),
        late_rows={},
        latency=None,
        from_the_future=0,
        without_made=0,
        append_time=False,
    )
    return found._replace(**more)  # type: ignore[arg-type]


def key(name: bytes, size: int, partitions: int, *, elsewhere: bool = False) -> KeyLoad:
    place = int(assign_partitions(pa.array([name], pa.binary()), partitions)[0])
    return KeyLoad(name, size, size, ((place + elsewhere) % partitions,))


def only(advice: Sequence[Advice]) -> Advice:
    assert len(advice) == 1
    return advice[0]


def test_an_even_topic_gets_no_advice() -> None:
    assert advise(measured([1_000, 1_010, 990, 1_000], [key(b"a", 20, 4)])) == []
    assert advise(measured([0, 0])) == []
    assert advise(measured([5_000], [key(b"a", 4_000, 1)])) == [], "one partition cannot be uneven"


def test_a_hot_key_is_spread_as_far_as_it_helps() -> None:
    hot = key(b"whale", 6_000, 8)
    loads = [500] * 8
    loads[hot.partitions[0]] += 6_000
    found = only(list(hot_keys(measured(loads, [hot, key(b"b", 100, 8)]))))
    assert found.about == "hot key"
    assert "the key whale over" in found.advice
    assert "60.0% of all bytes (6,000 records)" in found.because
    assert "partitions is 12.5%" in found.because
    assert "calculated with murmur2" in found.because


def test_the_factor_is_the_smallest_that_is_as_good_as_any() -> None:
    hot = key(b"whale", 6_000, 8)
    loads = [500.0] * 8
    loads[hot.partitions[0]] += 6_000
    factor, after = choose_suffix_count(hot, loads)
    assert sum(after) == pytest.approx(sum(loads))
    assert skew(after) < 1.3 < skew(loads)
    pieces = pa.array([b"whale#%d" % number for number in range(factor)], pa.binary())
    expected = [500.0] * 8
    for partition in assign_partitions(pieces, 8).tolist():
        expected[partition] += 6_000 / factor
    assert after == pytest.approx(expected)


def test_with_another_partitioner_nothing_is_calculated_with_ours() -> None:
    hot = key(b"whale", 4_000, 4, elsewhere=True)
    loads = [1_000] * 4
    loads[hot.partitions[0]] += 4_000
    found = only(list(hot_keys(measured(loads, [hot]))))
    assert "over 4 keys" in found.advice, "half of the keys's share of a partition for each piece"
    assert "not partitioned by murmur2" in found.because


def test_several_hot_keys_are_judged_one_after_the_other() -> None:
    hot = [key(b"whale", 5_000, 4), key(b"shark", 4_000, 4), key(b"fish", 100, 4)]
    loads = [250] * 4
    for each in hot[:2]:
        loads[each.partitions[0]] += each.bytes
    found = list(hot_keys(measured(loads, hot)))
    assert ["whale" in found[0].advice, "shark" in found[1].advice, len(found)] == [True, True, 2]


def test_uneven_partitions_without_a_hot_key_have_another_reason() -> None:
    few = only(list(uneven(measured([100, 100, 400], distinct_keys=5))))
    assert "keys that are finer" in few.advice
    assert "partition 2 has 2.00 times the mean" in few.because
    many = only(list(uneven(measured([100, 100, 400]))))
    assert "choose partitions themselves" in many.advice
    keyless = measured([100, 100, 400])
    partitions = tuple(each._replace(keyless=each.rows) for each in keyless.partitions)
    assert "without keys" in only(list(uneven(keyless._replace(partitions=partitions)))).advice
    assert list(uneven(measured([100, 110, 120]))) == []


def test_partitions_follow_from_the_peak() -> None:
    peak = measured([30 * MIB, 30 * MIB])
    found = only(list(partition_count(peak, 10 * MIB)))
    assert "have 12 partitions: `penstock topic alter orders --partitions 12`" in found.advice
    assert "60.0 MiB/s" in found.because
    assert "12 are needed; there are 2" in found.because
    assert list(partition_count(peak, 100 * MIB)) == []
    idle = only(list(partition_count(measured([1] * 50), 10 * MIB)))
    assert "2 partitions would do" in idle.advice


def test_small_batches_are_gathered_only_where_records_come_fast_enough() -> None:
    sample = BatchSample(100, 120, 30 * KIB, {"none": 100})
    found = only(list(batch_size(measured([MIB, MIB], batches=sample))))
    assert "linger.ms=63, with batch.size=65536" in found.advice
    assert "1.2 records and 307 B" in found.because
    fast = only(list(batch_size(measured([100 * MIB], batches=sample))))
    assert "linger.ms=5," in fast.advice
    assert list(batch_size(measured([1_000], batches=sample))) == [], "too slow to be gathered"
    large = sample._replace(records=5_000)
    assert list(batch_size(measured([MIB, MIB], batches=large))) == []


def test_a_pause_does_not_make_records_look_slow() -> None:
    sample = BatchSample(100, 120, 30 * KIB, {"none": 100})
    busy = measured([MIB, MIB], batches=sample)
    with_pause = busy._replace(slices=(*busy.slices, *(TimeSlice(1_000 * number) for number in range(1, 50))))
    assert list(batch_size(with_pause)) == list(batch_size(busy))


def test_compression_is_advised_where_it_saves_something() -> None:
    sample = BatchSample(10, 100, 9_000, {"none": 9, "lz4": 1}, plain_bytes=8_000, compressed_bytes=2_000)
    assert "makes 25% of them" in only(list(compression(measured([1], batches=sample)))).because
    noise = sample._replace(compressed_bytes=7_900)
    assert list(compression(measured([1], batches=noise))) == []
    done = sample._replace(codecs={"none": 1, "zstd": 9})
    assert list(compression(measured([1], batches=done))) == []


def test_scattered_keys_and_late_rows_are_told() -> None:
    assert "3 of 10,000 keys" in only(list(scattered_keys(measured([1], scattered_keys=3)))).because
    late = measured([1], behind=DurationStats(100, 0, 10, 2_500, 90_500), late_rows={SECOND_MS: 7, DAY_MS: 0})
    found = only(list(lateness(late)))
    assert "wait 91 s for late rows (detect: lateness), or 3 s" in found.advice
    assert found.because.startswith("7 of 1 records are a second or more behind")


@pytest.mark.parametrize(
    ("key", "text"),
    [(b"card-1", "card-1"), (b"\xff\x00", "0xff00"), (b"a\nb", "0x610a62"), (b"x" * 99, "x" * 57 + "...")],
)
def test_keys_are_shown_as_text_where_they_are(key: bytes, text: str) -> None:
    assert key_text(key) == text
