"""Whole frames of the transaction APIs, whose bodies Kafka 4.2 reads and writes again as the same bytes."""

from penstock.protocol.messages.add_offsets_to_txn import (
    ADD_OFFSETS_TO_TXN,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from penstock.protocol.messages.add_partitions_to_txn import (
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from penstock.protocol.messages.describe_transactions import (
    DESCRIBE_TRANSACTIONS,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from penstock.protocol.messages.describe_transactions import TransactionState as DescribedState
from penstock.protocol.messages.end_txn import END_TXN, EndTxnRequest, EndTxnResponse
from penstock.protocol.messages.list_transactions import (
    LIST_TRANSACTIONS,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from penstock.protocol.messages.txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tests.protocol.test_golden_bytes import assert_request, assert_response

PRODUCER = "0000000000000007 0005"


def test_a_client_adds_partitions_to_its_transaction() -> None:
    topics = [AddPartitionsToTxnTopic("orders", [3, 4])]
    request = AddPartitionsToTxnRequest([], "t", 7, 5, topics)
    assert_request(
        ADD_PARTITIONS_TO_TXN,
        0,
        None,
        request,
        # size, key, version, correlation, no client | id, producer | 1 topic: name, 2 partitions
        f"0000002f 0018 0000 00000001 ffff  0001 74 {PRODUCER}"
        "00000001 0006 6f7264657273 00000002 00000003 00000004",
    )
    assert_request(
        ADD_PARTITIONS_TO_TXN,
        3,
        None,
        request,
        # with header tags, compact lengths, and tags after the topic and the request
        f"0000002a 0018 0003 00000001 ffff 00  02 74 {PRODUCER}02 07 6f7264657273 03 00000003 00000004 00 00",
    )


def test_a_leader_verifies_partitions_of_several_transactions() -> None:
    topics = [AddPartitionsToTxnTopic("orders", [3])]
    transactions = [
        AddPartitionsToTxnTransaction("t", 7, 5, True, topics),
        AddPartitionsToTxnTransaction("u", 8, 6, False, []),
    ]
    assert_request(
        ADD_PARTITIONS_TO_TXN,
        4,
        None,
        AddPartitionsToTxnRequest(transactions),
        # size, key, version, correlation, no client, header tags | 2 transactions
        f"00000038 0018 0004 00000001 ffff 00  03 02 74 {PRODUCER} 01"
        "02 07 6f7264657273 02 00000003 00 00"
        "02 75 0000000000000008 0006 00 01 00  00",
    )


def test_each_partition_of_a_transaction_has_its_result() -> None:
    results = [AddPartitionsToTxnTopicResult("orders", [AddPartitionsToTxnPartitionResult(3, 120)])]
    assert_response(
        ADD_PARTITIONS_TO_TXN,
        2,
        AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results),
        # size, correlation | throttle time, 1 topic: name, 1 partition: index, error
        "0000001e 00000001  00000000 00000001 0006 6f7264657273 00000001 00000003 0078",
    )
    assert_response(
        ADD_PARTITIONS_TO_TXN,
        5,
        AddPartitionsToTxnResponse(results_by_transaction=[AddPartitionsToTxnResult("t", results)]),
        # size, correlation, header tags | throttle time, error, 1 transaction: id, 1 topic | tags
        "00000021 00000001 00  00000000 0000 02 02 74 02 07 6f7264657273 02 00000003 0078 00 00 00  00",
    )


def test_the_offsets_of_a_group_are_added() -> None:
    assert_request(
        ADD_OFFSETS_TO_TXN,
        4,
        None,
        AddOffsetsToTxnRequest("t", 7, 5, "g"),
        f"0000001a 0019 0004 00000001 ffff 00  02 74 {PRODUCER} 02 67 00",
    )
    assert_response(ADD_OFFSETS_TO_TXN, 0, AddOffsetsToTxnResponse(0, 90), "0000000a 00000001  00000000 005a")


def test_a_transaction_is_committed_and_the_reply_has_the_next_epoch() -> None:
    assert_request(
        END_TXN,
        1,
        None,
        EndTxnRequest("t", 7, 5, True),
        f"00000018 001a 0001 00000001 ffff  0001 74 {PRODUCER} 01",
    )
    assert_response(END_TXN, 4, EndTxnResponse(), "0000000c 00000001 00  00000000 0000 00")
    assert_response(
        END_TXN,
        5,
        EndTxnResponse(0, 0, 7, 6),
        "00000016 00000001 00  00000000 0000 0000000000000007 0006 00",
    )


def test_offsets_are_committed_in_a_transaction() -> None:
    partition = TxnOffsetCommitRequestPartition(3, 42, 6, None)
    topics = [TxnOffsetCommitRequestTopic("orders", [partition])]
    assert_request(
        TXN_OFFSET_COMMIT,
        1,
        None,
        TxnOffsetCommitRequest(
            "t",
            "g",
            7,
            5,
            topics=[TxnOffsetCommitRequestTopic("orders", [TxnOffsetCommitRequestPartition(3, 42, -1, "m")])],
        ),
        # size, key, version, correlation, no client | id, group, producer
        f"00000039 001c 0001 00000001 ffff  0001 74 0001 67 {PRODUCER}"
        # 1 topic: name, 1 partition: index, offset, metadata
        "00000001 0006 6f7264657273 00000001 00000003 000000000000002a 0001 6d",
    )
    assert_request(
        TXN_OFFSET_COMMIT,
        5,
        None,
        TxnOffsetCommitRequest("t", "g", 7, 5, 9, "m", None, topics),
        # size, key, version, correlation, no client, header tags | id, group, producer, generation, member
        f"0000003d 001c 0005 00000001 ffff 00  02 74 02 67 {PRODUCER} 00000009 02 6d 00"
        # 1 topic: name, 1 partition: index, offset, leader epoch, null metadata, tags | tags | tags
        "02 07 6f7264657273 02 00000003 000000000000002a 00000006 00 00 00 00",
    )
    results = [TxnOffsetCommitResponseTopic("orders", [TxnOffsetCommitResponsePartition(3, 51)])]
    assert_response(
        TXN_OFFSET_COMMIT,
        3,
        TxnOffsetCommitResponse(0, results),
        "0000001b 00000001 00  00000000 02 07 6f7264657273 02 00000003 0033 00 00 00",
    )


def test_transactions_are_listed_by_condition() -> None:
    assert_request(
        LIST_TRANSACTIONS,
        2,
        None,
        ListTransactionsRequest(["Ongoing"], [7], 1000, "o.*"),
        # 1 state, 1 producer id, duration, pattern, tags
        "0000002a 0042 0002 00000001 ffff 00  02 08 4f6e676f696e67 02 0000000000000007"
        "00000000000003e8 04 6f2e2a 00",
    )
    assert_response(
        LIST_TRANSACTIONS,
        0,
        ListTransactionsResponse(0, 0, ["x"], [TransactionState("t", 7, "Ongoing")]),
        "00000023 00000001 00  00000000 0000 02 02 78 02 02 74 0000000000000007 08 4f6e676f696e67 00 00",
    )


def test_a_transaction_is_described_with_its_partitions() -> None:
    assert_request(
        DESCRIBE_TRANSACTIONS,
        0,
        None,
        DescribeTransactionsRequest(["t"]),
        "0000000f 0041 0000 00000001 ffff 00  02 02 74 00",
    )
    state = DescribedState(0, "t", "Ongoing", 60_000, 1_754_000_000_123, 7, 5, [TopicData("orders", [3])])
    assert_response(
        DESCRIBE_TRANSACTIONS,
        0,
        DescribeTransactionsResponse(0, [state]),
        # size, correlation, header tags | throttle time, 1 id: error, id, state, timeout, start, producer
        "0000003c 00000001 00  00000000 02 0000 02 74 08 4f6e676f696e67 0000ea60 00000198628c047b"
        # 1 topic: name, 1 partition, tags | tags | tags
        f"{PRODUCER} 02 07 6f7264657273 02 00000003 00 00 00",
    )
