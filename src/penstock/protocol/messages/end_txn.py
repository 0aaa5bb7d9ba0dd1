"""EndTxn: api key 26, versions 0 to 5, flexible from 3.

Commits or aborts the open transaction of a transactional id.

Versions
    2   PRODUCER_FENCED
    4   TRANSACTION_ABORTABLE
    5   a new epoch for the next transaction (KIP-890), which the reply has
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Bool, Int16, Int32, Int64, String, Struct, versions


class EndTxnRequest(Struct):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: Bool = False


class EndTxnResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, versions(5)] = -1
    producer_epoch: Annotated[Int16, versions(5)] = -1


END_TXN = Api(
    key=26,
    versions=(0, 5),
    flexible=3,
    request=EndTxnRequest,
    response=EndTxnResponse,
)
