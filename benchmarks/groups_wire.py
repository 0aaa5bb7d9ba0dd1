"""OffsetCommit and OffsetFetch as raw frames with many in flight: measures the broker, not a client library.

A frame is encoded once; each sending overwrites only its correlation id and its offsets. The expected
response is known beforehand, so responses are compared and not decoded. Both keep the client's cost at a few
microseconds.

Rule 1: a response that differs from the expected bytes ends the benchmark.
Rule 2: the frames in flight on a connection fit into its socket buffers. Otherwise broker and client could
        each wait for the other to read.
"""

import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.clients import STALL_S_MAX, ClientFailed
from benchmarks.phase import Gauge, Phase
from penstock.coordinator.shard_placement import shard_of
from penstock.errors import ErrorCode
from penstock.host.blocking_stream import open_stream
from penstock.protocol.frames import encode_request, encode_response
from penstock.protocol.messages.find_coordinator import FIND_COORDINATOR, FindCoordinatorRequest
from penstock.protocol.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.protocol.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from penstock.wire.blocking_client import BlockingClient

SHARDS = 50
"""Default number of partitions of __consumer_offsets."""
VERSION = 9
"""Version of both requests: the newest one with topic names."""
CLIENT_ID = "benchmarks"
RECEIVE_BYTES = 256 * 1024
ANSWER_S_MAX = 30.0
LOAD_S_MAX = 300.0
LOOK_AGAIN_S = 0.025

_SIZE = struct.Struct(">i")
_NUMBER_AT = 8
_REPLY_HEADER = struct.Struct(">ii")
_OFFSET = struct.Struct(">q")
_MARK = 0x5A5B_5C5D_5E5F_6061
"""Placeholder offset that occurs nowhere else in a frame: its position is where offsets are written."""


class Exchange(NamedTuple):
    """A frame without its correlation id, and the response without size and correlation id."""

    request: bytearray
    reply: bytes


# Groups


def groups_of_shard(shard: int, count: int) -> list[str]:
    """Names of groups of one coordinator shard."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        name = f"group-{shard}-{number}"
        if shard_of(name, SHARDS) == shard:
            found.append(name)
        number += 1
    return found


# Frames


class CommitFrame:
    """A group's OffsetCommit for the first partitions of a topic, sent each time with other offsets."""

    def __init__(self, group: str, topic: str, partitions: int) -> None:
        asked = [OffsetCommitRequestPartition(index, _MARK) for index in range(partitions)]
        request = OffsetCommitRequest(
            group_id=group, topics=[OffsetCommitRequestTopic(topic, partitions=asked)]
        )
        self._frame = bytearray(b"".join(encode_request(OFFSET_COMMIT, VERSION, 0, CLIENT_ID, request)))
        self._offsets_at = _places_of_mark(self._frame)
        assert len(self._offsets_at) == partitions
        said = [OffsetCommitResponsePartition(index) for index in range(partitions)]
        response = OffsetCommitResponse(topics=[OffsetCommitResponseTopic(topic, partitions=said)])
        self._answer = _without_number(encode_response(OFFSET_COMMIT, VERSION, 0, response))

    def at(self, offset: int) -> Exchange:
        frame = bytearray(self._frame)
        for place in self._offsets_at:
            _OFFSET.pack_into(frame, place, offset)
        return Exchange(frame, self._answer)


def fetch_frame(groups: Sequence[str], topic: str, partitions: int, offset: int) -> Exchange:
    """OffsetFetch of several groups that have all committed the same offsets."""
    indexes = list(range(partitions))
    wanted = [OffsetFetchRequestTopic(topic, partition_indexes=indexes)]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=wanted) for group in groups])
    found = [OffsetFetchResponseTopic(topic, partitions=[_committed(index, offset) for index in indexes])]
    response = OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group, found) for group in groups])
    return Exchange(
        bytearray(b"".join(encode_request(OFFSET_FETCH, VERSION, 0, CLIENT_ID, request))),
        _without_number(encode_response(OFFSET_FETCH, VERSION, 0, response)),
    )


def _committed(index: int, offset: int) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(index, offset)


def _places_of_mark(frame: bytearray) -> list[int]:
    mark, places, place = _OFFSET.pack(_MARK), [], -1
    while (place := frame.find(mark, place + 1)) >= 0:
        places.append(place)
    return places


