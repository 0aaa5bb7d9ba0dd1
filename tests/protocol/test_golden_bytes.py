"""Whole frames whose every byte was checked against Kafka's documentation of the protocol."""

from penstock.protocol.frames import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    parse_request_header,
)
from penstock.protocol.messages.api_versions import (
    API_VERSIONS,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from penstock.protocol.messages.describe_topic_partitions import (
    DESCRIBE_TOPIC_PARTITIONS,
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from penstock.protocol.messages.fetch import FETCH, FetchRequest, ReplicaState
from penstock.protocol.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from penstock.protocol.messages.produce import (
    PRODUCE,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.protocol.messages.write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.protocol.schema import Api, Request, Response
from penstock.types import TopicId

SIZE_BYTES = 4


def assert_request(
    api: Api[Request, Response], version: int, client_id: str | None, message: Request, frame: str
) -> None:
    wire = bytes.fromhex(frame)
    assert b"".join(encode_request(api, version, 1, client_id, message)) == wire
    header, position = parse_request_header(memoryview(wire)[SIZE_BYTES:])
    assert (header.api_key, header.api_version, header.correlation_id) == (api.key, version, 1)
    assert header.client_id == client_id
    assert decode_request(api, version, memoryview(wire)[SIZE_BYTES:], position) == message


def assert_response(api: Api[Request, Response], version: int, message: Response, frame: str) -> None:
    wire = bytes.fromhex(frame)
    assert b"".join(encode_response(api, version, 1, message)) == wire
    assert decode_response(api, version, memoryview(wire)[SIZE_BYTES:]) == (1, message)


def test_the_first_request_of_a_modern_client() -> None:
    assert_request(
        API_VERSIONS,
        3,
        "c",
        ApiVersionsRequest("kafka-python", "3.0.12"),
        "000000210012000300000001000163000d6b61666b612d707974686f6e07332e302e313200",
    )


def test_api_versions_is_answered_with_the_old_header_and_tagged_features() -> None:
    assert_response(
        API_VERSIONS,
        3,
        ApiVersionsResponse(
            api_keys=[ApiVersion(18, 0, 4)],
            finalized_features_epoch=0,
            finalized_features=[FinalizedFeatureKey("transaction.version", 2, 2)],
        ),
        "000000390000000100000200120000000400000000000201080000000000000000021a02147472616e73616374696f6e"
        "2e76657273696f6e0002000200",
    )


def test_an_unsupported_version_of_api_versions_is_answered_in_version_0() -> None:
    assert_response(
        API_VERSIONS,
        0,
        ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(18, 0, 4)]),
        "0000001000000001002300000001001200000004",
    )


def test_a_classic_request_without_a_client_id_asks_for_all_topics() -> None:
    assert_request(
        METADATA,
        1,
        None,
        MetadataRequest(topics=None),
        "0000000e" + "0003" + "0001" + "00000001" + "ffff" + "ffffffff",
    )


def test_a_flexible_request_names_a_topic_by_its_id() -> None:
    topic_id = "000102030405060708090a0b0c0d0e0f"
    assert_request(
        METADATA,
        12,
        "c",
        MetadataRequest([MetadataRequestTopic(TopicId(bytes.fromhex(topic_id)), None)], True),
        # size, key, version, correlation, client id, header tags | 1 topic, id, null name, tags | flags, tags
        "00000022"
        + "0003"
        + "000c"
        + "00000001"
        + "000163"
        + "00"
        + "02"
        + topic_id
        + "00"
        + "00"
        + "0100"
        + "00",
    )


def test_a_fetch_from_a_follower_tells_its_state_in_a_tag() -> None:
    assert_request(
        FETCH,
        15,
        None,
        FetchRequest(
            cluster_id="k", replica_state=ReplicaState(2, 5), max_wait_ms=500, min_bytes=1, max_bytes=1024
        ),
        "00000037"
        + "0001"
        + "000f"
        + "00000001"
        + "ffff"
        + "00"
        # wait, min, max, isolation, session id and epoch, no topics, none forgotten, no rack
        + "000001f4"
        + "00000001"
        + "00000400"
        + "00"
        + "00000000"
        + "ffffffff"
        + "01"
        + "01"
        + "01"
        # two tags: 0 is the cluster id, 1 the replica's id and epoch
        + "02"
        + "00"
        + "02"
        + "026b"
        + "01"
        + "0d"
        + "00000002"
        + "0000000000000005"
        + "00",
    )


def test_a_null_cursor_and_a_cursor_are_told_apart_by_one_byte() -> None:
    head = "004b" + "0000" + "00000001" + "ffff" + "00"
    topics = "02" + "0274" + "00"
    assert_request(
        DESCRIBE_TOPIC_PARTITIONS,
        0,
        None,
        DescribeTopicPartitionsRequest([TopicRequest("t")], 7),
        "00000015" + head + topics + "00000007" + "ff" + "00",
    )
    assert_request(
        DESCRIBE_TOPIC_PARTITIONS,
        0,
        None,
        DescribeTopicPartitionsRequest([TopicRequest("t")], 7, Cursor("t", 3)),
        "0000001c" + head + topics + "00000007" + "01" + "0274" + "00000003" + "00" + "00",
    )


def test_a_produce_reply_hints_at_the_new_leader() -> None:
    partition = PartitionProduceResponse(3, 6, -1, current_leader=LeaderIdAndEpoch(2, 9))
    assert_response(
        PRODUCE,
        10,
        ProduceResponse(
            [TopicProduceResponse("t", partition_responses=[partition])], 0, [NodeEndpoint(2, "h", 9092)]
        ),
        "0000004a"
        + "00000001"
        + "00"
        + "02"
        + "0274"
        + "02"
        # partition, error, base offset, append time, log start, no record errors, no message
        + "00000003"
        + "0006"
        + "ff" * 8
        + "ff" * 8
        + "ff" * 8
        + "01"
        + "00"
        # its one tag: leader and epoch; end of topic; throttle time
        + "01"
        + "00"
        + "09"
        + "00000002"
        + "00000009"
        + "00"
        + "00"
        + "00000000"
        # one tag: one endpoint without a rack
        + "01"
        + "00"
        + "0d"
        + "02"
        + "00000002"
        + "0268"
        + "00002384"
        + "00"
        + "00",
    )


def test_a_coordinator_ends_a_transaction_in_two_partitions() -> None:
    topics = [WritableTxnMarkerTopic("t", [0, 3])]
    assert_request(
        WRITE_TXN_MARKERS,
        2,
        "c",
        WriteTxnMarkersRequest([WritableTxnMarker(7, 2, True, topics, 5, 2)]),
        "0000002c"
        + "001b"
        + "0002"
        + "00000001"
        + "000163"
        + "00"
        # one marker: producer, epoch, commit, one topic with two partitions, coordinator epoch, version
        + "02"
        + "0000000000000007"
        + "0002"
        + "01"
        + "02"
        + "0274"
        + "03"
        + "00000000"
        + "00000003"
        + "00"
        + "00000005"
        + "02"
        + "00"
        + "00",
    )


def test_each_partition_of_a_marker_has_an_error_code() -> None:
    entries = [WritableTxnMarkerPartitionResult(0), WritableTxnMarkerPartitionResult(3, 52)]
    result = WritableTxnMarkerResult(7, [WritableTxnMarkerTopicResult("t", entries)])
    assert_response(
        WRITE_TXN_MARKERS,
        1,
        WriteTxnMarkersResponse([result]),
        "00000023"
        + "00000001"
        + "00"
        + "02"
        + "0000000000000007"
        + "02"
        + "0274"
        + "03"
        + "00000000"
        + "0000"
        + "00"
        + "00000003"
        + "0034"
        + "00"
        + "00"
        + "00"
        + "00",
    )
