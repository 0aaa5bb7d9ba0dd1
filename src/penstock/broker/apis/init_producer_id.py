"""InitProducerId: api key 22, versions 0 to 5.

Hands out the producer id by which repeated batches of an idempotent producer are recognised.

Behaviour
    Ids come from blocks that are reserved durably before the first of them is handed out, so no id is handed
    out twice, even after a crash. The epoch is 0. A producer that sends its old id and epoch gets a new id;
    one without the other is INVALID_REQUEST. The transaction timeout is ignored without a transactional id.
    While no block can be reserved: COORDINATOR_LOAD_IN_PROGRESS, which clients retry.
Versions
    3  a producer may send the id and epoch it had
Differs from Kafka
    Transactions are not offered: a transactional id is CLUSTER_AUTHORIZATION_FAILED, at which every client
    gives up at once. The reply has no message field; FindCoordinator, which clients send first, explains it.
"""

import asyncio
from collections.abc import Coroutine

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.context import RequestContext
from penstock.broker.served_api import ON_CLUSTER, ServedApi, cluster_name
from penstock.controller.decision import Decision
from penstock.controller.producer_ids import ProducerIdBlock, next_producer_id_block
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.cluster_image import ClusterImage
from penstock.protocol.messages.init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from penstock.security.access import Operation, ResourceType
from penstock.types import NO_EPOCH, NO_PRODUCER

FIRST_EPOCH = 0


class InitProducerId:
    api = ServedApi(INIT_PRODUCER_ID, Operation.IDEMPOTENT_WRITE, ON_CLUSTER, cluster_name)

    def __init__(self, cluster: MetadataService) -> None:
        self._cluster = cluster
        self._reserving = asyncio.Lock()
        self._next_id = 0
        self._block_end = 0

    def __call__(
        self, request: InitProducerIdRequest, context: RequestContext
    ) -> InitProducerIdResponse | Coroutine[object, object, InitProducerIdResponse]:
        rejection = _rejection(request, context)
        if rejection is not None:
            return _failed(rejection)
        if self._next_id < self._block_end:
            return self._take()
        return self._take_from_new_block()

    def _take(self) -> InitProducerIdResponse:
        assert self._next_id < self._block_end, "an id outside the reserved block"
        producer_id = self._next_id
        self._next_id += 1
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)

    async def _take_from_new_block(self) -> InitProducerIdResponse:
        async with self._reserving:
            # Requests that waited for the lock use the block that an earlier request reserved meanwhile.
            if self._next_id == self._block_end:
                try:
                    await self._reserve()
                except ApiError:
                    # Clients treat any other code as final; they retry this one.
                    return _failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return self._take()

    async def _reserve(self) -> None:
        blocks: list[ProducerIdBlock] = []

        def decide(image: ClusterImage) -> Decision:
            blocks.append(next_producer_id_block(image))
            return blocks[-1].decision

        await self._cluster.change(decide)
        # The last block was committed; earlier attempts met a conflict.
        self._next_id = blocks[-1].first
        self._block_end = blocks[-1].first + blocks[-1].count


def _rejection(request: InitProducerIdRequest, context: RequestContext) -> ErrorCode | None:
    name = request.transactional_id
    if name is None:
        if context.cluster_denied:
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        has_id, has_epoch = request.producer_id != NO_PRODUCER, request.producer_epoch != NO_EPOCH
        return None if has_id == has_epoch else ErrorCode.INVALID_REQUEST
    if name and not context.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED if name else ErrorCode.INVALID_REQUEST


def _failed(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER, producer_epoch=NO_EPOCH)
