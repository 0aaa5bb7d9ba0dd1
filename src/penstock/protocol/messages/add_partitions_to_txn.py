"""AddPartitionsToTxn: api key 24, versions 0 to 5, flexible from 3.

Adds partitions to the open transaction of a transactional id, or begins a transaction with them. Clients use
versions 0 to 3. Partition leaders use 4 and 5, for several transactions at once and to verify partitions.

Versions
    2   PRODUCER_FENCED
    5   TRANSACTION_ABORTABLE
"""

from __future__ import annotations

from typing import Annotated

from penstock.protocol.schema import Api, Bool, Int16, Int32, Int64, String, Struct, versions


class AddPartitionsToTxnTopic(Struct):
    name: String = ""
    partitions: list[Int32] = []


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    verify_only: Bool = False
    topics: list[AddPartitionsToTxnTopic] = []


class AddPartitionsToTxnRequest(Struct):
    transactions: Annotated[list[AddPartitionsToTxnTransaction], versions(4)] = []
    v3_and_below_transactional_id: Annotated[String, versions(0, 3)] = ""
    v3_and_below_producer_id: Annotated[Int64, versions(0, 3)] = 0
    v3_and_below_producer_epoch: Annotated[Int16, versions(0, 3)] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], versions(0, 3)] = []


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


class AddPartitionsToTxnTopicResult(Struct):
    name: String = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = []


class AddPartitionsToTxnResult(Struct):
    transactional_id: String = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = []


class AddPartitionsToTxnResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, versions(4)] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], versions(4)] = []
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], versions(0, 3)] = []


ADD_PARTITIONS_TO_TXN = Api(
    key=24,
    versions=(0, 5),
    flexible=3,
    request=AddPartitionsToTxnRequest,
    response=AddPartitionsToTxnResponse,
)
