"""How far each compacted log is clean: Kafka's `cleaner-offset-checkpoint`, one file for a data directory.

0                version
2                number of rows
orders 0 1200    topic, partition, first dirty offset
users 3 17

Losing it costs time, not data: a log whose row is missing is cleaned from its start.
"""

from collections.abc import Mapping

from penstock.errors import CorruptData
from penstock.log.checkpoint import VERSION, render_rows
from penstock.types import Offset, TopicPartition

FILE_NAME = "cleaner-offset-checkpoint"


def render_offsets(offsets: Mapping[TopicPartition, Offset]) -> bytes:
    rows = sorted((name.topic, name.partition, offset) for name, offset in offsets.items())
    return render_rows(f"{topic} {partition} {offset}" for topic, partition, offset in rows)


def parse_offsets(data: bytes) -> dict[TopicPartition, Offset]:
    try:
        version, count, *rows = data.decode().splitlines()
        if int(version) != VERSION or int(count) != len(rows):
            raise CorruptData(f"{FILE_NAME} has version {version} and {len(rows)} rows of {count}")
        offsets = {}
        for row in rows:
            topic, partition, offset = row.split(" ")
            offsets[TopicPartition(topic, int(partition))] = Offset(int(offset))
        return offsets
    except ValueError as error:
        raise CorruptData(f"{FILE_NAME} is not a checkpoint file: {error}") from error
