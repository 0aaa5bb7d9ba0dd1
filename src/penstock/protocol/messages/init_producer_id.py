"""InitProducerId: api key 22, versions 0 to 5, flexible from 2.

Assigns the producer id and epoch of an idempotent producer.

Versions
    4   PRODUCER_FENCED
    5   TRANSACTION_ABORTABLE
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Int16, Int32, Int64, String, Struct, versions


class InitProducerIdRequest(Struct):
    transactional_id: String | None = None
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, versions(3)] = -1
    producer_epoch: Annotated[Int16, versions(3)] = -1


class InitProducerIdResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0


INIT_PRODUCER_ID = Api(
    key=22,
    versions=(0, 5),
    flexible=2,
    request=InitProducerIdRequest,
    response=InitProducerIdResponse,
)
