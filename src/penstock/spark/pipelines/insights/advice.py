"""Advice of `insights`, each with the numbers that it is derived from. Pure.

    hot_keys         keys with more than a partition's share of bytes: spread them over suffixes
    uneven           uneven partitions that no single key explains
    partition_count  the peak rate against the rate of one partition
    batch_size       how long producers should wait to fill batches
    compression      what compression would save, as tried on a sample
    scattered_keys   keys in more than one partition
    lateness         how long consumers with time windows should wait for late rows

Rule 1: no advice without a gain: users do not read a report that always advises.
Rule 2: the reason names every assumption that was not measured, with the option that changes it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from penstock.limits import KIB, MIB, SECOND_MS
from penstock.spark.pipelines.common.report import size_text
from penstock.spark.pipelines.insights.numbers import KeyLoad, TopicMeasurements, skew
from penstock.spark.records.key_partitioner import assign_partitions

HOT_RATIO: Final = 1.25
"""A key with this multiple of a partition's fair share is hot; partitions with this skew are uneven."""
FACTOR_MAX: Final = 64
SKEW_TOLERANCE: Final = 1.05
PARTITION_BYTES_PER_S: Final = 10 * MIB
HEADROOM: Final = 2.0
EXCESS_FACTOR: Final = 8
BATCH_BYTES: Final = 64 * KIB
BATCH_BYTES_SMALL: Final = 8 * KIB
BATCH_RECORDS_SMALL: Final = 10
LINGER_MS_MAX: Final = 100
COMPRESSION_RATIO_MAX: Final = 0.75
"""Compression is only advised if the compressed size is at most this share."""
SUFFIX: Final = b"#"


class Advice(NamedTuple):
    """One piece of advice, with its reason."""

    about: str
    advice: str
    because: str


def advise(
    measured: TopicMeasurements, *, partition_bytes_per_s: float = PARTITION_BYTES_PER_S
) -> list[Advice]:
    if not measured.rows:
        return []
    hot = list(hot_keys(measured))
    return [
        *hot,
        *([] if hot else uneven(measured)),
        *partition_count(measured, partition_bytes_per_s),
        *batch_size(measured),
        *compression(measured),
        *scattered_keys(measured),
        *lateness(measured),
    ]


def hot_keys(measured: TopicMeasurements) -> Iterator[Advice]:
    """Yield advice on hot keys, hottest first; each is evaluated with the keys before it already spread."""
    loads = [float(each.bytes) for each in measured.partitions]
    count, total = len(loads), sum(loads)
    for key in measured.keys:
        share = key.bytes / total if total else 0.0
        if count < 2 or share * count < HOT_RATIO:
            return
        before = skew(loads)
        factor, loads = choose_suffix_count(key, loads)
        yield Advice(
            "hot key",
            f"spread the key {key_text(key.key)} over {factor} keys: append #0 to #{factor - 1} in turn, "
            "and let consumers leave it off",
            f"it has {share:.1%} of all bytes ({key.rows:,} records), and the fair share of one of {count} "
            f"partitions is {1 / count:.1%}. The fullest partition has {before:.2f} times the mean, and "
            f"would have {skew(loads):.2f} times{_spread_basis(key, count)}."
            " Order is then kept for each suffix, not "
            "for the whole key",
        )


def choose_suffix_count(key: KeyLoad, loads: Sequence[float]) -> tuple[int, list[float]]:
    """Return the smallest number of suffixes that is about as good as any, and the resulting loads."""
    count = len(loads)
    if not _is_java_partitioned(key, count):
        # The partitions of the suffixed keys are unknown. Each part is small enough that two may share a
        # partition.
        factor = max(2, min(FACTOR_MAX, math.ceil(2 * key.bytes * count / sum(loads))))
        return factor, _spread(key, loads, [key.bytes / count] * count)
    tried = {factor: _with_suffixes(key, loads, factor) for factor in range(2, FACTOR_MAX + 1)}
    best = min(skew(each) for each in tried.values())
    # The smallest factor near the best skew: more suffixes make it harder to read all records of a key.
    return next((factor, each) for factor, each in tried.items() if skew(each) <= best * SKEW_TOLERANCE)


def _with_suffixes(key: KeyLoad, loads: Sequence[float], factor: int) -> list[float]:
    names = pa.array([key.key + SUFFIX + b"%d" % number for number in range(factor)], pa.binary())
    pieces = [0.0] * len(loads)
    for partition in assign_partitions(names, len(loads)).tolist():
        pieces[partition] += key.bytes / factor
    return _spread(key, loads, pieces)


def _spread(key: KeyLoad, loads: Sequence[float], pieces: Sequence[float]) -> list[float]:
    left = list(loads)
    for partition in key.partitions:
        left[partition] -= key.bytes / len(key.partitions)
    return [rest + piece for rest, piece in zip(left, pieces, strict=True)]


def _is_java_partitioned(key: KeyLoad, count: int) -> bool:
    return key.partitions == tuple(assign_partitions(pa.array([key.key], pa.binary()), count).tolist())


def _spread_basis(key: KeyLoad, count: int) -> str:
    if _is_java_partitioned(key, count):
        return " (calculated with murmur2, by which this key was partitioned)"
    return " if its pieces fall evenly (this key was not partitioned by murmur2, so that is not calculated)"


