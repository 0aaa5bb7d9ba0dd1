"""Columns, sizes and times as people read them."""

import pytest

from penstock.cli.output import bytes_text, counted, table_lines, time_text


def test_numbers_stand_to_the_right_and_texts_to_the_left() -> None:
    assert table_lines(("NAME", "COUNT"), [("a", 5), ("longer", 1000), ("none", None)]) == [
        "NAME    COUNT",
        "a           5",
        "longer   1000",
        "none        -",
    ]


def test_a_table_without_rows_is_its_titles() -> None:
    assert table_lines(("A", "B"), []) == ["A  B"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**30, "5.0 GiB")]
)
def test_sizes_have_units(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_times_are_utc_and_odd_ones_do_no_harm() -> None:
    assert time_text(1_700_000_000_007) == "2023-11-14T22:13:20.007Z"
    assert time_text(-1) == "-"
    assert time_text(2**62) == str(2**62)


def test_one_is_not_many() -> None:
    assert [counted(number, "record") for number in (0, 1, 2)] == ["0 records", "1 record", "2 records"]
    assert [counted(number, "entry", "entries") for number in (1, 2)] == ["1 entry", "2 entries"]
