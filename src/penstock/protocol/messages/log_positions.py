"""LogPositions: api key 20001, version 0, flexible throughout.

Penstock's own, between brokers: where the logs that the asked broker leads begin and end, and how old the
first record is that waits for a group. Clients are not told of it.
"""

from __future__ import annotations

from penstock.protocol.schema import Api, Int16, Int32, Int64, String, Struct, TopicUuid
from penstock.types import NO_TOPIC_ID


class WantedPosition(Struct):
    topic_id: TopicUuid = NO_TOPIC_ID
    partition: Int32 = 0
    offset: Int64 = -1
    """Where a group goes on; -1: only the ends of the log are wanted."""


class LogPositionsRequest(Struct):
    partitions: list[WantedPosition] = []


class FoundPosition(Struct):
    error_code: Int16 = 0
    log_start_offset: Int64 = -1
    high_watermark: Int64 = -1
    timestamp: Int64 = -1
    """Of the first record at or after the offset; -1: there is none, or it cannot be read."""


class LogPositionsResponse(Struct):
    error_code: Int16 = 0
    error_message: String = ""
    partitions: list[FoundPosition] = []
    """One for each that was wanted, in their order."""


LOG_POSITIONS = Api(
    key=20001,
    name="LogPositions",
    versions=(0, 0),
    flexible=0,
    request=LogPositionsRequest,
    response=LogPositionsResponse,
)
