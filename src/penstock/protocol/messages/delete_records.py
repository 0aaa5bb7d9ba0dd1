"""DeleteRecords: api key 21, versions 0 to 2, flexible from 2.

Moves the log start offset forward, so that everything before it may be removed.
"""

from __future__ import annotations

from penstock.protocol.schema import Api, Int16, Int32, Int64, String, Struct


class DeleteRecordsPartition(Struct):
    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(Struct):
    name: String = ""
    partitions: list[DeleteRecordsPartition] = []


class DeleteRecordsRequest(Struct):
    topics: list[DeleteRecordsTopic] = []
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(Struct):
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Struct):
    name: String = ""
    partitions: list[DeleteRecordsPartitionResult] = []


class DeleteRecordsResponse(Struct):
    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = []


DELETE_RECORDS = Api(
    key=21,
    versions=(0, 2),
    flexible=2,
    request=DeleteRecordsRequest,
    response=DeleteRecordsResponse,
)
