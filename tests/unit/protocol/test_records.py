"""The records of a batch: read, looked up, written, and refused when malformed."""

import struct
import warnings
from collections.abc import Callable

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.protocol.batches import HEADER, crc_matches, parse_header, seal_in_place, with_log_append_time
from penstock.protocol.compression import Codec
from penstock.protocol.records import (
    Record,
    build_batch,
    iterate_records,
    keys_missing,
    recompress,
    timed_records,
)
from penstock.types import Offset

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python 3.11 deprecated and 3.13 restored.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

LIMIT_BYTES = 1024 * 1024
SENT_MS = 1_700_000_000_000
TWO_RECORDS_HEX = (
    "000000000000000000000048ffffffff02fde865790000000000010000018bcfe568000000018bcfe56805"
    "ffffffffffffffffffffffffffff0000000212000000026b0476310018000a02010476320202680278"
)
COMMIT_MARKER_HEX = (
    "0000000000000002000000420000000402ad320ccb0030000000000000018bcfe568000000018bcfe568000"
    "0000000000003e80003ffffffff000000012000000008000000010c00000000000700"
)
# kafka-python needs a library for snappy that is not installed; aiokafka stands in for it.
KAFKA_PYTHON_CODECS = [codec for codec in Codec if codec is not Codec.SNAPPY]


def record(
    offset: int, timestamp: int, key: bytes | None = b"k", value: bytes | None = b"v", **headers: bytes | None
) -> Record:
    return Record(Offset(offset), timestamp, key, value, tuple(headers.items()))


def batch_of(payload: bytes, **fields: int) -> bytes:
    """A batch with a valid checksum whatever is inside. One record is announced unless told otherwise."""
    values = parse_header(bytes.fromhex(TWO_RECORDS_HEX))._asdict()
    values |= {"batch_length": 49 + len(payload), "last_offset_delta": 0, "record_count": 1} | fields
    batch = bytearray(HEADER.pack(*values.values()) + payload)
    seal_in_place(batch)
    return bytes(batch)


def times_in(batch: bytes) -> list[tuple[Offset, int]]:
    return list(timed_records(batch, limit_bytes=LIMIT_BYTES)[1])


def at_times(*timestamps: int, base_offset: int = 100, codec: Codec = Codec.NONE) -> bytes:
    records = [record(0, timestamp) for timestamp in timestamps]
    return build_batch(records, base_offset=base_offset, codec=codec)


