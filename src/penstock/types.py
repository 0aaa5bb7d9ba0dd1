"""The basic types of the domain, which all other modules use.

Terms for positions in a log:
    start   inclusive: the first offset that exists
    end     exclusive: one past the last record (`log_end_offset` is where the next record goes)
    last    inclusive: the offset of the last record itself
    high watermark   exclusive: the first offset that is not yet visible to consumers
"""

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
NodeId = NewType("NodeId", int)
ProducerId = NewType("ProducerId", int)
TopicId = NewType("TopicId", bytes)
"""Sixteen bytes, as on the wire. `topic_id_text` gives the readable form."""

NO_TOPIC_ID = TopicId(bytes(16))
NO_OFFSET = Offset(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_PRODUCER = ProducerId(-1)
NO_TIMESTAMP = -1

Buffer = bytes | bytearray | memoryview


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
