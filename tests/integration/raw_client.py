"""A client that sends exactly the frames a test wants sent, also ones that no library would send."""

import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.protocol.frames import decode_response, encode_request
from penstock.protocol.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.protocol.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from penstock.protocol.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from penstock.protocol.records import BatchOptions, Record, build_batch
from penstock.protocol.schema import Api, Request, Response
from penstock.types import Offset
from tests.integration.messages import FIRST_TIMESTAMP_MS

REPLY_SECONDS_MAX = 10.0
PRODUCE_VERSION = 9
FETCH_VERSION = 12
METADATA_VERSION = 9


class Closed(Exception):
    """The broker ended the connection where a reply was expected."""


class RawClient:
    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.settimeout(REPLY_SECONDS_MAX)
        self._correlation_id = 0

    def send(self, api: Api[Request, Response], version: int, request: Request) -> int:
        """Returns the correlation id that its reply will have."""
        self._correlation_id += 1
        frame = encode_request(api, version, self._correlation_id, "raw", request)
        self.socket.sendall(b"".join(frame))
        return self._correlation_id

    def receive(self, api: Api[Request, Response], version: int) -> tuple[int, Response]:
        """The next reply, whose API the caller must know."""
        (size,) = struct.unpack(">i", self.receive_bytes(4))
        return decode_response(api, version, self.receive_bytes(size))

    def ask(self, api: Api[Request, Response], version: int, request: Request) -> Response:
        sent = self.send(api, version, request)
        answered, response = self.receive(api, version)
        assert answered == sent, "replies come in the order of requests"
        return response

    def receive_bytes(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise Closed(f"the broker closed the connection after {len(data)} of {count} bytes")
            data += part
        return bytes(data)

    def is_closed_by_broker(self, seconds_max: float = REPLY_SECONDS_MAX) -> bool:
        """Whether the broker ends the connection within this time, saying nothing more."""
        readable, _, _ = select.select([self.socket], [], [], seconds_max)
        if not readable:
            return False
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    # The requests that nearly every test needs

    def create_topic(self, name: str) -> None:
        """By asking for it."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        while (reply := self.ask(METADATA, METADATA_VERSION, request)).topics[0].error_code:
            assert reply.topics[0].error_code == 5, reply  # LEADER_NOT_AVAILABLE: ask again

    def produce(self, topic: str, batch: bytes, *, partition: int = 0) -> PartitionProduceResponse:
        reply = self.ask(PRODUCE, PRODUCE_VERSION, produce_request(topic, batch, partition=partition))
        return reply.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, *, partition: int = 0) -> FetchResponse:
        return self.ask(FETCH, FETCH_VERSION, fetch_request(topic, offset, partition=partition))


@contextmanager
def connected(address: str) -> Iterator[RawClient]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), REPLY_SECONDS_MAX) as connection:
        yield RawClient(connection)


def batch_of(*values: bytes, **options: Any) -> bytes:
    """A batch with these values, as a producer would send it."""
    known: BatchOptions = options  # type: ignore[assignment]
    records = [
        Record(Offset(index), FIRST_TIMESTAMP_MS + index, None, value) for index, value in enumerate(values)
    ]
    return build_batch(records, **known)


def produce_request(topic: str, batch: bytes, *, partition: int = 0, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def fetch_request(
    topic: str, offset: int, *, partition: int = 0, max_wait_ms: int = 0, min_bytes: int = 0
) -> FetchRequest:
    part = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=10_000_000)
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=[FetchTopic(topic=topic, partitions=[part])]
    )


def records_of(response: FetchResponse) -> bytes:
    """The batches of the only partition in a reply."""
    found = response.responses[0].partitions[0].records
    assert found is None or isinstance(found, bytes | bytearray | memoryview)
    return bytes(found or b"")
