"""LogPositions: api key 20001, version 0, flexible throughout.

Penstock's own, between brokers: returns the start and end offsets of logs that the receiving broker leads,
and the timestamp of the first record that a group has not read. ApiVersions does not list it.
"""

from __future__ import annotations

from penstock.protocol.schema import Api, Int16, Int32, Int64, String, Struct, TopicUuid
from penstock.types import NO_TOPIC_ID


class WantedPosition(Struct):
    topic_id: TopicUuid = NO_TOPIC_ID
    partition: Int32 = 0
    offset: Int64 = -1
    """Committed offset of a group; -1: return only the log start and end offset."""


class LogPositionsRequest(Struct):
    partitions: list[WantedPosition] = []


class FoundPosition(Struct):
    error_code: Int16 = 0
    log_start_offset: Int64 = -1
    high_watermark: Int64 = -1
    timestamp: Int64 = -1
    """Timestamp of the first record at or after the offset; -1: no such record, or it cannot be read."""


class LogPositionsResponse(Struct):
    error_code: Int16 = 0
    error_message: String = ""
    partitions: list[FoundPosition] = []
    """One entry per requested partition, in their order."""


LOG_POSITIONS = Api(
    key=20001,
    versions=(0, 0),
    flexible=0,
    request=LogPositionsRequest,
    response=LogPositionsResponse,
)
