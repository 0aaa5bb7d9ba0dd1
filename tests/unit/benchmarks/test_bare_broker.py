"""The bare broker reads frames, however the network divides them."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.bare_broker import API_VERSIONS, HEADER, RECEIVE_BYTES, SIZE, BareConnection, BareLog


class Replies(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


def request(correlation_id: int) -> bytes:
    frame = HEADER.pack(API_VERSIONS, 0, correlation_id, 0)
    return SIZE.pack(len(frame)) + frame


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 1000])
async def test_a_size_may_arrive_in_two_parts(chunk: int, tmp_path: Path) -> None:
    log = BareLog(tmp_path / "log", asyncio.get_running_loop())
    connection, replies = BareConnection(log, bytearray(RECEIVE_BYTES)), Replies()
    connection.connection_made(replies)
    left = b"".join(request(number) for number in range(5))
    while left:
        room = connection.get_buffer(-1)
        count = min(chunk, len(room), len(left))
        room[:count] = left[:count]
        connection.buffer_updated(count)
        left = left[count:]
    assert [SIZE.unpack_from(reply, SIZE.size)[0] for reply in replies.sent] == list(range(5))
