"""A client that names many partitions in every fetch, and repeats itself, as librdkafka does.

What it is told is compared with what a client is told that never asked before.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ErrorCode
from penstock.protocol.messages.create_topics import CREATE_TOPICS, CreatableTopic, CreateTopicsRequest
from penstock.protocol.messages.delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from penstock.protocol.messages.delete_topics import DELETE_TOPICS, DeleteTopicsRequest
from penstock.protocol.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.protocol.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from penstock.types import NO_TOPIC_ID
from tests.integration.broker_process import serving
from tests.integration.raw_client import RawClient, batch_of, connected

COUNT = 40
TOPIC = "orders"


class Reader:
    """Fetches all partitions, each from where it is, beginning with another one every time."""

    def __init__(self, client: RawClient, address: str, version: int) -> None:
        self.client = client
        self.address = address
        self.version = version
        self.offsets = [0] * COUNT
        self.leader_epoch = -1
        self.isolation_level = 0
        self.topic_id = NO_TOPIC_ID
        self._first = 0

    def learn_topic_id(self) -> None:
        (topic,) = self.client.ask(
            METADATA, 12, MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        ).topics
        self.topic_id = topic.topic_id

    def request(self, *, max_wait_ms: int = 0) -> FetchRequest:
        self._first = (self._first + 1) % COUNT
        numbers = [(self._first + number) % COUNT for number in range(COUNT)]
        partitions = [
            FetchPartition(number, self.leader_epoch, self.offsets[number], -1, -1, 1 << 20)
            for number in numbers
        ]
        by_id = self.version >= 13
        topic = FetchTopic("" if by_id else TOPIC, self.topic_id if by_id else NO_TOPIC_ID, partitions)
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 24,
            isolation_level=self.isolation_level,
            session_epoch=-1,
            topics=[topic],
        )

    def told(self) -> FetchResponse:
        """Which is what somebody else is told."""
        request = self.request()
        told = self.client.ask(FETCH, self.version, request)
        with connected(self.address) as other:
            assert other.ask(FETCH, self.version, request) == told
        return told

    def read(self) -> list[int]:
        """The partitions with records; the next fetch goes on after them."""
        (topic,) = self.told().responses
        assert {data.error_code for data in topic.partitions} == {0}
        for data in topic.partitions:
            self.offsets[data.partition_index] = data.high_watermark
        return sorted(data.partition_index for data in topic.partitions if data.records)

    def errors(self) -> dict[int, int]:
        (topic,) = self.told().responses
        return {data.partition_index: data.error_code for data in topic.partitions}


def create(client: RawClient) -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(TOPIC, COUNT, 1)], timeout_ms=10_000)
    (made,) = client.ask(CREATE_TOPICS, 7, request).topics
    assert made.error_code == 0


@pytest.fixture(params=[12, 16])
def reader(data_dir: Path, request: Any) -> Iterator[Reader]:
    with serving(data_dir) as broker, connected(broker.bootstrap) as client:
        create(client)
        reading = Reader(client, broker.bootstrap, request.param)
        reading.learn_topic_id()
        for _ in range(3):
            assert reading.read() == []
        yield reading


@contextmanager
def waiting(reader: Reader) -> Iterator[list[FetchResponse]]:
    """A fetch that finds nothing; its reply is there after the block."""
    replies: list[FetchResponse] = []
    reader.client.send(FETCH, reader.version, reader.request(max_wait_ms=10_000))
    yield replies
    replies.append(reader.client.receive(FETCH, reader.version)[1])


def test_new_records_are_read_and_each_once(reader: Reader) -> None:
    for written in ([3], [3, 17, 39], [], list(range(COUNT)), [0]):
        for number in written:
            reader.client.produce(TOPIC, batch_of(b"value"), partition=number)
        assert reader.read() == written
    assert reader.read() == []


def test_a_fetch_that_waits_is_answered_with_what_came_and_with_the_rest(reader: Reader) -> None:
    reader.client.produce(TOPIC, batch_of(b"before"), partition=9)
    reader.read()
    with connected(reader.address) as producer, waiting(reader) as replies:
        producer.produce(TOPIC, batch_of(b"value"), partition=5)
    (topic,) = replies[0].responses
    assert sorted(data.partition_index for data in topic.partitions) == list(range(COUNT))
    (news,) = [data for data in topic.partitions if data.records]
    assert (news.partition_index, news.high_watermark) == (5, 1)
    assert {data.partition_index: data.high_watermark for data in topic.partitions}[9] == 1


def test_a_log_that_begins_elsewhere_is_told(reader: Reader) -> None:
    reader.client.produce(TOPIC, batch_of(b"a", b"b"), partition=4)
    reader.read()
    deletion = DeleteRecordsTopic(TOPIC, [DeleteRecordsPartition(4, 1)])
    reader.client.ask(DELETE_RECORDS, 2, DeleteRecordsRequest([deletion], 10_000))
    (topic,) = reader.told().responses
    assert {data.log_start_offset for data in topic.partitions if data.partition_index == 4} == {1}


def test_a_topic_that_was_deleted_and_made_again_is_another(reader: Reader) -> None:
    reader.client.produce(TOPIC, batch_of(b"a"), partition=4)
    reader.read()
    reader.client.ask(DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=10_000))
    by_id = reader.version >= 13
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert reader.errors() == dict.fromkeys(range(COUNT), unknown)
    create(reader.client)
    expected = dict.fromkeys(range(COUNT), unknown if by_id else ErrorCode.NONE)
    if not by_id:
        expected[4] = ErrorCode.OFFSET_OUT_OF_RANGE
    assert reader.errors() == expected


def test_a_client_of_another_leader_epoch_is_fenced(reader: Reader) -> None:
    reader.leader_epoch = 77
    for _ in range(2):
        assert reader.errors() == dict.fromkeys(range(COUNT), ErrorCode.UNKNOWN_LEADER_EPOCH)


def test_who_reads_committed_records_is_told_of_no_transactions(reader: Reader) -> None:
    for isolation_level, expected in ((1, []), (0, None), (1, [])):
        reader.isolation_level = isolation_level
        for _ in range(2):
            (topic,) = reader.told().responses
            assert [data.aborted_transactions for data in topic.partitions] == [expected] * COUNT


def test_a_damaged_repeat_closes_the_connection(reader: Reader) -> None:
    """And the broker serves on."""
    frame = struct.pack(">ihhi", 12, FETCH.key, reader.version, 1) + b"\xff\xff\x00\x00"
    reader.client.socket.sendall(frame)
    assert reader.client.is_closed_by_broker()
    with connected(reader.address) as other:
        assert other.ask(FETCH, reader.version, reader.request()).error_code == 0
