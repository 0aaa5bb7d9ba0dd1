"""Positions, ranges, and how much one trigger takes."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.spark.source.offsets import (
    OffsetRange,
    available,
    from_document,
    limit_offsets,
    offsets_within_bytes,
    plan_batch,
    plan_stream_batch,
    split_ranges,
    to_document,
)
from penstock.types import Offset, TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

partitions = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 12))
positions = st.dictionaries(partitions, st.integers(0, 1 << 62), max_size=12)
ranges = st.lists(
    st.builds(
        lambda p, s, n: OffsetRange(p, Offset(s), Offset(s + n)),
        partitions,
        st.integers(0, 99),
        st.integers(0, 9999),
    ),
    max_size=8,
    unique_by=lambda each: each.partition,
)


def a_range(partition: TopicPartition, start: int, end: int) -> OffsetRange:
    return OffsetRange(partition, Offset(start), Offset(end))


# JSON


@settings(deadline=None)
@given(positions)
def test_a_position_survives_the_checkpoint(position: Mapping[TopicPartition, int]) -> None:
    assert from_document(json.loads(json.dumps(to_document(position)))) == position


@settings(deadline=None)
@given(positions, st.randoms())
def test_equal_positions_are_equal_texts(position: dict[TopicPartition, int], random: object) -> None:
    shuffled = dict(sorted(position.items(), key=lambda item: hash((item, id(random)))))
    assert json.dumps(to_document(shuffled)) == json.dumps(to_document(position))


def test_the_form_is_that_of_the_official_source_with_partitions_in_order() -> None:
    position = {TopicPartition("b", 10): 7, TopicPartition("b", 9): 3, A0: 1}
    assert json.dumps(to_document(position)) == '{"a": {"0": 1}, "b": {"9": 3, "10": 7}}'


@pytest.mark.parametrize("document", [{"partition": 3}, {"a": {"x": 1}}, {"a": {"0": None}}])
def test_a_checkpoint_of_another_source_is_recognised(document: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="belongs to another source"):
        from_document(document)


# Plans


def test_a_plan_reads_what_lies_between() -> None:
    found = plan_stream_batch({A0: 5, A1: 7}, {A0: 9, A1: 7}, {A0: 0, A1: 0})
    assert found == ([a_range(A0, 5, 9)], [])


def test_a_new_partition_is_read_from_its_beginning() -> None:
    assert plan_stream_batch({A0: 5}, {A0: 5, A1: 4}, {A0: 0, A1: 0}) == ([a_range(A1, 0, 4)], [])


def test_a_new_partition_that_has_lost_records_is_told() -> None:
    found = plan_stream_batch({A0: 5}, {A0: 5, A1: 9}, {A0: 0, A1: 3})
    assert found.ranges == [a_range(A1, 3, 9)]
    assert found.losses == ["a-1 is new to this query and begins at offset 3 instead of 0"]


def test_a_deleted_partition_is_told() -> None:
    assert plan_stream_batch({A0: 5, B0: 2}, {A0: 6}, {A0: 0}) == (
        [a_range(A0, 5, 6)],
        ["b-0 has been deleted"],
    )


@pytest.mark.parametrize("position", [7, 50])
def test_a_partition_that_went_back_is_told_and_not_read_again(position: int) -> None:
    found = plan_stream_batch({A0: position}, {A0: 6}, {A0: 0})
    assert found.ranges == []
    assert len(found.losses) == 1
    assert f"read up to offset {position} and its log was truncated to offset 6" in found.losses[0]


def test_a_batch_is_kept_within_what_there_is() -> None:
    assert plan_batch({A0: 2}, {A0: 5}, {A0: 2}, {A0: 5}) == ([a_range(A0, 2, 5)], [])
    found = plan_batch({A0: 2}, {A0: 9}, {A0: 4}, {A0: 6})
    assert found.ranges == [a_range(A0, 4, 6)]
    assert found.losses == [
        "offset 2 of a-0 is gone, retention removed it; its records begin at offset 4",
        "a-0 is to be read to offset 9 and ends at 6",
    ]
    with pytest.raises(ConfigError, match="a-0 is to be read from offset 7 to 6"):
        plan_batch({A0: 7}, {A0: 6}, {A0: 0}, {A0: 9})


def test_a_topic_that_was_made_anew_is_read_from_its_beginning() -> None:
    found = plan_stream_batch({A0: 5, B0: 5}, {A0: 9, B0: 9}, {A0: 0, B0: 0}, from_earliest=["a"])
    assert found == ([a_range(A0, 0, 9), a_range(B0, 5, 9)], [])


# Splitting


@settings(deadline=None)
@given(ranges, st.none() | st.integers(1, 40), st.none() | st.integers(1, 5000))
def test_pieces_are_the_whole(
    given_ranges: list[OffsetRange], tasks: int | None, records: int | None
) -> None:
    pieces = split_ranges(given_ranges, tasks_min=tasks, records_max=records)
    assert all(piece.size > 0 for piece in pieces)
    for whole in given_ranges:
        mine = [piece for piece in pieces if piece.partition == whole.partition]
        assert sum(piece.size for piece in mine) == whole.size
        assert [piece.start for piece in mine[1:]] == [piece.end for piece in mine[:-1]]
        if mine:
            assert (mine[0].start, mine[-1].end) == (whole.start, whole.end)


@settings(deadline=None)
@given(ranges, st.integers(1, 5000))
def test_no_piece_is_larger_than_allowed(given_ranges: list[OffsetRange], records: int) -> None:
    pieces = split_ranges(given_ranges, tasks_min=None, records_max=records)
    assert max((piece.size for piece in pieces), default=0) <= records


@pytest.mark.timeout(5)
def test_there_are_no_more_tasks_than_records() -> None:
    pieces = split_ranges([a_range(A0, 0, 5), a_range(A1, 7, 9)], tasks_min=2_000_000_000, records_max=None)
    assert [piece.size for piece in pieces] == [1] * 7


def test_the_largest_are_cut_to_reach_a_number_of_tasks() -> None:
    pieces = split_ranges([a_range(A0, 0, 900), a_range(A1, 0, 10)], tasks_min=4, records_max=None)
    assert [(p.partition, p.start, p.end) for p in pieces] == [
        (A0, 0, 300),
        (A0, 300, 600),
        (A0, 600, 900),
        (A1, 0, 10),
    ]


def test_enough_partitions_are_left_whole() -> None:
    whole = [a_range(A0, 0, 900), a_range(A1, 0, 10)]
    assert split_ranges(whole, tasks_min=2, records_max=None) == whole


# Limits


@settings(deadline=None)
@given(positions, st.data())
def test_a_limit_is_kept_and_something_is_always_read(
    latest: dict[TopicPartition, int], data: st.DataObject
) -> None:
    start = {p: data.draw(st.integers(0, end)) for p, end in latest.items() if data.draw(st.booleans())}
    most = data.draw(st.integers(1, 1000))
    waiting = available(start, latest, {})
    end = limit_offsets(start, latest, waiting, most)
    taken = {p: end[p] - start.get(p, 0) for p in latest}
    assert end.keys() == latest.keys()
    assert all(0 <= count <= latest[p] - start.get(p, 0) for p, count in taken.items())
    assert sum(taken.values()) == min(most, sum(waiting.values()))


def test_a_large_partition_does_not_starve_a_small_one() -> None:
    start, latest = {A0: 0, A1: 0}, {A0: 1_000_000, A1: 3}
    end = limit_offsets(start, latest, available(start, latest, {}), 100)
    assert end[A1] >= 1
    assert 90 <= end[A0] <= 99


def test_a_limit_below_the_number_of_partitions_takes_turns() -> None:
    latest = {A0: 10, A1: 10, B0: 10}
    position = dict.fromkeys(latest, 0)
    for _ in range(30):
        position = limit_offsets(position, latest, available(position, latest, {}), 1)
        assert max(position.values()) - min(position.values()) <= 2
    assert position == latest


def test_bytes_become_offsets_by_the_weight_of_records() -> None:
    assert offsets_within_bytes({A0: 100, A1: 100}, {A0: 10.0, A1: 30.0}, 2000) == 100
    assert offsets_within_bytes({A0: 100}, {A0: 10.0}, 5000) == 100
    assert offsets_within_bytes({A0: 100}, {A0: 1e9}, 10) == 1
