"""ListTransactions: api key 66, versions 0 to 2, flexible throughout.

Lists the transactional ids that this broker coordinates.
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Int16, Int32, Int64, String, Struct, versions


class ListTransactionsRequest(Struct):
    state_filters: list[String] = []
    producer_id_filters: list[Int64] = []
    duration_filter: Annotated[Int64, versions(1)] = -1
    transactional_id_pattern: Annotated[String | None, versions(2)] = None


class TransactionState(Struct):
    transactional_id: String = ""
    producer_id: Int64 = 0
    transaction_state: String = ""


class ListTransactionsResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[String] = []
    transaction_states: list[TransactionState] = []


LIST_TRANSACTIONS = Api(
    key=66,
    versions=(0, 2),
    flexible=0,
    request=ListTransactionsRequest,
    response=ListTransactionsResponse,
)
