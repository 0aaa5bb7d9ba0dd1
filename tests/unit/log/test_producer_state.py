"""Which batch of an idempotent producer is new, which is a repeat, and which is refused."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ApiError, CorruptData, ErrorCode
from penstock.log.producer_state import (
    SEQUENCE_MAX,
    ProducerLimits,
    ProducerRegistry,
    Producers,
    render_snapshot,
)
from penstock.protocol.batches import BatchHeader, parse_header
from penstock.types import Offset
from tests.unit.log.log_support import NOW_MS, batch_of

PRODUCER = 7


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = PRODUCER) -> BatchHeader:
    values = [b"x"] * count
    return parse_header(batch_of(values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence))


def written(*sequences: int, epoch: int = 0) -> Producers:
    producers = Producers()
    for offset, sequence in enumerate(sequences):
        producers.replay(header(sequence, epoch=epoch), Offset(100 + offset))
    return producers


def refusal(producers: Producers, asked: BatchHeader) -> ErrorCode:
    with pytest.raises(ApiError) as raised:
        producers.check(asked)
    return raised.value.code


def test_the_next_batch_is_new() -> None:
    assert written(0, 1, 2).check(header(3)) is None


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert Producers().check(header(41)) is None


@pytest.mark.parametrize("back", range(5))
def test_each_of_the_last_five_batches_is_recognised(back: int) -> None:
    repeated = written(*range(9)).check(header(8 - back))
    assert repeated is not None
    assert (repeated.base_offset, repeated.last_offset) == (108 - back, 108 - back)


def test_the_sixth_is_not() -> None:
    assert refusal(written(*range(9)), header(3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_refused() -> None:
    assert refusal(written(0), header(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_that_only_begins_like_an_earlier_one_is_refused() -> None:
    assert refusal(written(0, 1), header(0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_older_epoch_is_refused() -> None:
    assert refusal(written(0, epoch=3), header(1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_newer_epoch_begins_at_zero() -> None:
    producers = written(0, 1, 2)
    assert producers.check(header(0, epoch=1)) is None
    assert refusal(producers, header(3, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_newer_epoch_forgets_the_batches_of_the_older() -> None:
    producers = written(0, 1, 2)
    producers.replay(header(0, epoch=1), Offset(103))
    assert refusal(producers, header(2, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_begin_again_after_the_largest() -> None:
    producers = Producers()
    producers.replay(header(SEQUENCE_MAX - 1, 4), Offset(0))
    assert producers.check(header(2)) is None
    repeated = producers.check(header(SEQUENCE_MAX - 1, 4))
    assert repeated is not None
    assert (repeated.first_sequence, repeated.last_sequence) == (SEQUENCE_MAX - 1, 1)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=40))
def test_a_snapshot_comes_back_as_it_was(steps: list[tuple[int, int]]) -> None:
    producers, nexts, offset = Producers(), dict.fromkeys(range(5), SEQUENCE_MAX - 3), 0
    for producer, count in steps:
        producers.replay(header(nexts[producer], count, producer=producer), Offset(offset))
        nexts[producer] = (nexts[producer] + count) % (SEQUENCE_MAX + 1)
        offset += count
    again = Producers.from_bytes(producers.to_bytes())
    assert again.to_bytes() == producers.to_bytes()
    assert [(key, list(p.batches)) for key, p in again.items()] == [
        (key, list(p.batches)) for key, p in producers.items()
    ]


def test_a_snapshot_has_kafkas_layout() -> None:
    content = written(4).to_bytes()
    version, checksum, count = struct.unpack_from(">hIi", content)
    row = struct.unpack_from(">qhiqiqiq", content, 10)
    assert (version, count, len(content)) == (1, 1, 10 + 46)
    assert checksum == crc32c(content[6:])
    assert row == (PRODUCER, 0, 4, 100, 0, NOW_MS, -1, -1)


@pytest.mark.parametrize("at", range(56))
def test_a_flipped_bit_in_a_snapshot_is_noticed(at: int) -> None:
    content = bytearray(written(4).to_bytes())
    content[at] ^= 4
    with pytest.raises(CorruptData):
        Producers.from_bytes(bytes(content))


@pytest.mark.parametrize("size", [0, 5, 9, 30])
def test_a_snapshot_cut_short_is_noticed(size: int) -> None:
    with pytest.raises(CorruptData):
        Producers.from_bytes(written(4).to_bytes()[:size])


def test_the_producer_that_wrote_least_recently_is_forgotten_first() -> None:
    producers = Producers(ProducerLimits(per_partition_max=2))
    for offset, producer in enumerate((1, 2, 1, 3)):
        producers.replay(header(offset, producer=producer), Offset(offset))
    assert [key for key, _ in producers.items()] == [1, 3]
    registry = ProducerRegistry(ProducerLimits(per_partition_max=2))
    producers.share(registry)
    producers.replay(header(0, producer=4), Offset(4))
    assert [key for key, _ in producers.items()] == [3, 4]
    assert (len(registry), registry.evicted, registry.last_evicted_from) == (2, 1, producers)


def test_a_producer_is_forgotten_when_it_has_long_been_silent() -> None:
    producers = written(0)
    producers.expire(now_ms=NOW_MS, idle_ms_max=1000)
    producers.expire(now_ms=NOW_MS + 1000, idle_ms_max=1000)
    assert len(producers) == 1
    producers.expire(now_ms=NOW_MS + 1001, idle_ms_max=1000)
    assert len(producers) == 0


def test_a_producer_that_writes_old_records_is_not_forgotten_for_their_age() -> None:
    producers = written(0)
    producers.expire(now_ms=NOW_MS + 10**12, idle_ms_max=1000)
    assert len(producers) == 1


def test_beyond_the_limit_the_longest_idle_producer_of_all_logs_is_forgotten() -> None:
    registry = ProducerRegistry(ProducerLimits(total_max=3))
    first, second = Producers(), Producers()
    first.share(registry)
    second.share(registry)
    for producers, producer in ((first, 1), (second, 2), (first, 3), (first, 1), (second, 4)):
        sequence = 1 if producer in dict(producers.items()) else 0
        producers.replay(header(sequence, producer=producer), Offset(0))
    assert [sorted(dict(each.items())) for each in (first, second)] == [[1, 3], [4]]
    assert len(registry) == 3
    assert second.check(header(7, producer=2)) is None, "it may begin anywhere, as one that expired"
    assert first.check(header(1, producer=1)) is not None, "who wrote lately is still recognised"
    assert (registry.evicted, registry.last_evicted_from) == (1, second)
    first.expire(now_ms=NOW_MS, idle_ms_max=-1)
    first.expire(now_ms=NOW_MS + 1, idle_ms_max=0)
    assert (len(first), registry.evicted) == (0, 1), "those whose time is up are not forgotten early"


def test_producers_found_at_a_start_count_and_those_of_a_closed_log_do_not() -> None:
    registry = ProducerRegistry(ProducerLimits(total_max=4))
    content = Producers()
    for producer in range(3):
        content.replay(header(0, producer=producer), Offset(producer))
    first, second = (Producers.from_bytes(content.to_bytes()) for _ in range(2))
    first.share(registry)
    second.share(registry)
    assert (len(first), len(second), len(registry)) == (1, 3, 4)
    second.share(None)
    assert len(registry) == 1
    second.replay(header(1, producer=0), Offset(9))
    assert len(registry) == 1, "a log that is closed takes nobody's place"


def test_expired_producers_make_room() -> None:
    registry = ProducerRegistry(ProducerLimits(total_max=5))
    producers = written(0)
    producers.share(registry)
    producers.expire(now_ms=NOW_MS, idle_ms_max=10)
    producers.expire(now_ms=NOW_MS + 11, idle_ms_max=10)
    assert (len(producers), len(registry)) == (0, 0)


def test_a_snapshot_is_as_of_when_it_was_taken_whenever_it_is_rendered() -> None:
    producers = written(0, 1)
    expected = producers.to_bytes()
    taken = producers.snapshot()
    producers.replay(header(2), Offset(102))
    producers.replay(header(0, producer=PRODUCER + 1), Offset(103))
    assert render_snapshot(taken) == expected
    assert producers.to_bytes() != expected
