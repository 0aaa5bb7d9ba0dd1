"""UnregisterBroker: api key 64, version 0.

Removes a broker that will not come back, with its settings.

Behaviour
    A broker that is not registered is BROKER_ID_NOT_REGISTERED.
Differs from Kafka
    A broker that is up, or that still holds replicas, is rejected with INVALID_REQUEST: it would register
    again by itself, and its partitions would silently stay short of a replica.
"""

from penstock.broker.cluster.metadata_changes import MetadataChange
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.served_api import ON_CLUSTER, ServedApi, cluster_name
from penstock.controller.broker_lifecycle import unregister
from penstock.errors import ApiError, ErrorCode
from penstock.protocol.messages.unregister_broker import (
    UNREGISTER_BROKER,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from penstock.security.access import Operation


class UnregisterBroker:
    api = ServedApi(UNREGISTER_BROKER, Operation.ALTER, ON_CLUSTER, cluster_name)

    def __init__(self, cluster: MetadataService) -> None:
        self._cluster = cluster

    async def __call__(
        self, request: UnregisterBrokerRequest, context: RequestContext
    ) -> UnregisterBrokerResponse:
        if context.cluster_denied:
            return UnregisterBrokerResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        metadata_change = MetadataChange(self._cluster)
        try:
            # Wait for a current image: another broker may just have placed replicas on this one, and no
            # compared key covers that.
            await metadata_change.image()
            await metadata_change.commit(lambda image: unregister(image, request.broker_id))
        except ApiError as problem:
            return UnregisterBrokerResponse(error_code=problem.code, error_message=problem.detail or None)
        return UnregisterBrokerResponse()