nullable_bytes = st.none() | st.binary(max_size=300)
record_lists = st.lists(
    st.builds(
        Record,
        st.just(Offset(0)),
        st.integers(0, 2**50),
        nullable_bytes,
        nullable_bytes,
        st.lists(st.tuples(st.text(max_size=20), nullable_bytes), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


def numbered(records: list[Record], base_offset: int = 0) -> list[Record]:
    return [r._replace(offset=Offset(base_offset + index)) for index, r in enumerate(records)]


def as_ours(batch: DefaultRecordBatch | AiokafkaBatch) -> list[Record]:
    assert batch.validate_crc()
    return [Record(Offset(r.offset), r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]


def test_the_published_batch_is_written_and_read_exactly() -> None:
    records = [record(0, SENT_MS, b"k", b"v1"), record(1, SENT_MS + 5, None, b"v2", h=b"x")]

    assert build_batch(records).hex() == TWO_RECORDS_HEX
    assert (
        list(iterate_records(bytes.fromhex(TWO_RECORDS_HEX), limit_bytes=LIMIT_BYTES, strict=True)) == records
    )


def test_the_published_marker_is_written_and_read_exactly() -> None:
    marker = record(2, SENT_MS, bytes.fromhex("00000001"), bytes.fromhex("000000000007"))

    built = build_batch(
        [marker],
        base_offset=2,
        leader_epoch=4,
        producer_id=1000,
        producer_epoch=3,
        transactional=True,
        control=True,
    )

    assert built.hex() == COMMIT_MARKER_HEX
    assert list(iterate_records(built, limit_bytes=LIMIT_BYTES)) == [marker]


@pytest.mark.parametrize("codec", Codec)
@given(records=record_lists, base_offset=st.integers(0, 2**40))
def test_records_survive_a_round_trip(codec: Codec, records: list[Record], base_offset: int) -> None:
    batch = build_batch(records, codec=codec, base_offset=base_offset)

    assert list(iterate_records(batch, limit_bytes=LIMIT_BYTES, strict=True)) == numbered(
        records, base_offset
    )
    assert parse_header(batch).max_timestamp == max(r.timestamp for r in records)


@pytest.mark.parametrize("codec", KAFKA_PYTHON_CODECS)
@given(records=record_lists)
def test_kafka_python_and_we_read_each_others_batches(codec: Codec, records: list[Record]) -> None:
    assert as_ours(DefaultRecordBatch(build_batch(records, codec=codec))) == numbered(records)

    builder = DefaultRecordBatchBuilder(2, codec.value, False, -1, -1, -1, 10**6)
    for index, r in enumerate(records):
        builder.append(index, r.timestamp, r.key, r.value, list(r.headers))
    theirs = bytes(builder.build())
    assert list(iterate_records(theirs, limit_bytes=LIMIT_BYTES, strict=True)) == numbered(records)


@pytest.mark.parametrize("codec", Codec)
@given(records=record_lists)
def test_aiokafka_and_we_read_each_others_batches(codec: Codec, records: list[Record]) -> None:
    assert as_ours(AiokafkaBatch(build_batch(records, codec=codec))) == numbered(records)

    builder = AiokafkaBuilder(2, codec.value, 0, -1, -1, -1, 10**6)
    for index, r in enumerate(records):
        builder.append(index, r.timestamp, r.key, r.value, list(r.headers))
    theirs = bytes(builder.build())
    assert list(iterate_records(theirs, limit_bytes=LIMIT_BYTES, strict=True)) == numbered(records)


def test_an_idempotent_transactional_batch_carries_its_producer() -> None:
    batch = build_batch(
        [record(0, 1)], producer_id=7, producer_epoch=2, base_sequence=40, transactional=True, leader_epoch=3
    )

    header = parse_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 40)
    assert (header.is_transactional, header.is_control, header.leader_epoch) == (True, False, 3)


def test_under_log_append_time_every_record_has_the_brokers_time() -> None:
    built = build_batch([record(0, 10), record(1, 20)], log_append_time_ms=5000)
    stamped = with_log_append_time(build_batch([record(0, 10), record(1, 20)]), 5000)

    for batch in (built, bytes(stamped)):
        assert [r.timestamp for r in iterate_records(batch, limit_bytes=LIMIT_BYTES)] == [5000, 5000]
        assert times_in(batch) == [(0, 5000), (1, 5000)]


@pytest.mark.parametrize("codec", Codec)
def test_the_offset_and_time_of_each_record_are_read(codec: Codec) -> None:
    batch = at_times(10, 40, -1, codec=codec)

    assert times_in(batch) == [(100, 10), (101, 40), (102, -1)]


@pytest.mark.parametrize("codec", Codec)
def test_missing_keys_are_listed_by_index(codec: Codec) -> None:
    keys = [b"a", None, b"", None]
    batch = build_batch([record(0, 1, key) for key in keys], codec=codec, base_offset=50)

    assert keys_missing(batch) == [1, 3]


def test_a_compacted_topic_accepts_nothing_that_its_cleaner_could_not_read() -> None:
    value_longer_than_its_record = bytes.fromhex("12000000026b0c763100")

    with pytest.raises(CorruptData):
        keys_missing(batch_of(value_longer_than_its_record))


def test_gaps_left_by_compaction_are_read_but_not_accepted_from_clients() -> None:
    third_of_five = bytes.fromhex("12000004026b04763100")
    batch = batch_of(third_of_five, last_offset_delta=4, base_offset=10)

    assert [r.offset for r in iterate_records(batch, limit_bytes=LIMIT_BYTES)] == [12]
    with pytest.raises(CorruptData):
        list(iterate_records(batch, limit_bytes=LIMIT_BYTES, strict=True))


def test_a_client_cannot_hide_a_gap_behind_a_matching_count() -> None:
    starts_at_one = bytes.fromhex("12000002026b04763100")
    batch = batch_of(starts_at_one + starts_at_one, last_offset_delta=1, record_count=2)

    with pytest.raises(CorruptData, match="gap"):
        list(iterate_records(batch, limit_bytes=LIMIT_BYTES, strict=True))


def test_a_batch_emptied_by_compaction_has_no_records() -> None:
    for attributes in (0, 4):
        batch = batch_of(b"", record_count=0, last_offset_delta=4, attributes=attributes)

        assert list(iterate_records(batch, limit_bytes=LIMIT_BYTES)) == []
        assert times_in(batch) == []


def test_a_header_key_that_is_not_text_does_not_hide_the_record() -> None:
    batch = batch_of(bytes.fromhex("14000000026b010202ff01"))

    assert list(iterate_records(batch, limit_bytes=LIMIT_BYTES)) == [
        Record(Offset(0), SENT_MS, b"k", None, (("\ufffd", None),))
    ]


MALFORMED_PAYLOADS = {
    "nothing": ("", "ends inside a record"),
    "record beyond the batch": ("14000000026b04763100", "record of 10 bytes"),
    "record far beyond the batch": ("feffffff0f000000026b04763100", "record of 2147483647 bytes"),
    "negative record length": ("01000000026b04763100", "record of -1 bytes"),
    "record length zero": ("00", "ends inside a record"),
    "cut after the length": ("12", "record of 9 bytes"),
    "cut inside a varint": ("80", "ends inside a record"),
    "key beyond the record": ("120000007e6b04763100", "field of 63 bytes"),
    "key length below null": ("12000000036b04763100", "field of -2 bytes"),
    "value beyond the record": ("12000000026b0c763100", "field of 6 bytes"),
    "value length below null": ("0e000000026b0300", "field of -2 bytes"),
    "header count negative": ("12000000026b04763101", "-1 headers"),
    "header count beyond the record": ("12000000026b04763102", "1 headers"),
    "header count huge": ("1a000000026b047631feffffff0f", "2147483647 headers"),
    "header with null key": ("12000000026b01020101", "no key"),
    "header value beyond the record": ("14000000026b010202680c", "field of 6 bytes"),
    "fields end before the record": ("14000000026b0476310000", "fields of a record end"),
    "varint of six bytes": ("12000000ffffffffff01", "longer than 5 bytes"),
    "varint of more than 32 bits": ("16000000ffffffff7f00000000", "more than 32 bits"),
    "varlong of eleven bytes": ("2200ffffffffffffffffffff01000000000000", "longer than 10 bytes"),
    "varlong of more than 64 bits": ("2400ffffffffffffffffff7f00026b0476310000", "more than 64 bits"),
    "offset delta negative": ("12000001026b04763100", "offset delta -1"),
    "offset delta beyond the last": ("12000002026b04763100", "offset delta 1"),
    "bytes after the last record": ("12000000026b0476310000", "1 bytes follow"),
    "a second record that was not announced": ("12000000026b0476310012000002026b04763100", "10 bytes follow"),
}


@pytest.mark.parametrize(("payload", "reason"), MALFORMED_PAYLOADS.values(), ids=MALFORMED_PAYLOADS)
def test_a_malformed_record_is_corrupt(payload: str, reason: str) -> None:
    batch = batch_of(bytes.fromhex(payload))

    for strict in (False, True):
        with pytest.raises(CorruptData, match=reason):
            list(iterate_records(batch, limit_bytes=LIMIT_BYTES, strict=strict))
    with pytest.raises(CorruptData, match=reason):
        keys_missing(batch)


def test_the_record_that_the_malformed_ones_vary_is_fine_itself() -> None:
    batch = batch_of(bytes.fromhex("12000000026b04763100"))

    assert list(iterate_records(batch, limit_bytes=LIMIT_BYTES, strict=True)) == [
        record(0, SENT_MS, b"k", b"v1")
    ]


@pytest.mark.parametrize("deltas", ["0000", "0200", "0202"], ids=["equal", "descending", "equal and late"])
def test_offsets_inside_a_batch_ascend(deltas: str) -> None:
    payload = "".join(f"120000{delta}026b04763100" for delta in (deltas[:2], deltas[2:]))
    batch = batch_of(bytes.fromhex(payload), record_count=2, last_offset_delta=5)

    with pytest.raises(CorruptData, match="offset delta"):
        list(iterate_records(batch, limit_bytes=LIMIT_BYTES))


MALFORMED_HEADERS: dict[str, dict[str, int]] = {
    "magic 0": {"magic": 0},
    "magic 1": {"magic": 1},
    "magic 3": {"magic": 3},
    "negative count": {"record_count": -1},
    "count too large": {"record_count": 2},
    "count far too large": {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 1},
    "count too small": {"record_count": 0},
    "last offset delta negative": {"last_offset_delta": -1},
    "base offset overflow": {"base_offset": 2**63 - 1},
    "base offset negative": {"base_offset": -5},
    "timestamp overflow": {"base_timestamp": 2**63 - 1},
    "compression type 5": {"attributes": 5},
    "compression type 6": {"attributes": 6},
    "compression type 7": {"attributes": 7},
    "compression that does not match": {"attributes": 1},
}


@pytest.mark.parametrize("fields", MALFORMED_HEADERS.values(), ids=MALFORMED_HEADERS)
def test_a_malformed_header_is_corrupt_for_every_reader(fields: dict[str, int]) -> None:
    one_millisecond_later = bytes.fromhex("12000200026b04763100")
    batch = batch_of(one_millisecond_later, **fields)

    readers: list[Callable[[bytes], object]] = [
        lambda b: list(iterate_records(b, limit_bytes=LIMIT_BYTES)),
        keys_missing,
        times_in,
    ]
    for reader in readers:
        with pytest.raises(CorruptData):
            reader(batch)


def test_control_records_are_refused_from_clients() -> None:
    with pytest.raises(CorruptData, match="control"):
        iterate_records(bytes.fromhex(COMMIT_MARKER_HEX), limit_bytes=LIMIT_BYTES, strict=True)


def test_a_wrong_checksum_is_corrupt_before_any_record_is_read() -> None:
    damaged = bytearray.fromhex(TWO_RECORDS_HEX)
    damaged[-1] ^= 1

    with pytest.raises(CorruptData, match="checksum"):
        iterate_records(damaged, limit_bytes=LIMIT_BYTES)
    with pytest.raises(CorruptData, match="checksum"):
        recompress(damaged, Codec.ZSTD)


@pytest.mark.parametrize("codec", Codec)
def test_records_are_expanded_only_up_to_the_limit(codec: Codec) -> None:
    batch = build_batch([record(0, 1, b"k", bytes(100_000))], codec=codec)

    with pytest.raises(CorruptData, match="limit of 1000 bytes"):
        iterate_records(batch, limit_bytes=1000)
    with pytest.raises(CorruptData, match="limit of 1000 bytes"):
        recompress(batch, Codec.NONE if codec else Codec.GZIP, limit_bytes=1000)


@pytest.mark.parametrize("source", Codec)
@pytest.mark.parametrize("target", Codec)
def test_a_batch_is_recompressed_with_its_header_kept(source: Codec, target: Codec) -> None:
    records = [record(0, 1000 + n, b"k%d" % n, b"value " * 30, h=b"x") for n in range(20)]
    batch = build_batch(
        records,
        codec=source,
        base_offset=77,
        leader_epoch=5,
        producer_id=9,
        producer_epoch=1,
        base_sequence=12,
        transactional=True,
    )

    rewritten = recompress(memoryview(batch), target)

    before, after = parse_header(batch), parse_header(rewritten)
    kept = {"batch_length": 0, "crc": 0, "attributes": 0}
    assert after._replace(**kept) == before._replace(**kept)  # type: ignore[arg-type]
    assert (after.codec, after.is_transactional, after.size) == (target, True, len(rewritten))
    assert crc_matches(rewritten, after)
    assert list(iterate_records(rewritten, limit_bytes=LIMIT_BYTES)) == numbered(records, 77)


def test_recompressing_honours_the_level() -> None:
    words = b" ".join(b"%d" % (n * n) for n in range(5000))
    batch = build_batch([record(0, 1, b"k", words)])

    assert len(recompress(batch, Codec.GZIP, 9)) < len(recompress(batch, Codec.GZIP, 1))


def test_a_control_batch_is_never_compressed() -> None:
    marker = bytes.fromhex(COMMIT_MARKER_HEX)

    assert recompress(marker, Codec.ZSTD) == marker


def test_bytes_around_a_batch_are_corrupt() -> None:
    batch = bytes.fromhex(TWO_RECORDS_HEX)
    length_lies = bytearray(batch)
    struct.pack_into(">i", length_lies, 8, 73)

    for malformed in (batch + b"\x00", batch[:-1], batch[:40], b"", bytes(length_lies)):
        with pytest.raises(CorruptData):
            iterate_records(malformed, limit_bytes=LIMIT_BYTES)
        with pytest.raises(CorruptData):
            recompress(malformed, Codec.GZIP)
