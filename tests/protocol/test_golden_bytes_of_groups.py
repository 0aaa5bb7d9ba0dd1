"""Whole frames of the group APIs, whose bodies Kafka 4.2 reads and writes again as the same bytes."""

from penstock.protocol.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)
from penstock.protocol.messages.join_group import (
    JOIN_GROUP,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from penstock.protocol.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from penstock.types import TopicId
from tests.protocol.test_golden_bytes import assert_request, assert_response

TOPIC_ID = TopicId(bytes(range(16)))


def test_a_member_joins_a_classic_group_with_the_bytes_of_its_subscription() -> None:
    protocols = [JoinGroupRequestProtocol("r", b"s")]
    assert_request(
        JOIN_GROUP,
        0,
        None,
        JoinGroupRequest("g", 10_000, protocol_type="consumer", protocols=protocols),
        # size, key, version, correlation, no client | group, session timeout, no member id yet
        "00000029 000b 0000 00000001 ffff  000167 00002710 0000"
        # protocol type, 1 protocol: its name and metadata
        "0008 636f6e73756d6572 00000001 000172 00000001 73",
    )


def test_the_leader_of_a_classic_group_is_told_its_members() -> None:
    assert_response(
        JOIN_GROUP,
        9,
        JoinGroupResponse(
            generation_id=5,
            protocol_type="consumer",
            protocol_name="r",
            leader="m",
            member_id="m",
            members=[JoinGroupResponseMember("m", None, b"s")],
        ),
        # size, correlation, header tags | throttle time, error, generation, protocol type and name
        "00000027 00000001 00  00000000 0000 00000005 09 636f6e73756d6572 0272"
        # leader, assignment not to be skipped, member id, 1 member: id, no instance, metadata, tags | tags
        "026d 00 026d 02 026d 00 0273 00  00",
    )


def test_an_offset_is_committed_by_topic_id() -> None:
    partition = OffsetCommitRequestPartition(3, 42, 6, None)
    assert_request(
        OFFSET_COMMIT,
        10,
        None,
        OffsetCommitRequest("g", 5, "m", topics=[OffsetCommitRequestTopic("", TOPIC_ID, [partition])]),
        # size, key, version, correlation, no client, header tags | group, member epoch and id, no instance
        "0000003a 0008 000a 00000001 ffff 00  0267 00000005 026d 00"
        # 1 topic: id, 1 partition: index, offset, leader epoch, null metadata, tags | tags | tags
        f"02 {TOPIC_ID.hex()} 02 00000003 000000000000002a 00000006 00 00  00  00",
    )


def test_all_offsets_of_a_group_are_asked_for_with_null() -> None:
    assert_request(
        OFFSET_FETCH,
        2,
        None,
        OffsetFetchRequest("g", None),
        "00000011 0009 0002 00000001 ffff  000167 ffffffff",
    )


def test_offsets_are_given_group_by_group() -> None:
    topic = OffsetFetchResponseTopic("t", partitions=[OffsetFetchResponsePartition(3, 42, 6, "")])
    assert_response(
        OFFSET_FETCH,
        8,
        OffsetFetchResponse(groups=[OffsetFetchResponseGroup("g", [topic])]),
        # size, correlation, header tags | throttle time, 1 group: id, 1 topic: name
        "00000029 00000001 00  00000000 02 0267 02 0274"
        # 1 partition: index, offset, leader epoch, metadata, error, tags | tags
        "02 00000003 000000000000002a 00000006 01 0000 00  00"
        # error of the group, tags | tags
        "0000 00  00",
    )


def test_a_heartbeat_of_a_consumer_group_leaves_out_what_has_not_changed() -> None:
    assert_request(
        CONSUMER_GROUP_HEARTBEAT,
        1,
        None,
        ConsumerGroupHeartbeatRequest("g", "m", 5),
        # size, key, version, correlation, no client, header tags | group, member, epoch
        "0000001e 0044 0001 00000001 ffff 00  0267 026d 00000005"
        # no instance, no rack, no timeout, no names, no expression, no assignor, no partitions, tags
        "00 00 ffffffff 00 00 00 00 00",
    )


def test_an_assignment_that_has_not_changed_is_not_an_empty_one() -> None:
    # correlation, header tags | throttle time, error, no message, member, epoch, interval
    head = "00000001 00  00000000 0000 00 026d 00000005 00001388"
    unchanged = ConsumerGroupHeartbeatResponse(0, 0, None, "m", 5, 5000)
    assert_response(CONSUMER_GROUP_HEARTBEAT, 0, unchanged, f"00000018 {head} ff 00")
    empty = ConsumerGroupHeartbeatResponse(0, 0, None, "m", 5, 5000, HeartbeatAssignment())
    assert_response(CONSUMER_GROUP_HEARTBEAT, 0, empty, f"0000001a {head} 01 01 00 00")
    given = HeartbeatAssignment([HeartbeatTopicPartitions(TOPIC_ID, [3])])
    assert_response(
        CONSUMER_GROUP_HEARTBEAT,
        0,
        ConsumerGroupHeartbeatResponse(0, 0, None, "m", 5, 5000, given),
        f"00000030 {head} 01 02 {TOPIC_ID.hex()} 02 00000003 00  00 00",
    )
