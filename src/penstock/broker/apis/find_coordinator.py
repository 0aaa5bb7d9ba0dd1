"""FindCoordinator: api key 10, versions 0 to 6.

Returns the broker that coordinates a group, a transaction or a share group.

Behaviour
    A group's coordinator is the leader of its partition of __consumer_offsets. That topic is created by the
    first request for a group. A key that occurs twice gets two replies. An unknown key type is
    INVALID_REQUEST.
Versions
    0  groups only       1  key type, error message
    4  many keys, each with its own result
    6  share groups
Differs from Kafka
    Transactions and share groups are not offered: CLUSTER_AUTHORIZATION_FAILED, with a message that explains
    it. It is the only code at which every client gives up at once. With a code that clients retry, or that
    librdkafka retries as it does INVALID_REQUEST and UNSUPPORTED_VERSION, clients would wait for their whole
    timeout.
    Kafka replies COORDINATOR_NOT_AVAILABLE for groups while it creates its internal topic; here the request
    waits for the creation.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.served_api import ServedApi
from penstock.coordinator.shard_placement import shard_of
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.cluster_image import GROUP_TOPIC, ClusterImage
from penstock.protocol.messages.find_coordinator import (
    FIND_COORDINATOR,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from penstock.security.access import Operation, ResourceType

GROUP, TRANSACTION, SHARE = 0, 1, 2
MANY_KEYS_FROM = 4
NO_NODE, NO_PORT = -1, -1
NOT_OFFERED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
"""Ends every client's attempt to use transactions or share groups at once; see the module docstring."""


def _keys(request: FindCoordinatorRequest, image: ClusterImage) -> Iterable[str]:
    return [request.key, *request.coordinator_keys]


class FindCoordinator:
    api = ServedApi(FIND_COORDINATOR, Operation.DESCRIBE, ResourceType.GROUP, _keys)

    def __init__(self, cluster: MetadataService, create_group_topic: Callable[[], Awaitable[None]]) -> None:
        self._cluster = cluster
        self._create_group_topic = create_group_topic

    def __call__(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse | Coroutine[Any, Any, FindCoordinatorResponse]:
        if request.key_type == GROUP and GROUP_TOPIC not in self._cluster.image.topics:
            keys = request.coordinator_keys if context.version >= MANY_KEYS_FROM else [request.key]
            if not context.denied.issuperset(keys):
                return self._create_and_answer(request, context)
        return self._answer(request, context)

    async def _create_and_answer(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        try:
            await self._create_group_topic()
        except ApiError as problem:
            code, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{GROUP_TOPIC}: {problem}"
            return _response(request, context, lambda key: _rejected(key, code, message))
        return self._answer(request, context)

    def _answer(self, request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
        image = self._cluster.client_view
        return _response(request, context, lambda key: _find(image, request.key_type, key, context))


def _response(
    request: FindCoordinatorRequest, context: RequestContext, find: Callable[[str], Coordinator]
) -> FindCoordinatorResponse:
    if context.version < MANY_KEYS_FROM:
        found = find(request.key)
        # Up to version 3 Kafka sends the name of the code where there is no message; later an empty message.
        message = found.error_message or ErrorCode.NONE.name
        return FindCoordinatorResponse(0, found.error_code, message, found.node_id, found.host, found.port)
    return FindCoordinatorResponse(coordinators=[find(key) for key in request.coordinator_keys])


def _find(image: ClusterImage, key_type: int, key: str, context: RequestContext) -> Coordinator:
    if key_type == GROUP:
        return _group(image, key, context)
    if key_type == TRANSACTION:
        if not context.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return _rejected(key, code, "Access to this id is denied.")
        message = "Transactions are not offered by this broker: use a producer without transactional.id."
        return _rejected(key, NOT_OFFERED, message)
    if key_type == SHARE:
        return _rejected(key, NOT_OFFERED, "Share groups are not offered by this broker.")
    return _rejected(key, ErrorCode.INVALID_REQUEST, f"Key type {key_type} does not exist.")


def _group(image: ClusterImage, key: str, context: RequestContext) -> Coordinator:
    if key in context.denied:
        return _rejected(key, ErrorCode.GROUP_AUTHORIZATION_FAILED, "Access to this group is denied.")
    partitions = image.topics[GROUP_TOPIC].partitions
    broker = image.brokers.get(partitions[shard_of(key, len(partitions))].leader)
    endpoint = broker.endpoints.get(context.listener) if broker and broker.is_alive else None
    if broker is None or endpoint is None:
        message = "No broker leads the group's partition at the moment."
        return _rejected(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    return Coordinator(key, broker.id, endpoint.host, endpoint.port, error_message="")


def _rejected(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key, NO_NODE, "", NO_PORT, code, message)