def _without_number(buffers: Sequence[bytes | bytearray | memoryview]) -> bytes:
    return b"".join(buffers)[_REPLY_HEADER.size :]


# Asking one by one


@contextmanager
def client_of(bootstrap: str) -> Iterator[BlockingClient]:
    with open_stream(*_address(bootstrap), timeout_s=ANSWER_S_MAX) as stream:
        yield BlockingClient(stream, CLIENT_ID)


def make_group_topic(client: BlockingClient) -> None:
    """Create __consumer_offsets, which the first FindCoordinator does."""
    reply = client.ask(FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=["first"]))
    if reply.coordinators[0].error_code != ErrorCode.NONE:
        raise ClientFailed(f"no coordinator: {reply.coordinators[0].error_message}")


def wait_for_shards(client: BlockingClient) -> None:
    """Wait until every shard has loaded its groups."""
    groups = [OffsetFetchRequestGroup(groups_of_shard(shard, 1)[0], topics=[]) for shard in range(SHARDS)]
    deadline = time.monotonic() + LOAD_S_MAX
    while True:
        answers = client.ask(OFFSET_FETCH, OffsetFetchRequest(groups=groups)).groups
        codes = {reply.error_code for reply in answers} - {ErrorCode.NONE}
        if not codes:
            return
        if codes != {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS} or time.monotonic() > deadline:
            raise ClientFailed(f"coordinators refuse: {[ErrorCode(code).name for code in codes]}")
        time.sleep(LOOK_AGAIN_S)


# Asking without waiting


class _PipelinedConnection:
    """A connection with the requests to send and the responses that are due."""

    def __init__(self, bootstrap: str, exchanges: Iterator[Exchange]) -> None:
        self.socket = socket.create_connection(_address(bootstrap), timeout=STALL_S_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._exchanges = exchanges
        self._number = 0
        self._due: deque[tuple[int, bytes]] = deque()
        self._received = bytearray()

    def ask(self, count: int) -> bool:
        """Send up to `count` more. False once everything has been sent and answered."""
        frames = []
        for exchange in self._exchanges:
            self._number += 1
            _SIZE.pack_into(exchange.request, _NUMBER_AT, self._number)
            self._due.append((self._number, exchange.reply))
            frames.append(exchange.request)
            if len(frames) == count:
                break
        if frames:
            self.socket.sendall(b"".join(frames))
        return bool(self._due)

    def take(self) -> int:
        """Read what has arrived. Returns the number of complete responses."""
        piece = self.socket.recv(RECEIVE_BYTES)
        if not piece:
            raise ClientFailed("the broker closed the connection")
        self._received += piece
        received, start, count = bytes(self._received), 0, 0
        while len(received) - start >= _REPLY_HEADER.size:
            size, number = _REPLY_HEADER.unpack_from(received, start)
            end = start + _SIZE.size + size
            if end > len(received):
                break
            expected = self._due.popleft()
            if (number, received[start + _REPLY_HEADER.size : end]) != expected:
                raise ClientFailed(f"request {expected[0]} was answered {received[start:end]!r:.200}")
            start, count = end, count + 1
        del self._received[:start]
        return count


def exchange_all(
    bootstrap: str, broker_pids: tuple[int, ...], lanes: Sequence[Iterator[Exchange]], in_flight: int
) -> Phase:
    """Send every lane through its own connection, each with a number of frames in flight."""
    with selectors.DefaultSelector() as selector:
        opened = [_PipelinedConnection(bootstrap, exchanges) for exchanges in lanes]
        try:
            gauge = Gauge(broker_pids)
            for lane in opened:
                if lane.ask(in_flight):
                    selector.register(lane.socket, selectors.EVENT_READ, lane)
            answered = _serve(selector)
            return gauge.stop(answered)
        finally:
            for lane in opened:
                lane.socket.close()


def _serve(selector: selectors.BaseSelector) -> int:
    answered = 0
    while selector.get_map():
        ready = selector.select(STALL_S_MAX)
        if not ready:
            raise ClientFailed(f"{answered} answers came, then none for {STALL_S_MAX} s")
        for key, _ in ready:
            count = key.data.take()
            answered += count
            if count and not key.data.ask(count):
                selector.unregister(key.fileobj)
    return answered


def _address(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)
