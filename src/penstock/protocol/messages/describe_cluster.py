"""DescribeCluster: api key 60, versions 0 to 2, flexible throughout.

Returns the cluster id, the brokers and the controller.
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import (
    OPERATIONS_NOT_REQUESTED,
    Api,
    Bool,
    Int8,
    Int16,
    Int32,
    String,
    Struct,
    versions,
)


class DescribeClusterRequest(Struct):
    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[Int8, versions(1)] = 1
    include_fenced_brokers: Annotated[Bool, versions(2)] = False


class DescribeClusterBroker(Struct):
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None
    is_fenced: Annotated[Bool, versions(2)] = False


class DescribeClusterResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Annotated[Int8, versions(1)] = 1
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: Int32 = OPERATIONS_NOT_REQUESTED


DESCRIBE_CLUSTER = Api(
    key=60,
    versions=(0, 2),
    flexible=0,
    request=DescribeClusterRequest,
    response=DescribeClusterResponse,
)
