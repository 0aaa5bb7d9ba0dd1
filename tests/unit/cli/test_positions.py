"""Places in a log, as people name them."""

import pytest

from penstock.cli.positions import PositionKind, PositionSpec, parse_position

NOW_MS = 1_700_000_000_000


def position(text: str, number_is: PositionKind = PositionKind.OFFSET) -> PositionSpec:
    return parse_position(text, NOW_MS, number_is=number_is)


def test_words_are_places() -> None:
    assert position("earliest") == PositionSpec(PositionKind.EARLIEST)
    assert position("latest") == PositionSpec(PositionKind.LATEST)
    assert position("max-timestamp") == PositionSpec(PositionKind.MAX_TIMESTAMP)


def test_a_number_is_what_the_command_says_it_is() -> None:
    assert position("20260301") == PositionSpec(PositionKind.OFFSET, 20260301)
    assert position("1250", PositionKind.TIMESTAMP) == PositionSpec(PositionKind.TIMESTAMP, 1250)


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [("15m", 900_000), ("15m-ago", 900_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("500ms", 500)],
)
def test_a_duration_is_that_long_ago(text: str, ago_ms: int) -> None:
    assert position(text) == PositionSpec(PositionKind.TIMESTAMP, NOW_MS - ago_ms)


def test_longer_ago_than_time_itself_is_its_beginning() -> None:
    assert position("9999999w") == PositionSpec(PositionKind.TIMESTAMP, 0)


def test_times_have_zones() -> None:
    assert position("2023-11-14T22:13:20Z") == PositionSpec(PositionKind.TIMESTAMP, NOW_MS)
    assert position("2023-11-15T00:13:20.500+02:00") == PositionSpec(PositionKind.TIMESTAMP, NOW_MS + 500)


def test_a_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    try:
        assert position("2023-11-15T00:13:20") == PositionSpec(PositionKind.TIMESTAMP, NOW_MS)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["yesterday", "", "-5", "15x", "m"])
def test_anything_else_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"no place in a log: give an offset, a time .* or max-timestamp"):
        position(text)
    with pytest.raises(ValueError, match="no place in a log: give milliseconds since 1970, a time"):
        position(text, PositionKind.TIMESTAMP)


def test_what_no_log_can_hold_is_refused_with_its_bounds() -> None:
    beyond = str(2**63)
    with pytest.raises(ValueError, match="is no offset: they go from 0 to 9223372036854775807"):
        position(beyond)
    for text in (beyond, "1700-01-01"):
        with pytest.raises(ValueError, match="is no time of a record: they go from 1970 on, to 92233"):
            position(text, PositionKind.TIMESTAMP)
