"""How durations are shown."""

import pytest

from penstock.cli.group.output import duration_text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, "-"),
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (59_999, "59.9s"),
        (60_000, "1m"),
        (252_000, "4m12s"),
        (3_600_000, "1h"),
        (11_999_999, "3h19m"),
        (90_000_000, "1d1h"),
        (9_000_000_000, "104d4h"),
    ],
)
def test_a_duration_is_shown_in_its_two_largest_units(milliseconds: int | None, text: str) -> None:
    assert duration_text(milliseconds) == text
