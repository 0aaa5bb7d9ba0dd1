"""DescribeTransactions: api key 65, version 0, flexible throughout.

Describes transactional ids: their producer, and their transaction with its partitions.
"""

from __future__ import annotations

from penstock.protocol.schema import Api, Int16, Int32, Int64, String, Struct


class DescribeTransactionsRequest(Struct):
    transactional_ids: list[String] = []


class TopicData(Struct):
    topic: String = ""
    partitions: list[Int32] = []


class TransactionState(Struct):
    error_code: Int16 = 0
    transactional_id: String = ""
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = []


class DescribeTransactionsResponse(Struct):
    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = []


DESCRIBE_TRANSACTIONS = Api(
    key=65,
    versions=(0, 0),
    flexible=0,
    request=DescribeTransactionsRequest,
    response=DescribeTransactionsResponse,
)
