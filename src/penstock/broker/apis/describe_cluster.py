"""DescribeCluster: api key 60, versions 0 to 2.

Returns the cluster's id, its brokers as clients of this listener reach them, and its controller.

Behaviour
    A request for the endpoints of controllers is MISMATCHED_ENDPOINT_TYPE, for those of anything else
    UNSUPPORTED_ENDPOINT_TYPE; neither reply contains anything about the cluster.
Versions
    1  endpoint type       2  fenced brokers can be requested
Differs from Kafka
    nothing known
"""

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.cluster.metadata_view import reachable_brokers
from penstock.broker.context import RequestContext
from penstock.broker.served_api import ON_CLUSTER, ServedApi, never_waits, no_names
from penstock.errors import ErrorCode
from penstock.protocol.messages.describe_cluster import (
    DESCRIBE_CLUSTER,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from penstock.protocol.schema import OPERATIONS_NOT_REQUESTED
from penstock.security.access import CLUSTER, CLUSTER_OPERATIONS, Operation

BROKERS, CONTROLLERS = 1, 2


class DescribeCluster:
    api = ServedApi(DESCRIBE_CLUSTER, Operation.DESCRIBE, ON_CLUSTER, no_names, weigh=never_waits)

    def __init__(self, cluster: MetadataService) -> None:
        self._cluster = cluster

    def __call__(self, request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
        if request.endpoint_type == CONTROLLERS:
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                error_message="This is the endpoint of a broker, not of a controller.",
            )
        if request.endpoint_type != BROKERS:
            return DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message=f"Endpoint type {request.endpoint_type} does not exist.",
            )
        image = self._cluster.image
        operations = OPERATIONS_NOT_REQUESTED
        if request.include_cluster_authorized_operations:
            operations = context.operations_bits(CLUSTER_OPERATIONS, CLUSTER)
        return DescribeClusterResponse(
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            brokers=[
                DescribeClusterBroker(
                    broker.id, endpoint.host, endpoint.port, broker.rack, not broker.is_admitted
                )
                for broker, endpoint in reachable_brokers(
                    image, context.listener, with_fenced=request.include_fenced_brokers
                )
            ],
            cluster_authorized_operations=operations,
        )
