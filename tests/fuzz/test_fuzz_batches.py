"""Mutated batches: whatever the bytes, the answer is records or CorruptData, within memory and time."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.protocol.batches import (
    HEADER_BYTES,
    crc_matches,
    parse_header,
    seal_in_place,
    split_batches,
    with_log_append_time,
)
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

LIMIT_BYTES = 256 * 1024
EXAMPLES = 400

SEEDS = [
    build_batch(
        [
            Record(Offset(0), 1_700_000_000_000, b"key", b"value" * 30, (("trace", b"1"), ("empty", None))),
            Record(Offset(1), 1_700_000_000_007, None, None),
            Record(Offset(2), 1_699_999_999_000, b"", b""),
        ],
        codec=codec,
        producer_id=5,
        producer_epoch=0,
        base_sequence=0,
    )
    for codec in Codec
]

READERS: list[Callable[[bytes], object]] = [
    lambda batch: list(iterate_records(batch, limit_bytes=LIMIT_BYTES)),
    lambda batch: list(iterate_records(batch, limit_bytes=LIMIT_BYTES, strict=True)),
    lambda batch: keys_missing(batch, limit_bytes=LIMIT_BYTES),
    lambda batch: list(timed_records(batch, limit_bytes=LIMIT_BYTES)[1]),
    lambda batch: recompress(batch, Codec.GZIP, limit_bytes=LIMIT_BYTES),
    lambda batch: with_log_append_time(batch, 1),
]

byte_changes = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6)


def mutated(seed: bytes, changes: list[tuple[int, int]], *, start: int = 0) -> bytearray:
    batch = bytearray(seed)
    for at, byte in changes:
        batch[start + at % (len(batch) - start)] = byte
    return batch


def read_every_way(batch: bytes) -> None:
    for reader in READERS:
        try:
            reader(batch)
        except CorruptData:
            continue


@settings(max_examples=EXAMPLES, deadline=2000)
@given(seed=st.sampled_from(SEEDS), changes=byte_changes)
def test_a_mutated_batch_whose_checksum_was_mended_is_records_or_corrupt(
    seed: bytes, changes: list[tuple[int, int]]
) -> None:
    batch = mutated(seed, changes)
    seal_in_place(batch)

    read_every_way(bytes(batch))


@settings(max_examples=EXAMPLES, deadline=2000)
@given(seed=st.sampled_from(SEEDS), changes=byte_changes)
def test_mutated_records_under_an_honest_header_are_records_or_corrupt(
    seed: bytes, changes: list[tuple[int, int]]
) -> None:
    batch = mutated(seed, changes, start=HEADER_BYTES)
    seal_in_place(batch)

    read_every_way(bytes(batch))


@settings(max_examples=EXAMPLES, deadline=2000)
@given(seed=st.sampled_from(SEEDS), payload=st.binary(max_size=200), count=st.integers(0, 4))
def test_arbitrary_records_under_an_honest_header_are_records_or_corrupt(
    seed: bytes, payload: bytes, count: int
) -> None:
    batch = bytearray(seed[:HEADER_BYTES] + payload)
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big")
    batch[23:27] = max(0, count - 1).to_bytes(4, "big")
    seal_in_place(batch)

    read_every_way(bytes(batch))


@settings(max_examples=EXAMPLES)
@given(seed=st.sampled_from(SEEDS), at=st.integers(17, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_never_passes_the_checksum(seed: bytes, at: int, bit: int) -> None:
    batch = bytearray(seed)
    batch[17 + (at - 17) % (len(batch) - 17)] ^= 1 << bit

    assert not crc_matches(batch, parse_header(batch))


@settings(max_examples=EXAMPLES)
@given(
    seeds=st.lists(st.sampled_from(SEEDS), max_size=4),
    changes=byte_changes,
    cut=st.integers(0, 3000),
)
def test_a_walk_over_anything_ends_and_stays_inside_the_buffer(
    seeds: list[bytes], changes: list[tuple[int, int]], cut: int
) -> None:
    joined = b"".join(seeds)
    buffer = mutated(joined, changes)[:cut] if joined else bytearray()
    walk = split_batches(buffer)
    position = 0
    try:
        for at, header in walk:
            assert at == position
            position += header.size
    except CorruptData:
        assert len(buffer) - position >= HEADER_BYTES
    assert walk.position == position <= len(buffer)


@settings(max_examples=EXAMPLES)
@given(buffer=st.binary(max_size=300))
def test_arbitrary_bytes_are_a_header_or_corrupt(buffer: bytes) -> None:
    try:
        header = parse_header(buffer)
    except CorruptData:
        return
    assert header.size >= HEADER_BYTES
    read_every_way(buffer)
