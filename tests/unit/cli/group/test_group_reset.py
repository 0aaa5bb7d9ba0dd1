"""Where `penstock group reset` moves a group."""

from datetime import datetime

import pytest

from penstock.cli.group.reset import OffsetMove, TopicSelection, parse_selection, parse_target, plan_moves
from penstock.cli.positions import PositionKind, PositionSpec
from penstock.limits import DAY_MS, HOUR_MS, MINUTE_MS
from penstock.types import TopicPartition

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", PositionSpec(PositionKind.EARLIEST)),
        ("latest", PositionSpec(PositionKind.LATEST)),
        ("1234", PositionSpec(PositionKind.OFFSET, 1234)),
        ("offset:1234", PositionSpec(PositionKind.OFFSET, 1234)),
        ("1h30m", PositionSpec(PositionKind.TIMESTAMP, NOW_MS - 90 * MINUTE_MS)),
        ("duration:1h30m", PositionSpec(PositionKind.TIMESTAMP, NOW_MS - 90 * MINUTE_MS)),
        ("PT1H30M", PositionSpec(PositionKind.TIMESTAMP, NOW_MS - 90 * MINUTE_MS)),
        ("duration:P1DT2H", PositionSpec(PositionKind.TIMESTAMP, NOW_MS - DAY_MS - 2 * HOUR_MS)),
        ("duration:pt5m-ago", None),
        ("2026-11-15T10:00Z", PositionSpec(PositionKind.TIMESTAMP, 1_794_736_800_000)),
        ("datetime:2026-11-15T10:00+02:00", PositionSpec(PositionKind.TIMESTAMP, 1_794_729_600_000)),
        ("offset:1h", None),
        ("offset:-1", None),
        ("datetime:1234", None),
        ("datetime:1h", None),
        ("duration:1234", None),
        ("duration:2026-11-15", None),
        ("duration:P", None),
        ("duration:PT", None),
        ("max-timestamp", None),
        ("offset:99999999999999999999", None),
        ("", None),
        ("offset:", None),
    ],
)
def test_places_as_people_write_them(text: str, position: PositionSpec | None) -> None:
    if position is None:
        with pytest.raises(ValueError, match=r"\w+ \w+"):
            parse_target(text, NOW_MS)
    else:
        assert parse_target(text, NOW_MS) == position


@pytest.mark.parametrize("text", ["offset:x", "offset:-1", "datetime:2026-13-45", "duration:x"])
def test_who_names_a_kind_is_shown_one_of_that_kind(text: str) -> None:
    word, _, rest = text.partition(":")
    with pytest.raises(ValueError, match=f"'{rest}' is no {word}: try {word}:"):
        parse_target(text, NOW_MS)


def test_what_is_offered_is_also_taken() -> None:
    with pytest.raises(ValueError, match="no place in a log") as refusal:
        parse_target("banana", NOW_MS)
    assert str(refusal.value).endswith("earliest or latest")
    assert parse_target("latest", NOW_MS) == PositionSpec(PositionKind.LATEST)


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 11, 15, 10, 0).astimezone()
    expected = PositionSpec(PositionKind.TIMESTAMP, round(local.timestamp() * 1000))
    assert parse_target("datetime:2026-11-15T10:00", NOW_MS) == expected


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("orders", TopicSelection("orders", None)),
        ("orders:2", TopicSelection("orders", [2])),
        ("orders:2,0,2", TopicSelection("orders", [0, 2])),
        ("orders:", None),
        ("orders:x", None),
        ("orders:-1", None),
        (":1", None),
        ("orders:99999999999999999999", None),
    ],
)
def test_topics_and_partitions_as_people_name_them(text: str, selection: TopicSelection | None) -> None:
    if selection is None:
        with pytest.raises(ValueError, match=r"topic|TOPIC"):
            parse_selection(text)
    else:
        assert parse_selection(text) == selection


A, B = TopicPartition("t", 0), TopicPartition("t", 1)
SPANS = {A: (10, 100), B: (0, 50)}


def moves(position: PositionSpec, found: dict[TopicPartition, int | None] | None = None) -> list[OffsetMove]:
    return plan_moves(position, SPANS, found or {}, {A: 42})


def test_each_partition_is_moved_from_where_it_was() -> None:
    assert moves(PositionSpec(PositionKind.EARLIEST)) == [OffsetMove(A, 42, 10), OffsetMove(B, None, 0)]
    assert moves(PositionSpec(PositionKind.LATEST)) == [OffsetMove(A, 42, 100), OffsetMove(B, None, 50)]


def test_an_offset_out_of_range_is_clipped_with_a_note() -> None:
    low, high = moves(PositionSpec(PositionKind.OFFSET, 5)), moves(PositionSpec(PositionKind.OFFSET, 70))
    assert [move.after for move in low] == [10, 5]
    assert [move.note for move in low] == ["5 is gone: the start", ""]
    assert [move.after for move in high] == [70, 50]
    assert [move.note for move in high] == ["", "70 does not exist yet: the end"]


def test_a_time_after_the_last_record_is_the_end() -> None:
    found = moves(PositionSpec(PositionKind.TIMESTAMP, NOW_MS), {A: 60, B: None})
    assert [move.after for move in found] == [60, 50]
    assert found[1].note == "no record is that new: the end"
