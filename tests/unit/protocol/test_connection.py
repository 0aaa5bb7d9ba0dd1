"""Frames out of bytes however these are cut, and replies in order however they are finished."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.limits import FRAME_FIRST_BYTES, FRAME_PREFIX_BYTES
from penstock.protocol.connection import FrameReceiver, ReplyQueue

FRAME_BYTES_MAX = 4 * 1024 * 1024
SHARED_BYTES = 4096
POISON = 0xAA

frames_of_any_kind = st.lists(st.binary(min_size=8, max_size=300), max_size=8)
cuts = st.lists(st.integers(1, 400), min_size=1, max_size=30)


class Feeder:
    """Does with a receiver what a connection does, with a shared buffer that is spoilt after each use."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.receiver = FrameReceiver(frame_bytes_max)
        self.frames: list[bytes] = []
        self._shared = bytearray(SHARED_BYTES)

    def feed_in_pieces(self, data: bytes, size: int) -> None:
        for start in range(0, len(data), size):
            self.feed(data[start : start + size])

    def feed(self, data: bytes) -> None:
        """One read of the socket after another, each as large as there is room for."""
        while data:
            into = self._into_own if self.receiver.is_unfinished else self._into_shared
            data = data[into(data) :]

    def _into_shared(self, data: bytes) -> int:
        count = min(len(data), SHARED_BYTES)
        self._shared[:count] = data[:count]
        view = memoryview(self._shared)[:count]
        position = 0
        while (found := self.receiver.next_frame(view, position)) is not None:
            frame, position = found
            self.frames.append(bytes(frame))
        self.receiver.move_to_own_buffer(view[position:])
        self._shared[:] = bytes([POISON]) * SHARED_BYTES
        return count

    def _into_own(self, data: bytes) -> int:
        room = self.receiver.frame_buffer()
        count = min(len(data), len(room))
        room[:count] = data[:count]
        full = self.receiver.received_into_frame(count)
        if full is None:
            return count
        if len(full) == FRAME_PREFIX_BYTES:
            self.receiver.release_frame()
            self.receiver.move_to_own_buffer(full)
        elif self.receiver.grow_bytes:
            self.receiver.grow()
        else:
            self.frames.append(bytes(full[FRAME_PREFIX_BYTES:]))
            self.receiver.release_frame()
        return count


def on_the_wire(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@given(frames=frames_of_any_kind, sizes=cuts)
@settings(max_examples=300)
def test_any_split_of_any_frames_gives_the_same_frames(frames: list[bytes], sizes: list[int]) -> None:
    feeder = Feeder()
    stream, position, turn = on_the_wire(frames), 0, 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        feeder.feed(stream[position : position + size])
        position += size
        turn += 1
    assert feeder.frames == frames
    assert not feeder.receiver.is_unfinished
    assert feeder.receiver.held_bytes == 0


def test_every_place_to_cut_two_frames_gives_both() -> None:
    frames = [b"first frame", b"the second one"]
    stream = on_the_wire(frames)
    for first in range(len(stream)):
        for second in range(first, len(stream), 3):
            feeder = Feeder()
            for piece in (stream[:first], stream[first:second], stream[second:]):
                feeder.feed(piece)
            assert feeder.frames == frames


@pytest.mark.parametrize("size", [FRAME_FIRST_BYTES - 5, FRAME_FIRST_BYTES, FRAME_FIRST_BYTES * 3 + 1])
def test_a_frame_beyond_the_first_grant_arrives_whole(size: int) -> None:
    frame = bytes(range(256)) * (size // 256 + 1)
    feeder = Feeder()
    feeder.feed_in_pieces(on_the_wire([frame, b"and another"]), 65_521)
    assert feeder.frames == [frame, b"and another"]


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 1, 7, FRAME_BYTES_MAX + 1, 2**31 - 1])
@pytest.mark.parametrize("cut", [1, 3, 4, 10])
def test_an_impossible_size_is_refused_before_memory_is_set_aside(size: int, cut: int) -> None:
    feeder = Feeder()
    data = size.to_bytes(4, "big", signed=True) + bytes(20)
    with pytest.raises(ProtocolError, match=f"a frame of {size} bytes was announced"):
        feeder.feed_in_pieces(data, cut)
    assert feeder.receiver.held_bytes <= FRAME_PREFIX_BYTES


def test_a_request_of_http_is_called_one() -> None:
    with pytest.raises(
        ProtocolError, match=r"are allowed: this looks like HTTP, which has a port of its own$"
    ):
        Feeder().feed(b"GET /metrics HTTP/1.1\r\n\r\n")
    with pytest.raises(ProtocolError, match=r"are allowed$"):
        Feeder().feed(b"SSH-2.0-OpenSSH_9.6\r\n")


def test_a_frame_before_an_impossible_size_is_still_handed_out() -> None:
    feeder = Feeder()
    with pytest.raises(ProtocolError):
        feeder.feed(on_the_wire([b"an honest one"]) + b"\xff\xff\xff\xff")
    assert feeder.frames == [b"an honest one"]


def test_memory_follows_what_came_and_not_what_was_announced() -> None:
    feeder = Feeder(100 * 1024 * 1024)
    feeder.feed((100 * 1024 * 1024).to_bytes(4, "big") + b"a little")
    assert feeder.receiver.held_bytes == FRAME_FIRST_BYTES
    assert feeder.receiver.is_unfinished
    assert feeder.receiver.grow_bytes == 100 * 1024 * 1024 + FRAME_PREFIX_BYTES - FRAME_FIRST_BYTES


def test_held_bytes_are_a_copy() -> None:
    receiver = FrameReceiver(FRAME_BYTES_MAX)
    shared = bytearray(b"held for later")
    receiver.set_aside(memoryview(shared))
    shared[:] = bytes([POISON]) * len(shared)
    held = receiver.take_set_aside()
    assert held is not None
    assert bytes(held) == b"held for later"
    assert receiver.take_set_aside() is None


# Replies


@given(order=st.permutations(range(6)), sizes=st.lists(st.integers(0, 50), min_size=6, max_size=6))
def test_replies_leave_in_the_order_of_their_requests(order: list[int], sizes: list[int]) -> None:
    replies = ReplyQueue()
    pending = [replies.add_pending() for _ in order]
    sent: list[bytes] = []
    finished: set[int] = set()
    for number in order:
        sent += map(bytes, replies.finish(pending[number], [bytes([number]) * sizes[number]]))
        finished.add(number)
        gone = next((index for index in range(6) if index not in finished), 6)
        assert len(sent) == gone
        assert replies.held_bytes == sum(sizes[index] for index in finished if index > gone)
    assert sent == [bytes([number]) * size for number, size in enumerate(sizes)]
    assert len(replies) == 0
    assert replies.held_bytes == 0


def test_a_reply_of_nothing_lets_the_next_one_pass() -> None:
    replies = ReplyQueue()
    first, second = replies.add_pending(), replies.add_pending()
    assert replies.finish(second, [b"second"]) == []
    assert replies.finish(first, []) == [b"second"]


def test_whoever_still_works_on_an_answer_is_told_that_nobody_waits() -> None:
    replies, told = ReplyQueue(), []
    finished = replies.add_pending(lambda: told.append("finished"))
    replies.add_pending(lambda: told.append("unfinished"))
    replies.add_pending()
    replies.finish(finished, [b"x"])
    held = replies.add_pending(lambda: told.append("held"))
    replies.finish(held, [b"held"])
    replies.abandon()
    assert told == ["unfinished"]
    assert len(replies) == 0
    assert replies.held_bytes == 0
