"""AddOffsetsToTxn: api key 25, versions 0 to 4, flexible from 3.

Adds the committed offsets of a group to the open transaction of a transactional id: the partition of
`__consumer_offsets` that stores them.

Versions
    2   PRODUCER_FENCED
    4   TRANSACTION_ABORTABLE
"""

from __future__ import annotations

from penstock.protocol.schema import Api, Int16, Int32, Int64, String, Struct


class AddOffsetsToTxnRequest(Struct):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: String = ""


class AddOffsetsToTxnResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


ADD_OFFSETS_TO_TXN = Api(
    key=25,
    versions=(0, 4),
    flexible=3,
    request=AddOffsetsToTxnRequest,
    response=AddOffsetsToTxnResponse,
)