def uneven(measured: TopicMeasurements) -> Iterator[Advice]:
    loads = [float(each.bytes) for each in measured.partitions]
    found = skew(loads)
    if found < HOT_RATIO:
        return
    fullest = max(measured.partitions, key=lambda each: each.bytes)
    because = (
        f"partition {fullest.partition} has {found:.2f} times the mean ({size_text(fullest.bytes)} of "
        f"{size_text(measured.bytes)} in {len(loads)} partitions), and no single key is the reason"
    )
    keyless = sum(each.keyless for each in measured.partitions)
    if keyless > measured.rows / 2:
        advice = "let producers choose the partition of records without keys: they go around evenly"
    elif measured.distinct_keys < 10 * len(loads):
        advice = "use keys that are finer (a customer instead of a country), or fewer partitions"
        because += f"; there are only {measured.distinct_keys:,} keys, so some partitions get more of them"
    else:
        advice = "see whether producers choose partitions themselves, or with a hash of their own"
    yield Advice("uneven partitions", advice, because)


def partition_count(measured: TopicMeasurements, partition_bytes_per_s: float) -> Iterator[Advice]:
    peak = measured.peak_bytes_per_s
    count = len(measured.partitions)
    needed = max(1, math.ceil(peak * HEADROOM / partition_bytes_per_s))
    because = (
        f"the busiest {measured.slice_ms // SECOND_MS:,} s had {size_text(round(peak))}/s. With {HEADROOM:g} "
        f"times that as headroom, and {size_text(round(partition_bytes_per_s))}/s for one partition "
        f"(assumed: --partition-rate), {needed} {'is' if needed == 1 else 'are'} needed; there are {count}"
    )
    if needed > count:
        yield Advice(
            "partition count",
            f"have {needed} partitions: `penstock topic alter {measured.topic} --partitions {needed}`",
            f"{because}. Keys move to other partitions when some are added: their order begins anew",
        )
    elif count >= EXCESS_FACTOR * needed and count > EXCESS_FACTOR:
        yield Advice(
            "partition count",
            f"{needed * 2} partitions would do, if consumers need no more; a topic made anew can have fewer",
            because,
        )


def batch_size(measured: TopicMeasurements) -> Iterator[Advice]:
    sample = measured.batches
    if not sample.batches or not measured.slices:
        return
    mean_bytes, mean_records = sample.bytes / sample.batches, sample.records / sample.batches
    if mean_bytes >= BATCH_BYTES_SMALL or mean_records >= BATCH_RECORDS_SMALL:
        return
    # Only slices with traffic count: idle time would lower the rate at which batches fill.
    busy = [each for each in measured.slices if each.bytes]
    per_s = (
        sum(each.bytes for each in busy) * 1000 / (len(busy) * measured.slice_ms * len(measured.partitions))
    )
    linger_ms = BATCH_BYTES / per_s * 1000
    gathered = min(1.0, LINGER_MS_MAX / linger_ms) * BATCH_BYTES
    if gathered < 2 * mean_bytes:
        return  # records come too slowly to be gathered
    chosen = min(LINGER_MS_MAX, max(5, math.ceil(linger_ms)))
    yield Advice(
        "batch size",
        f"let producers gather for linger.ms={chosen}, with batch.size={BATCH_BYTES}",
        f"a batch has {mean_records:.1f} records and {size_text(round(mean_bytes))} on average "
        f"({sample.batches:,} looked at), and each has a header of 61 bytes. "
        f"{size_text(round(per_s))}/s come to a partition, "
        f"so {chosen} ms gather about {size_text(round(gathered))}",
    )


def compression(measured: TopicMeasurements) -> Iterator[Advice]:
    sample = measured.batches
    if not sample.plain_bytes or sample.codecs.get("none", 0) * 2 < sample.batches:
        return
    left = sample.compressed_bytes / sample.plain_bytes
    if left > COMPRESSION_RATIO_MAX:
        return
    yield Advice(
        "compression",
        "let producers compress: compression.type=zstd, or lz4 where processor time is short",
        f"{sample.codecs['none']:,} of {sample.batches:,} batches looked at are not compressed, and zstd "
        f"makes {left:.0%} of them (tried on {size_text(sample.plain_bytes)})",
    )


def scattered_keys(measured: TopicMeasurements) -> Iterator[Advice]:
    if measured.scattered_keys:
        yield Advice(
            "keys in several partitions",
            "find out why, if consumers rely on the order of a key",
            f"{measured.scattered_keys:,} of {measured.distinct_keys:,} keys lie in more than one partition: "
            "partitions were added meanwhile, or producers use different partitioners",
        )


def lateness(measured: TopicMeasurements) -> Iterator[Advice]:
    if measured.behind is None or measured.behind.max_ms < SECOND_MS:
        return
    late = measured.late_rows.get(SECOND_MS, 0)
    all_s, most_s = (math.ceil(each / SECOND_MS) for each in (measured.behind.max_ms, measured.behind.p99_ms))
    yield Advice(
        "late rows",
        f"let queries over windows of time wait {all_s:,} s for late rows (detect: lateness), or "
        f"{most_s:,} s and lose one in a hundred",
        f"{late:,} of {measured.rows:,} records are a second or more behind the newest before them in "
        f"their partition, at most {measured.behind.max_ms / SECOND_MS:,.1f} s",
    )


def key_text(key: bytes) -> str:
    """Return the key as text where it is printable, else as hexadecimal digits; long keys are truncated."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = "0x" + key.hex()
    if not text.isprintable():
        text = "0x" + key.hex()
    return text if len(text) <= 60 else f"{text[:57]}..."
