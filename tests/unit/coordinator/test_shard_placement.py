"""Java's hash, by values that Java gives."""

import pytest

from penstock.coordinator.shard_placement import java_hash, shard_of


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -2147483648),
        ("The quick brown fox jumps over the lazy dog", -609428141),
        ("\U0001f600", 1772899),
    ],
)
def test_the_hash_is_javas(text: str, number: int) -> None:
    assert java_hash(text) == number


def test_a_negative_hash_counts_by_its_size_and_the_smallest_as_zero() -> None:
    assert shard_of("The quick brown fox jumps over the lazy dog", 50) == 609428141 % 50
    assert shard_of("polygenelubricants", 50) == 0
