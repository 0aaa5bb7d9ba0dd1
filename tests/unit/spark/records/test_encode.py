"""Arrow goes into batches that every reader reads back, and keys to the partitions of Java's clients."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.batches import check_client_shape, parse_only_header
from penstock.protocol.compression import Codec
from penstock.protocol.records import Record, build_batch, iterate_records
from penstock.spark.records.binary_columns import binary_column
from penstock.spark.records.encode import RecordTooLarge, encode
from penstock.spark.records.key_partitioner import STICKY_ROWS_MIN, assign_partitions, murmur2
from penstock.spark.records.record_headers import HEADERS_TYPE
from penstock.types import Offset
from tests.unit.spark.records.decode_cases import pieces_of, rows_in, rows_of_kafka_python, texts

NOW_MS = 1_700_000_000_000
LIMIT_BYTES = 1 << 26

row = st.tuples(
    st.none() | texts,
    st.none() | texts,
    st.none() | st.lists(st.tuples(st.text(max_size=6), st.none() | texts), max_size=3),
    st.one_of(st.integers(NOW_MS - 10, NOW_MS + 70), st.integers(-(2**62) + 1, 2**62 - 1), st.none()),
)
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int | None]


def encoded(rows: list[Row], **how: Any) -> list[bytes]:
    headers = [
        None if row[2] is None else [{"key": key, "value": value} for key, value in row[2]] for row in rows
    ]
    return encode(
        pa.array([row[0] for row in rows], pa.binary()),
        pa.array([row[1] for row in rows], pa.binary()),
        pa.array(headers, HEADERS_TYPE),
        pa.array([row[3] for row in rows], pa.int64()),
        now_ms=NOW_MS,
        **{"codec": Codec.NONE, "batch_bytes_max": 1 << 20} | how,
    )


def renumbered(batches: list[bytes]) -> bytes:
    """As a broker puts them into its log."""
    at, log = 0, b""
    for batch in batches:
        log += at.to_bytes(8, "big") + batch[8:]
        at += parse_only_header(batch).record_count
    return log


@settings(deadline=None, max_examples=80)
@given(
    rows=st.lists(row, min_size=1, max_size=30),
    codec=st.sampled_from(Codec),
    batch_bytes_max=st.sampled_from([30_000, 60_000, 1 << 20]),
)
def test_what_was_encoded_is_decoded_again(rows: list[Row], codec: Codec, batch_bytes_max: int) -> None:
    batches = encoded(rows, codec=codec, batch_bytes_max=batch_bytes_max)
    expected = [
        (offset, NOW_MS if time is None else time, 0, key, value, headers or [])
        for offset, (key, value, headers, time) in enumerate(rows)
    ]
    for batch in batches:
        check_client_shape(parse_only_header(batch))
        assert len(batch) <= batch_bytes_max
        assert len(list(iterate_records(batch, limit_bytes=LIMIT_BYTES, strict=True)))
    log = renumbered(batches)
    assert rows_in(pieces_of(log)) == expected
    assert rows_of_kafka_python(log) == expected


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_is_byte_for_byte_what_the_house_writes(codec: Codec) -> None:
    rows: list[Row] = [(b"k%d" % index, b"v" * index, None, NOW_MS + index % 7) for index in range(300)]
    records = [Record(Offset(0), time or 0, key, value) for key, value, _, time in rows]
    assert encoded(rows, codec=codec) == [build_batch(records, codec=codec)]


def test_batches_are_filled_up_to_their_limit() -> None:
    rows: list[Row] = [(None, bytes(1000), None, NOW_MS)] * 1000
    batches = encoded(rows, batch_bytes_max=100_000)
    assert all(95_000 < len(batch) <= 100_000 for batch in batches[:-1])
    assert sum(parse_only_header(batch).record_count for batch in batches) == 1000


def test_a_record_that_is_alone_may_be_larger_than_batches_of_many() -> None:
    small: Row = (None, bytes(100), None, NOW_MS)
    large: Row = (None, bytes(2_000), None, NOW_MS)
    batches = encoded(
        [small, large, large, small, small], batch_bytes_max=1_000, single_record_batch_bytes_max=3_000
    )
    assert [parse_only_header(batch).record_count for batch in batches] == [1, 1, 1, 2]
    with pytest.raises(RecordTooLarge, match="and the limit is 2000"):
        encoded([small, large], batch_bytes_max=1_000, single_record_batch_bytes_max=2_000)


def test_the_largest_record_that_fits_is_written_a_larger_one_refused() -> None:
    limit = len(build_batch([Record(Offset(0), NOW_MS, None, bytes(5000))]))
    rows: list[Row] = [(None, b"", None, 0), (None, bytes(5000), None, NOW_MS), (None, b"", None, 5)]
    assert [len(batch) for batch in encoded(rows, batch_bytes_max=limit)][1] == limit
    rows[1] = (None, bytes(5001), None, NOW_MS)
    with pytest.raises(
        RecordTooLarge, match=f"row 1 needs a batch of {limit + 1} bytes, and the limit is {limit}"
    ):
        encoded(rows, batch_bytes_max=limit)


@pytest.mark.parametrize("codec", Codec)
def test_what_a_codec_makes_larger_still_fits(codec: Codec) -> None:
    noise = np.random.default_rng(1).bytes(20_000)
    limit = len(build_batch([Record(Offset(0), NOW_MS, None, noise)]))
    (batch,) = encoded([(None, noise, None, NOW_MS)], codec=codec, batch_bytes_max=limit)
    assert len(batch) <= limit
    assert [record.value for record in iterate_records(batch, limit_bytes=LIMIT_BYTES)] == [noise]


def test_columns_may_be_left_out_sliced_chunked_and_of_other_types() -> None:
    values = pa.chunked_array([pa.array(["no", "a"]), pa.array(["b", None])]).slice(1)
    keys = pa.array([b"no", b"no", b"1", b"2", None], pa.large_binary()).slice(2)
    (batch,) = encode(keys, values, None, None, codec=Codec.NONE, batch_bytes_max=1000, now_ms=NOW_MS)
    found = [
        (record.key, record.value, record.timestamp) for record in iterate_records(batch, limit_bytes=1000)
    ]
    assert found == [(b"1", b"a", NOW_MS), (b"2", b"b", NOW_MS), (None, None, NOW_MS)]
    (batch,) = encode(None, values, None, None, codec=Codec.NONE, batch_bytes_max=1000, now_ms=NOW_MS)
    assert [record.key for record in iterate_records(batch, limit_bytes=1000)] == [None] * 3
    assert encode(None, values.slice(3), None, None, codec=Codec.NONE, batch_bytes_max=1000) == []


def test_a_header_without_a_key_is_refused() -> None:
    headers = pa.array([[{"key": None, "value": b"1"}]], HEADERS_TYPE)
    with pytest.raises(ValueError, match="every header needs a key"):
        encode(None, pa.array([b""]), headers, None, codec=Codec.NONE, batch_bytes_max=1000)


def test_a_timestamp_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="row 1 has the timestamp"):
        encoded([(None, b"", None, NOW_MS), (None, b"", None, 2**62)])


# Partitions -------------------------------------------------------------------------------------------


def hashes(keys: list[bytes]) -> list[int]:
    found: list[int] = murmur2(binary_column(pa.array(keys, pa.binary()))).view(np.int32).tolist()
    return found


def test_keys_hash_to_the_numbers_of_java_s_client() -> None:
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert hashes(list(known)) == list(known.values())


@settings(deadline=None, max_examples=80)
@given(keys=st.lists(texts, max_size=40), partitions=st.integers(1, 1000))
def test_keys_go_where_kafka_python_sends_them(keys: list[bytes], partitions: int) -> None:
    from kafka.partitioner.default import murmur2 as of_kafka_python

    expected = [(of_kafka_python(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert assign_partitions(pa.array(keys, pa.binary()), partitions).tolist() == expected
    padded = pa.array([b"before", *keys, b"behind"], pa.binary()).slice(1, len(keys))
    assert assign_partitions(padded, partitions).tolist() == expected


def test_records_without_a_key_stay_together_and_reach_every_partition() -> None:
    chosen = assign_partitions(pa.nulls(30_000, pa.binary()), 3, first=1)
    assert chosen.tolist() == [1] * 10_000 + [2] * 10_000 + [0] * 10_000
    assert assign_partitions(None, 8, rows=STICKY_ROWS_MIN, first=5).tolist() == [5] * STICKY_ROWS_MIN
    mixed = assign_partitions(pa.array([b"abc", None, b"abc", None], pa.binary()), 7, first=3).tolist()
    assert mixed == [479470107 % 7, 3, 479470107 % 7, 3]
