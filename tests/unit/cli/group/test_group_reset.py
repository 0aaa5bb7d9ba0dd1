"""Where `penstock group reset` moves a group."""

from datetime import datetime

import pytest

from penstock.cli.group.reset import Move, Selection, parse_selection, parse_target, plan_moves
from penstock.cli.times import Kind, Place
from penstock.limits import DAY_MS, HOUR_MS, MINUTE_MS
from penstock.types import TopicPartition

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Place(Kind.EARLIEST)),
        ("latest", Place(Kind.LATEST)),
        ("1234", Place(Kind.OFFSET, 1234)),
        ("offset:1234", Place(Kind.OFFSET, 1234)),
        ("1h30m", Place(Kind.TIMESTAMP, NOW_MS - 90 * MINUTE_MS)),
        ("duration:1h30m", Place(Kind.TIMESTAMP, NOW_MS - 90 * MINUTE_MS)),
        ("PT1H30M", Place(Kind.TIMESTAMP, NOW_MS - 90 * MINUTE_MS)),
        ("duration:P1DT2H", Place(Kind.TIMESTAMP, NOW_MS - DAY_MS - 2 * HOUR_MS)),
        ("duration:pt5m-ago", None),
        ("2026-11-15T10:00Z", Place(Kind.TIMESTAMP, 1_794_736_800_000)),
        ("datetime:2026-11-15T10:00+02:00", Place(Kind.TIMESTAMP, 1_794_729_600_000)),
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
def test_places_as_people_write_them(text: str, place: Place | None) -> None:
    if place is None:
        with pytest.raises(ValueError, match=r"\w+ \w+"):
            parse_target(text, NOW_MS)
    else:
        assert parse_target(text, NOW_MS) == place


@pytest.mark.parametrize("text", ["offset:x", "offset:-1", "datetime:2026-13-45", "duration:x"])
def test_who_names_a_kind_is_shown_one_of_that_kind(text: str) -> None:
    word, _, rest = text.partition(":")
    with pytest.raises(ValueError, match=f"'{rest}' is no {word}: try {word}:"):
        parse_target(text, NOW_MS)


def test_what_is_offered_is_also_taken() -> None:
    with pytest.raises(ValueError, match="no place in a log") as refusal:
        parse_target("banana", NOW_MS)
    assert str(refusal.value).endswith("earliest or latest")
    assert parse_target("latest", NOW_MS) == Place(Kind.LATEST)


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 11, 15, 10, 0).astimezone()
    expected = Place(Kind.TIMESTAMP, round(local.timestamp() * 1000))
    assert parse_target("datetime:2026-11-15T10:00", NOW_MS) == expected


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("orders", Selection("orders", None)),
        ("orders:2", Selection("orders", [2])),
        ("orders:2,0,2", Selection("orders", [0, 2])),
        ("orders:", None),
        ("orders:x", None),
        ("orders:-1", None),
        (":1", None),
        ("orders:99999999999999999999", None),
    ],
)
def test_topics_and_partitions_as_people_name_them(text: str, selection: Selection | None) -> None:
    if selection is None:
        with pytest.raises(ValueError, match=r"topic|TOPIC"):
            parse_selection(text)
    else:
        assert parse_selection(text) == selection


A, B = TopicPartition("t", 0), TopicPartition("t", 1)
SPANS = {A: (10, 100), B: (0, 50)}


def moves(place: Place, found: dict[TopicPartition, int | None] | None = None) -> list[Move]:
    return plan_moves(place, SPANS, found or {}, {A: 42})


def test_each_partition_is_moved_from_where_it_was() -> None:
    assert moves(Place(Kind.EARLIEST)) == [Move(A, 42, 10), Move(B, None, 0)]
    assert moves(Place(Kind.LATEST)) == [Move(A, 42, 100), Move(B, None, 50)]


def test_an_offset_out_of_range_is_clipped_with_a_note() -> None:
    low, high = moves(Place(Kind.OFFSET, 5)), moves(Place(Kind.OFFSET, 70))
    assert [move.after for move in low] == [10, 5]
    assert [move.note for move in low] == ["5 is gone: the start", ""]
    assert [move.after for move in high] == [70, 50]
    assert [move.note for move in high] == ["", "70 does not exist yet: the end"]


def test_a_time_after_the_last_record_is_the_end() -> None:
    found = moves(Place(Kind.TIMESTAMP, NOW_MS), {A: 60, B: None})
    assert [move.after for move in found] == [60, 50]
    assert found[1].note == "no record is that new: the end"
