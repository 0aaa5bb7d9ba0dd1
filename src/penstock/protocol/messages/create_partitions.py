"""CreatePartitions: api key 37, versions 0 to 3, flexible from 2.

Raises the number of partitions of existing topics.

Versions
    3   THROTTLING_QUOTA_EXCEEDED
"""

from __future__ import annotations

from penstock.protocol.schema import Api, Bool, Int16, Int32, String, Struct


class CreatePartitionsAssignment(Struct):
    broker_ids: list[Int32] = []


class CreatePartitionsTopic(Struct):
    name: String = ""
    count: Int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = []


class CreatePartitionsRequest(Struct):
    topics: list[CreatePartitionsTopic] = []
    timeout_ms: Int32 = 0
    validate_only: Bool = False


class CreatePartitionsTopicResult(Struct):
    name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


class CreatePartitionsResponse(Struct):
    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = []


CREATE_PARTITIONS = Api(
    key=37,
    versions=(0, 3),
    flexible=2,
    request=CreatePartitionsRequest,
    response=CreatePartitionsResponse,
)
