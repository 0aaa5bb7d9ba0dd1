"""What is read of each partition, for every way to say where to begin."""

import pytest

from penstock.cli.positions import PositionKind, PositionSpec
from penstock.cli.records.readers import PartitionRange, plan_ranges
from penstock.errors import CommandFailed

SPANS = {0: (10, 20), 1: (0, 5), 2: (7, 7)}


def test_from_the_earliest_to_the_end() -> None:
    plan = plan_ranges(PositionSpec(PositionKind.EARLIEST), SPANS, None, follows=False)

    assert plan == {0: PartitionRange(10, 20), 1: PartitionRange(0, 5), 2: PartitionRange(7, 7)}


def test_following_has_no_end() -> None:
    assert plan_ranges(PositionSpec(PositionKind.LATEST), SPANS, None, follows=True) == {
        0: PartitionRange(20, None),
        1: PartitionRange(5, None),
        2: PartitionRange(7, None),
    }


def test_an_offset_is_kept_within_each_partition() -> None:
    plan = plan_ranges(PositionSpec(PositionKind.OFFSET, 8), SPANS, None, follows=False)

    assert plan == {0: PartitionRange(10, 20), 1: PartitionRange(5, 5), 2: PartitionRange(7, 7)}


def test_an_offset_past_every_end_is_refused() -> None:
    with pytest.raises(
        CommandFailed, match="21 does not exist yet: partition 0, the furthest, ends at offset 20"
    ):
        plan_ranges(PositionSpec(PositionKind.OFFSET, 21), SPANS, None, follows=False)


def test_the_end_itself_is_a_place_to_begin() -> None:
    assert plan_ranges(PositionSpec(PositionKind.OFFSET, 20), SPANS, None, follows=True)[0] == PartitionRange(
        20, None
    )


def test_a_time_no_record_has_reached_begins_at_the_end() -> None:
    found = {0: 15, 1: None, 2: None}
    plan = plan_ranges(PositionSpec(PositionKind.TIMESTAMP, 1), SPANS, found, follows=False)

    assert plan == {0: PartitionRange(15, 20), 1: PartitionRange(5, 5), 2: PartitionRange(7, 7)}
