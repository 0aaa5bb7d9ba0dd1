"""How far each compacted log is clean: `cleaner-offset-checkpoint`, one file for a data directory.

1                                                    version
2                                                    number of rows
orders 0 1200 6f1c8c0a4e5b4f6f9d0e2b7a51c3d4e5       topic, partition, first dirty offset, topic id
users 3 17 0b9e7c9a2f7d4c51a3b2c1d0e9f8a7b6

The rows are those of Kafka's file and the id of the topic. A name can be used again, after a crash or
on a full disk too, and a new topic that is believed to be clean would lose its tombstones and keep
what they delete; an id is never used again. So the id is what counts, and the name is for people.

Losing the file costs time, not data: a log whose row is missing is cleaned from its start. A file of
version 0 knows topics by name only, and says nothing.
"""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.errors import CorruptData
from penstock.types import NO_TOPIC_ID, Offset, TopicId, TopicPartition

FILE_NAME = "cleaner-offset-checkpoint"
VERSION_BY_NAME, VERSION = "0", "1"


class CleanedLog(NamedTuple):
    topic_id: TopicId
    partition: int


class CleanTo(NamedTuple):
    name: TopicPartition
    topic_id: TopicId
    offset: Offset


def render_offsets(logs: list[CleanTo]) -> bytes:
    rows = [
        f"{name.topic} {name.partition} {offset} {topic_id.hex()}" for name, topic_id, offset in sorted(logs)
    ]
    return "\n".join([VERSION, str(len(rows)), *rows, ""]).encode()


def parse_offsets(data: bytes) -> Mapping[CleanedLog, Offset]:
    try:
        version, count, *rows = data.decode().splitlines()
        if version == VERSION_BY_NAME:
            return {}
        if version != VERSION or int(count) != len(rows):
            raise CorruptData(f"{FILE_NAME} has version {version} and {len(rows)} rows of {count}")
        return dict(map(_row, rows))
    except ValueError as error:
        raise CorruptData(f"{FILE_NAME} is not a checkpoint file: {error}") from error


def _row(row: str) -> tuple[CleanedLog, Offset]:
    _, partition, offset, topic_id = row.split(" ")
    identity = TopicId(bytes.fromhex(topic_id))
    if len(identity) != len(NO_TOPIC_ID):
        raise ValueError(f"{topic_id} is not the id of a topic")
    return CleanedLog(identity, int(partition)), Offset(int(offset))
