"""Batches come out as Arrow what they went in as, whatever shape they have."""

import pyarrow as pa
import pytest

from penstock.errors import CorruptData
from penstock.protocol.batches import (
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
)
from penstock.protocol.compression import Codec
from penstock.protocol.records import Record, build_batch
from penstock.spark.records.decode import ColumnSelection, RecordBatchDecoder
from penstock.types import Offset, ProducerId
from tests.unit.spark.records.decode_cases import (
    FOREVER,
    LIMIT_BYTES,
    Fetched,
    Made,
    Stamp,
    end_transaction,
    made_batch,
    pieces_of,
    rows_in,
    rows_of_house,
    sealed,
)

NOW_MS = 1_700_000_000_000
NOTHING = ColumnSelection(key=False, value=False, headers=False, timestamp=False, timestamp_type=False)


def numbered(count: int, first: int = 0, *, value_bytes: int = 100, **options: int) -> bytes:
    records = [
        Record(
            Offset(0), NOW_MS + index // 3, b"key %d" % (first + index), b"%d" % index * (value_bytes // 4)
        )
        for index in range(count)
    ]
    return build_batch(records, base_offset=first, codec=options.get("codec", 0))


def of_producer(producer: int, offset: int, count: int = 2) -> bytes:
    stamp = Stamp(offset, attributes=TRANSACTIONAL_BIT, producer_id=producer)
    return made_batch([Made(index, value=b"by %d" % producer) for index in range(count)], stamp)


def offsets(data: bytes, **how: object) -> list[int]:
    return [row[0] for row in rows_in(pieces_of(data, **how))]  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_of_every_codec_is_read(codec: Codec) -> None:
    data = numbered(200, codec=codec) + numbered(3, 200) + numbered(50, 203, codec=codec)
    assert rows_in(pieces_of(data)) == rows_of_house(data)


def test_many_small_batches_come_out_as_one_large_piece() -> None:
    data = b"".join(numbered(10, first) for first in range(0, 20_000, 10))
    decoded = pieces_of(data)
    assert [len(piece.offsets) for piece in decoded] == [20_000]
    assert rows_in(decoded) == rows_of_house(data)


@pytest.mark.parametrize(("value_bytes", "count"), [(8, 3000), (100, 3000), (1000, 2000), (9000, 200)])
def test_large_batches_of_uneven_records_are_read(value_bytes: int, count: int) -> None:
    data = b"".join(numbered(count, first, value_bytes=value_bytes) for first in (0, count))
    assert rows_in(pieces_of(data)) == rows_of_house(data)


def test_values_that_are_batches_themselves_do_not_mislead() -> None:
    inner = numbered(20)
    records = [Made(index, index, b"k" * (index % 50), inner[index % 70 :]) for index in range(1500)]
    data = made_batch(records)
    assert rows_in(pieces_of(data)) == rows_of_house(data)


def test_pieces_are_bounded_in_rows_and_bytes() -> None:
    data = b"".join(numbered(1000, first, value_bytes=1000) for first in range(0, 40_000, 1000))
    decoded = pieces_of(data, ColumnSelection(headers=False))
    assert [piece.next_offset for piece in decoded][-1] == 40_000
    assert sum(len(piece.offsets) for piece in decoded) == 40_000
    assert all(len(piece.offsets) <= 32_768 for piece in decoded)
    assert all(piece.values is not None and piece.values.nbytes < 20 << 20 for piece in decoded)


def test_only_wanted_columns_are_there() -> None:
    (decoded,) = pieces_of(numbered(5), ColumnSelection(True, False, False, False, False))
    assert decoded.keys is not None
    assert decoded[1:3] == (None, None)
    assert decoded.values is None
    assert decoded.headers is None


def test_what_is_damaged_is_refused_whichever_columns_are_wanted() -> None:
    broken = made_batch([Made(0, headers=((b"", b""),))])
    # The header's value now claims more bytes than there are.
    damaged = sealed(broken[:-1] + b"\x7e")
    for columns in (NOTHING, ColumnSelection()):
        with pytest.raises(CorruptData):
            pieces_of(damaged, columns)


