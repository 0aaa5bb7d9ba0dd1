"""Decoding against two readers that go record by record, on batches that are sound and that are not."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.protocol.batches import HEADER_BYTES, seal_in_place, split_batches
from penstock.protocol.compression import Codec, compress, decompress
from penstock.spark.records.decode import ColumnSelection
from penstock.spark.records.record_starts import LANE_SIZES
from tests.unit.spark.records.decode_cases import (
    SMALL_LANES,
    check_against_house,
    chunks,
    pieces_of,
    rows_in,
    rows_of_house,
    rows_of_kafka_python,
    sealed,
)


def examples(count: int) -> settings:
    # The chunks are large on purpose.
    return settings(
        deadline=None,
        max_examples=count,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


changes = st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 255)), min_size=1, max_size=4)


@examples(80)
@given(data=chunks(), in_lanes=st.booleans())
def test_sound_batches_are_read_as_others_read_them(data: bytes, in_lanes: bool) -> None:
    rows = rows_in(pieces_of(data, lanes=SMALL_LANES if in_lanes else LANE_SIZES))
    assert rows == rows_of_house(data)
    assert rows == rows_of_kafka_python(data)


@examples(80)
@given(
    data=chunks(),
    bounds=st.tuples(st.integers(-2, 60), st.integers(-2, 60)),
    columns=st.builds(ColumnSelection, *[st.booleans()] * 5),
)
def test_any_range_and_any_columns_agree_with_the_whole(
    data: bytes, bounds: tuple[int, int], columns: ColumnSelection
) -> None:
    whole = rows_of_house(data)
    base = next(split_batches(data))[1].base_offset
    start, end = max(base + min(bounds), 0), base + max(bounds)
    decoded = pieces_of(data, columns, start=start, end=end)
    expected = [row for row in whole if start <= row[0] < end]
    assert [offset for piece in decoded for offset in piece.offsets.to_pylist()] == [
        row[0] for row in expected
    ]
    if columns.value:
        found = [value for piece in decoded for value in piece.values.to_pylist()]  # type: ignore[union-attr]
        assert found == [row[4] for row in expected]


@examples(300)
@given(data=chunks(batches_max=3), mutation=changes, in_lanes=st.booleans())
def test_mutated_records_are_refused_or_read_as_the_house_reads_them(
    data: bytes, mutation: list[tuple[int, int]], in_lanes: bool
) -> None:
    """Uncompressed payloads are changed and sealed again, so that it is the records that are wrong."""
    damaged = b"".join(
        mutated_batch(data[at : at + header.size], mutation) for at, header in split_batches(data)
    )
    check_against_house(damaged, in_lanes)


@examples(200)
@given(data=chunks(batches_max=2), mutation=changes, in_lanes=st.booleans())
def test_mutated_bytes_are_refused_or_read_as_the_reference_does(
    data: bytes, mutation: list[tuple[int, int]], in_lanes: bool
) -> None:
    """Headers and compressed frames are changed as well, lengths and base offsets left as they are."""
    pieces = []
    for at, header in split_batches(data):
        batch = bytearray(data[at : at + header.size])
        for place, byte in mutation:
            batch[12 + place % (len(batch) - 12)] = byte
        pieces.append(sealed(batch))
    check_against_house(b"".join(pieces), in_lanes)


def mutated_batch(batch: bytes, mutation: list[tuple[int, int]]) -> bytes:
    codec = Codec(batch[22] & 7)
    if len(batch) == HEADER_BYTES:
        return batch
    payload = bytearray(decompress(codec, batch[HEADER_BYTES:], limit_bytes=1 << 26))
    for place, byte in mutation if payload else ():
        payload[place % len(payload)] = byte
    framed = compress(codec, payload)
    changed = bytearray(batch[:HEADER_BYTES] + framed)
    changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
    seal_in_place(changed)
    return bytes(changed)
