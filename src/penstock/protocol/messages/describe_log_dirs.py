"""DescribeLogDirs: api key 35, versions 1 to 4, flexible from 2.

Returns the sizes of the partitions in this broker's log directories.
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Bool, Int16, Int32, Int64, String, Struct, versions


class DescribableLogDirTopic(Struct):
    topic: String = ""
    partitions: list[Int32] = []


class DescribeLogDirsRequest(Struct):
    topics: list[DescribableLogDirTopic] | None = []


class DescribeLogDirsPartition(Struct):
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


class DescribeLogDirsTopic(Struct):
    name: String = ""
    partitions: list[DescribeLogDirsPartition] = []


class DescribeLogDirsResult(Struct):
    error_code: Int16 = 0
    log_dir: String = ""
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: Annotated[Int64, versions(4)] = -1
    usable_bytes: Annotated[Int64, versions(4)] = -1


class DescribeLogDirsResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, versions(3)] = 0
    results: list[DescribeLogDirsResult] = []


DESCRIBE_LOG_DIRS = Api(
    key=35,
    versions=(1, 4),
    flexible=2,
    request=DescribeLogDirsRequest,
    response=DescribeLogDirsResponse,
)