def test_nulls_are_not_empty() -> None:
    data = made_batch([Made(0, 0, None, b""), Made(1, 0, b"", None), Made(2, 0, None, None)])
    assert [row[3:5] for row in rows_in(pieces_of(data))] == [(None, b""), (b"", None), (None, None)]


def test_a_record_without_headers_has_null_and_not_an_empty_list() -> None:
    (decoded,) = pieces_of(made_batch([Made(0), Made(1, headers=((b"a", None), (b"\xff", b"1"))), Made(2)]))
    assert decoded.headers is not None
    expected = [{"key": "a", "value": None}, {"key": "\ufffd", "value": b"1"}]
    assert decoded.headers.to_pylist() == [None, expected, None]


def test_a_record_with_very_many_headers_is_read() -> None:
    headers = tuple((b"key %d" % index, b"value") for index in range(20_000))
    data = made_batch([Made(0, headers=headers), Made(1, headers=headers[:3])])
    assert rows_in(pieces_of(data)) == rows_of_house(data)


def test_the_broker_s_time_replaces_that_of_the_records() -> None:
    stamp = Stamp(0, NOW_MS, NOW_MS + 99, LOG_APPEND_TIME_BIT)
    data = made_batch([Made(0, 5), Made(1, 7)], stamp) + made_batch([Made(0, 5)], Stamp(2))
    times = [row[1:3] for row in rows_in(pieces_of(data))]
    assert times == [(NOW_MS + 99, 1), (NOW_MS + 99, 1), (NOW_MS + 5, 0)]


def test_timestamps_count_from_the_delete_horizon_where_there_is_one() -> None:
    stamp = Stamp(0, NOW_MS + 86_400_000, NOW_MS, DELETE_HORIZON_BIT)
    data = made_batch([Made(0, -86_400_000, b"k", None)], stamp)
    assert [row[1] for row in rows_in(pieces_of(data))] == [NOW_MS]


def test_a_timestamp_beyond_all_timestamps_is_corrupt() -> None:
    data = made_batch([Made(0, 0), Made(1, 2**62)], Stamp(0, 2**62))
    with pytest.raises(CorruptData):
        pieces_of(data, NOTHING)


def test_gaps_and_emptied_batches_are_passed_over() -> None:
    kept = made_batch([Made(3), Made(9)], Stamp(10, offsets_behind=5))
    emptied = made_batch([], Stamp(30, offsets_behind=9), Codec.ZSTD)
    decoded = pieces_of(kept + emptied)
    assert [row[0] for row in rows_in(decoded)] == [13, 19]
    assert decoded[-1].next_offset == 40


def test_a_cut_last_batch_is_left_for_the_next_fetch() -> None:
    whole, next_one = numbered(10), numbered(10, 10)
    for cut in (1, 8, 60, 61, len(next_one) - 1):
        decoded = pieces_of(whole + next_one[:cut])
        assert [piece.next_offset for piece in decoded] == [10]
    assert pieces_of(whole[:-1]) == []
    assert pieces_of(b"") == []


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_limits_in_the_middle_of_batches_are_kept(codec: Codec) -> None:
    data = b"".join(numbered(10, first, codec=codec) for first in (0, 10, 20))
    for start, end in [(0, 30), (3, 17), (5, 6), (10, 20), (29, 30), (0, 1)]:
        decoded = pieces_of(data, start=start, end=end)
        assert [row[0] for row in rows_in(decoded)] == list(range(start, end))
        assert decoded[-1].next_offset == end


def test_a_range_without_records_still_makes_progress() -> None:
    data = made_batch([Made(0), Made(50)], Stamp(0)) + made_batch([Made(0)], Stamp(100))
    decoded = pieces_of(data, start=10, end=20)
    assert [(len(piece.offsets), piece.next_offset) for piece in decoded] == [(0, 20)]
    decoded = pieces_of(made_batch([Made(0)], Stamp(100)), start=60, end=70)
    assert [(len(piece.offsets), piece.next_offset) for piece in decoded] == [(0, 70)]
    assert decoded[0].values is not None
    assert decoded[0].values.type == pa.binary()


