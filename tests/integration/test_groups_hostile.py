"""Short requests about groups with very long answers, and long ones that fit nowhere."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import penstock.broker.network.connection as broker_connection
from penstock.broker import router
from penstock.errors import ErrorCode
from penstock.groups.records import OffsetCommitKey, encode_key
from penstock.limits import GROUP_ID_BYTES_MAX, GROUP_REPLY_BYTES_MAX, GROUPS_REPORTED_PER_CHUNK
from penstock.protocol.batches import split_batches
from penstock.protocol.messages.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
)
from penstock.protocol.messages.create_topics import CREATE_TOPICS, CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.delete_groups import DELETE_GROUPS, DeleteGroupsRequest
from penstock.protocol.messages.delete_topics import DELETE_TOPICS, DeleteTopicsRequest
from penstock.protocol.messages.describe_groups import (
    DESCRIBE_GROUPS,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from penstock.protocol.messages.list_groups import LIST_GROUPS, ListGroupsRequest
from penstock.protocol.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.offset_delete import (
    OFFSET_DELETE,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from penstock.protocol.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from penstock.protocol.records import Record, build_batch
from penstock.testing import Broker, broker
from penstock.types import Offset
from tests.integration.broker_process import eventually
from tests.integration.disk_faults import small_disk
from tests.integration.group_client import (
    ask_for_offsets,
    commit,
    committed,
    committed_once_loaded,
    find_coordinator,
)
from tests.integration.messages import FIRST_TIMESTAMP_MS
from tests.integration.raw_client import Closed, RawClient, connected
from tests.integration.test_committed_offsets import fill

NONE = {ErrorCode.NONE}
PARTITIONS = 500
NOTE = "n" * 1_000
ONE_SHARD = {"offsets.topic.num.partitions": 1}


@pytest.fixture(scope="module")
def served() -> Iterator[Broker]:
    with broker(**ONE_SHARD) as running, connected(running.bootstrap) as client:
        for name, partitions in (("wide", PARTITIONS), ("a", 1), ("b", 1)):
            topic = CreatableTopic(name, partitions, 1)
            client.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic]))
        find_coordinator(client, "g")
        committed_once_loaded(client, "g", "a", 0)
        assert commit(client, "g", "a", {0: 1}) == NONE
        assert commit(client, "g", "b", {0: 2}) == NONE
        assert commit_wide(client, "wide readers") == NONE
        yield running


@pytest.fixture
def client(served: Broker) -> Iterator[RawClient]:
    with connected(served.bootstrap) as client:
        yield client


def commit_wide(client: RawClient, group: str, note: str = NOTE) -> set[ErrorCode]:
    partitions = [OffsetCommitRequestPartition(index, 1, 3, note) for index in range(PARTITIONS)]
    request = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic("wide", partitions=partitions)]
    )
    reply = client.ask(OFFSET_COMMIT, 9, request)
    return {ErrorCode(each.error_code) for each in reply.topics[0].partitions}


# Replies


def test_a_group_named_twice_is_answered_twice_each_with_its_topics(client: RawClient) -> None:
    wanted = [
        OffsetFetchRequestGroup("g", topics=[OffsetFetchRequestTopic(name, partition_indexes=[0])])
        for name in ("a", "b", "a")
    ]
    found = client.ask(OFFSET_FETCH, 9, OffsetFetchRequest(groups=wanted)).groups
    told = [(topic.name, topic.partitions[0].committed_offset) for group in found for topic in group.topics]
    assert told == [("a", 1), ("b", 2), ("a", 1)]


def test_a_request_for_too_much_gets_what_fits_and_a_refusal(
    client: RawClient,
) -> None:
    count = 2 * GROUP_REPLY_BYTES_MAX // (PARTITIONS * len(NOTE))
    wanted = [OffsetFetchRequestGroup("wide readers", topics=None)] * count
    client.send(OFFSET_FETCH, 9, OffsetFetchRequest(groups=wanted))
    size = int.from_bytes(client.receive_bytes(4))
    assert size < GROUP_REPLY_BYTES_MAX
    client.receive_bytes(size)
    found = client.ask(OFFSET_FETCH, 9, OffsetFetchRequest(groups=wanted)).groups
    codes = [ErrorCode(group.error_code) for group in found]
    told = codes.index(ErrorCode.POLICY_VIOLATION)
    assert len(codes) == count
    assert told > 10
    assert codes == [ErrorCode.NONE] * told + [ErrorCode.POLICY_VIOLATION] * (count - told)
    assert all(len(group.topics[0].partitions) == PARTITIONS for group in found[:told])
    assert all(group.topics == [] for group in found[told:])


def test_one_partition_asked_for_very_often_is_very_much_too(client: RawClient) -> None:
    indexes = [0] * (GROUP_REPLY_BYTES_MAX // len(NOTE))
    wanted = OffsetFetchRequestTopic("wide", partition_indexes=indexes)
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("wide readers", topics=[wanted])])
    (group,) = client.ask(OFFSET_FETCH, 9, request).groups
    assert (group.error_code, group.topics) == (ErrorCode.POLICY_VIOLATION, [])


def test_everything_that_a_group_has_kept_is_told_when_it_fits(client: RawClient) -> None:
    wanted = [OffsetFetchRequestGroup("wide readers", topics=None), OffsetFetchRequestGroup("g", topics=None)]
    wide, small = client.ask(OFFSET_FETCH, 9, OffsetFetchRequest(groups=wanted)).groups
    (topic,) = wide.topics
    assert {each.partition_index for each in topic.partitions} == set(range(PARTITIONS))
    assert {each.metadata for each in topic.partitions} == {NOTE}
    assert {topic.name for topic in small.topics} == {"a", "b"}


@pytest.mark.parametrize("count", [2, 10 * GROUPS_REPORTED_PER_CHUNK])
def test_a_group_described_many_times_is_described_once(client: RawClient, count: int) -> None:
    names = ["g"] * count + ["wide readers"] * count
    described = client.ask(DESCRIBE_GROUPS, 4, DescribeGroupsRequest(groups=names)).groups
    assert [group.group_id for group in described] == ["g", "wide readers"]
    request = ConsumerGroupDescribeRequest(group_ids=names)
    consumers = client.ask(CONSUMER_GROUP_DESCRIBE, 0, request).groups
    assert [group.group_id for group in consumers] == ["g", "wide readers"]


def test_many_groups_are_described_and_deleted_in_the_order_asked(client: RawClient) -> None:
    names = [f"nobody-{number}" for number in range(3 * GROUPS_REPORTED_PER_CHUNK + 1)]
    described = client.ask(DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=names)).groups
    assert [group.group_id for group in described] == names
    assert {group.error_code for group in described} == {ErrorCode.GROUP_ID_NOT_FOUND}
    deleted = client.ask(DELETE_GROUPS, 2, DeleteGroupsRequest(names)).results
    assert [(each.group_id, each.error_code) for each in deleted] == [
        (name, ErrorCode.GROUP_ID_NOT_FOUND) for name in names
    ]


def test_all_groups_are_listed(client: RawClient) -> None:
    listed = {group.group_id for group in client.ask(LIST_GROUPS, 4, ListGroupsRequest()).groups}
    assert {"g", "wide readers"} <= listed


def test_a_reply_that_cannot_be_encoded_is_the_trouble_of_one_client_alone(
    served: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = router.encode_reply

    def failing(route: object, header: object, reply: object) -> object:
        if isinstance(reply, DescribeGroupsResponse) and not reply.groups[0].error_code:
            raise OverflowError("it is too large")
        return encode(route, header, reply)  # type: ignore[arg-type]

    monkeypatch.setattr(broker_connection, "encode_reply", failing)
    with connected(served.bootstrap) as other, connected(served.bootstrap) as another:
        place = OffsetCommitRequestPartition(0, 1, 3, "")
        request = OffsetCommitRequest(
            group_id="h", topics=[OffsetCommitRequestTopic("a", partitions=[place])]
        )
        other.send(OFFSET_COMMIT, 9, request)
        client.send(DESCRIBE_GROUPS, 4, DescribeGroupsRequest(groups=["g"]))
        another.send(OFFSET_COMMIT, 9, request)
        for committing in (other, another):
            reply = committing.receive(OFFSET_COMMIT, 9)[1]
            assert reply.topics[0].partitions[0].error_code == ErrorCode.NONE
        with suppress(Closed):  # which it is, unless its answer had to wait for the disk
            (described,) = client.receive(DESCRIBE_GROUPS, 4)[1].groups
            assert described.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert commit(other, "g", "a", {0: 1}) == NONE


# What is to be written


def test_a_commit_that_is_too_large_is_refused_and_costs_nobody_anything(client: RawClient) -> None:
    assert commit_wide(client, "g" * GROUP_ID_BYTES_MAX, "n" * 4_096) == {
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    }
    assert commit(client, "g" * (GROUP_ID_BYTES_MAX + 1), "a", {0: 1}) == {ErrorCode.INVALID_GROUP_ID}
    assert committed(client, "g", "a", 0) == {0: 1}


def test_a_group_with_more_offsets_than_a_batch_holds_is_deleted(tmp_path: Path) -> None:
    """8,000 tombstones with a name of a kilobyte take eight megabytes: as much as a segment."""
    name, wide = "g" * GROUP_ID_BYTES_MAX, "w" * 249
    settings = {**ONE_SHARD, "offsets.topic.segment.bytes": 4 * 1024 * 1024}
    indexes = range(4_500)
    with broker(tmp_path / "data", **settings) as running, connected(running.bootstrap) as client:
        topic = CreatableTopic(wide, len(indexes), 1)
        client.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic]))
        find_coordinator(client, name)
        committed_once_loaded(client, name, wide, 0)

        def fill_group() -> None:
            for first in range(0, len(indexes), 1_000):
                some = dict.fromkeys(indexes[first : first + 1_000], 7)
                assert commit(client, name, wide, some) == NONE

        fill_group()
        (deleted,) = client.ask(DELETE_GROUPS, 2, DeleteGroupsRequest([name])).results
        assert deleted.error_code == ErrorCode.NONE
        fill_group()
        partitions = [OffsetDeleteRequestPartition(index) for index in indexes]
        request = OffsetDeleteRequest(name, [OffsetDeleteRequestTopic(wide, partitions)])
        reply = client.ask(OFFSET_DELETE, 0, request)
        assert {each.error_code for each in reply.topics[0].partitions} == {ErrorCode.NONE}
        assert committed(client, name, wide, 0, 4_499) == {0: -1, 4_499: -1}


def test_an_expiry_of_its_own_does_not_make_an_offset_outlive_its_topic(client: RawClient) -> None:
    client.create_topic("short")
    place = OffsetCommitRequestPartition(0, 77, -1, "")
    request = OffsetCommitRequest(
        group_id="old client",
        retention_time_ms=86_400_000,
        topics=[OffsetCommitRequestTopic("short", partitions=[place])],
    )
    client.ask(OFFSET_COMMIT, 4, request)
    assert committed(client, "old client", "short", 0) == {0: 77}
    client.ask(DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["short"], timeout_ms=5_000))
    client.create_topic("short")
    assert committed(client, "old client", "short", 0) == {0: -1}


# What cannot be read


def write_behind_its_back(data_dir: Path, key: bytes, value: bytes) -> None:
    """Add a sound batch to the log of a broker that has stopped, as if it had written it last."""
    path = data_dir / "logs" / "__consumer_offsets-0" / f"{0:020d}.log"
    data = path.read_bytes()
    (*_, (_, last)) = split_batches(data)
    record = Record(Offset(0), FIRST_TIMESTAMP_MS, key, value)
    options = {"base_offset": last.next_offset, "leader_epoch": last.leader_epoch}
    path.write_bytes(data + build_batch([record], **options))  # type: ignore[arg-type]
    (data_dir / "clean-shutdown").unlink()


@pytest.mark.parametrize("value", [b"\x00\x05" + bytes(20), b"\x00\x04\xff"], ids=["newer", "damaged"])
def test_an_offset_that_cannot_be_read_is_an_error_and_never_none(tmp_path: Path, value: bytes) -> None:
    with broker(tmp_path / "data", **ONE_SHARD) as running, connected(running.bootstrap) as client:
        for name in ("t", "u"):
            client.create_topic(name)
        find_coordinator(client, "g")
        committed_once_loaded(client, "g", "t", 0)
        assert commit(client, "g", "t", {0: 5}) == NONE
        assert commit(client, "g", "u", {0: 6}) == NONE
    write_behind_its_back(tmp_path / "data", encode_key(OffsetCommitKey("g", "t", 0)), value)
    with broker(tmp_path / "data", **ONE_SHARD) as running, connected(running.bootstrap) as client:
        assert committed_once_loaded(client, "g", "u", 0) == {0: 6}
        (told,) = ask_for_offsets(client, "g", "t", 0).topics[0].partitions
        assert told.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        everything = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)])
        topics = client.ask(OFFSET_FETCH, 9, everything).groups[0].topics
        codes = {topic.name: topic.partitions[0].error_code for topic in topics}
        assert codes == {"t": ErrorCode.UNKNOWN_SERVER_ERROR, "u": ErrorCode.NONE}
        assert commit(client, "g", "t", {0: 7}) == NONE
        assert committed(client, "g", "t", 0) == {0: 7}


# A full disk


def test_on_a_full_disk_offsets_are_still_told(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path, 24) as path,
        broker(path / "data", **ONE_SHARD) as running,
        connected(running.bootstrap) as client,
    ):
        client.create_topic("t")
        find_coordinator(client, "g")
        committed_once_loaded(client, "g", "t", 0)
        assert commit(client, "g", "t", {0: 1}) == NONE
        fill(path / "ballast")
        offset = 1
        while commit(client, "g", "t", {0: offset + 1}) == NONE:
            offset += 1  # the last block had some room
        assert committed_once_loaded(client, "g", "t", 0) == {0: offset}
        for _ in range(20):
            assert commit(client, "g", "t", {0: 99}) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
            assert committed(client, "g", "t", 0) == {0: offset}
        assert ask_for_offsets(client, "g", "t", 0).topics[0].partitions[0].metadata == "a note"
        (path / "ballast").unlink()
        eventually(lambda: commit(client, "g", "t", {0: 100}) == NONE)
        assert committed(client, "g", "t", 0) == {0: 100}
