"""Estimates of the memory that members of groups take, from lengths and counts.

An estimate is at least the real figure, because the bound on the memory of all groups relies on it, and at
most about three times that. The margin is for what depends on Python alone: a set or dict of n entries has
room for n to 6n of them, and a string takes one or four bytes for each character.
"""

from collections.abc import Iterable
from typing import Final

MEMBER_BYTES: Final = 1_500
"""A member without its texts and partitions: it is in several tables and has timers."""
_TEXT_BYTES: Final = 80
_TOPIC_BYTES: Final = 600
_PARTITION_BYTES: Final = 170
"""A partition in the sets of an assignment and in the table of their holders; a topic beside its
partitions."""


def text_memory(text: str) -> int:
    # Beyond ASCII, the widest character of a string determines the width of all its characters.
    return _TEXT_BYTES + len(text) * (1 if text.isascii() else 4)


def texts_memory(texts: Iterable[str]) -> int:
    return sum(map(text_memory, texts))


def partitions_memory(*, topics: int, partitions: int) -> int:
    return _TOPIC_BYTES * topics + _PARTITION_BYTES * partitions
