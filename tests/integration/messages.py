"""Messages as a user thinks of them, and the ones that client tests send.

Whatever library sent them and whatever library reads them, they must come back equal.
"""

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

# Round, and recent enough that retention leaves it alone.
FIRST_TIMESTAMP_MS = (time.time_ns() // 1_000_000 - 3_600_000) // 1000 * 1000
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
# librdkafka tells of every connection that a stopping broker closes.
QUIET = {"log_level": 0}

Headers = tuple[tuple[str, bytes], ...]


class Message(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class Stored(NamedTuple):
    """A message and where it was found."""

    partition: int
    offset: int
    message: Message


def varied_messages(count: int) -> list[Message]:
    """Without a key, without a value, empty, with repeated headers, of many sizes."""
    return [
        Message(
            key=None if index % 5 == 0 else b"key-%d" % (index % 7),
            value=None if index % 10 == 3 else b"value-%d " % index * (index % 13),
            headers=tuple(("trace", b"%d-%d" % (index, number)) for number in range(index % 3)),
            timestamp_ms=FIRST_TIMESTAMP_MS + index * 1000,
        )
        for index in range(count)
    ]


def assert_same(stored: Iterable[Stored], sent: dict[int, list[Message]]) -> None:
    """In each partition: exactly these messages, in this order, at consecutive offsets from 0."""
    found: dict[int, list[Stored]] = defaultdict(list)
    for each in stored:
        found[each.partition].append(each)
    assert {partition: [each.message for each in all_of_it] for partition, all_of_it in found.items()} == sent
    for all_of_it in found.values():
        assert [each.offset for each in all_of_it] == list(range(len(all_of_it)))


def spread(messages: list[Message], partitions: int) -> dict[int, list[Message]]:
    """Round-robin: which messages go to which partition."""
    return {partition: messages[partition::partitions] for partition in range(partitions)}