def test_a_wrong_checksum_is_found_in_any_batch() -> None:
    data = bytearray(b"".join(numbered(10, first) for first in range(0, 100, 10)))
    data[-1] ^= 1
    with pytest.raises(CorruptData, match="offset 90 does not match its checksum"):
        pieces_of(bytes(data))
    assert offsets(bytes(data), end=90) == list(range(90))


def test_batches_out_of_order_are_refused() -> None:
    with pytest.raises(CorruptData, match="come before"):
        pieces_of(numbered(10, 10) + numbered(10, 0))


def test_what_expands_beyond_the_limit_is_refused() -> None:
    bomb = made_batch([Made(0, value=bytes(2 * LIMIT_BYTES))], codec=Codec.ZSTD)
    with pytest.raises(CorruptData, match="expands beyond the limit"):
        pieces_of(bomb)


def test_an_uncompressed_batch_may_be_larger_than_the_limit_on_expansion() -> None:
    value = bytes(2 * LIMIT_BYTES)
    assert rows_in(pieces_of(made_batch([Made(0, value=value)])))[0][4] == value


def test_a_header_that_announces_too_many_records_costs_nothing() -> None:
    batch = bytearray(made_batch([Made(0)], Stamp(offsets_behind=2**31 - 2)))
    batch[57:61] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(CorruptData, match="more records than it can hold"):
        pieces_of(sealed(batch))


# Transactions ---------------------------------------------------------------------------------------


def test_markers_are_never_rows() -> None:
    data = of_producer(1, 0) + end_transaction(2, 1, commit=True) + of_producer(1, 3)
    for read_committed in (False, True):
        assert offsets(data, read_committed=read_committed) == [0, 1, 3, 4]
    decoded = pieces_of(end_transaction(7, 1, commit=False))
    assert [(len(piece.offsets), piece.next_offset) for piece in decoded] == [(0, 8)]


def test_aborted_transactions_are_left_out_up_to_their_marker() -> None:
    data = b"".join(
        (
            of_producer(1, 0),
            of_producer(2, 2),
            of_producer(1, 4),
            end_transaction(6, 1, commit=False),
            of_producer(1, 7),
            end_transaction(9, 1, commit=True),
            end_transaction(10, 2, commit=True),
        )
    )
    assert offsets(data, read_committed=True, aborted=((1, 0),)) == [2, 3, 7, 8]
    assert offsets(data, read_committed=True, aborted=((1, 4),)) == [0, 1, 2, 3, 7, 8]
    assert offsets(data, read_committed=False, aborted=()) == [0, 1, 2, 3, 4, 5, 7, 8]


def test_what_an_idempotent_producer_wrote_outside_of_transactions_stays() -> None:
    plain = made_batch([Made(0)], Stamp(5, producer_id=1))
    assert offsets(of_producer(1, 0) + plain, read_committed=True, aborted=((1, 0),)) == [5]


def test_a_transaction_may_span_chunks() -> None:
    decoder = RecordBatchDecoder(ColumnSelection(), read_committed=True)
    aborted = ((ProducerId(1), Offset(0)),)

    def read(data: bytes, start: int, named: tuple[tuple[ProducerId, Offset], ...]) -> list[int]:
        chunk = Fetched(memoryview(data), named)
        return [row[0] for row in rows_in(decoder.decode(chunk, Offset(start), FOREVER))]

    assert read(of_producer(1, 0) + of_producer(2, 2), 0, aborted) == [2, 3]
    assert read(of_producer(1, 4), 4, ()) == []
    ending = end_transaction(6, 1, commit=False) + of_producer(1, 7)
    assert read(ending, 6, aborted) == [7, 8]
    # Named again although it has ended.
    assert read(of_producer(1, 9), 9, aborted) == [9, 10]
    # Read once more from the beginning, it is what it was.
    assert read(of_producer(1, 0) + of_producer(2, 2), 0, aborted) == [2, 3]
