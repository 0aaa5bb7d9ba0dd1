"""The server side of one client connection, without a socket: bytes in, frames out; replies in order.

All connections of an event loop read into one shared buffer. Whole frames are returned as views of it. The
rest of an unfinished frame moves to the frame's own buffer, and the next bytes are read directly into that.

Rule 1: a returned frame is valid until the next call. A caller that needs it longer must copy it.
Rule 2: the announced size is checked before memory is allocated, and the memory follows the bytes that
        arrived, not the announced size.
Rule 3: replies leave in the order of their requests, whatever the order in which they finish.
"""

from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Final

from penstock.errors import ProtocolError
from penstock.limits import (
    FRAME_FIRST_BYTES,
    FRAME_PREFIX_BYTES,
    FRAME_STEP_BYTES,
    FRAME_STEP_GROWTH,
    REQUEST_BYTES_MIN,
)
from penstock.types import Buffer

NOT_FINISHED: Final = None
_SIZE: Final = Struct(">i").unpack_from
_HTTP_BEGINNINGS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN")


class FrameReceiver:
    """Receives bytes, and returns the frames that they complete.

    Memory is allocated in steps that the caller grants: `first_allotment_bytes` when a frame is unfinished,
    and `grow_bytes` when that is used up. Up to FRAME_FIRST_BYTES a step is proportional to the bytes that
    arrived. Above it the whole rest is requested at once: two frames that each hold a part and wait for
    more memory would deadlock.
    """

    __slots__ = ("_frame", "_frame_bytes_max", "_received_bytes", "_size", "_waiting")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._frame: bytearray | None = None
        self._received_bytes = 0
        self._size = FRAME_PREFIX_BYTES
        """Size of the unfinished frame in `_frame` and its prefix; until it is known, of the prefix."""
        self._waiting: memoryview | None = None
        """Bytes that arrived and are not processed yet, because the caller has paused."""

    @property
    def held_bytes(self) -> int:
        """Memory held by this connection."""
        waiting = len(self._waiting) if self._waiting is not None else 0
        return waiting + (len(self._frame) if self._frame is not None else 0)

    @property
    def is_unfinished(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return self._frame is not None

    @property
    def is_large(self) -> bool:
        """Whether the unfinished frame has the full first allotment of memory."""
        return self._frame is not None and len(self._frame) >= FRAME_FIRST_BYTES

    @property
    def received_bytes(self) -> int:
        """Bytes of the unfinished frame that arrived."""
        return self._received_bytes if self._frame is not None else 0

    # The shared buffer

    def next_frame(self, data: memoryview, position: int) -> tuple[memoryview, int] | None:
        """The whole frame at `position`, and its end. None: the frame is incomplete."""
        start, have = position + FRAME_PREFIX_BYTES, len(data)
        if have < start:
            return None
        end = position + self._checked_size(data, position)
        # A view of the shared buffer: the next read overwrites it (rule 1).
        return (data[start:end], end) if end <= have else None

    def first_allotment_bytes(self, rest: memoryview, *, is_short: bool = False) -> int:
        """First allotment of memory for the unfinished frame that begins with `rest`."""
        if len(rest) < FRAME_PREFIX_BYTES:
            return FRAME_PREFIX_BYTES if len(rest) else 0
        first = FRAME_STEP_BYTES if is_short else FRAME_FIRST_BYTES
        return min(self._checked_size(rest, 0), max(first, 2 * len(rest)))

    def move_to_own_buffer(self, rest: memoryview, granted_bytes: int | None = None) -> None:
        """Move the bytes of an unfinished frame to its own buffer."""
        assert self._frame is None
        if len(rest):
            self._received_bytes = len(rest)
            known = self._received_bytes >= FRAME_PREFIX_BYTES
            self._size = self._checked_size(rest, 0) if known else FRAME_PREFIX_BYTES
            self._frame = bytearray(granted_bytes or self.first_allotment_bytes(rest))
            self._frame[: self._received_bytes] = rest

    def set_aside(self, rest: memoryview) -> None:
        """Copy bytes that must not be processed yet. The caller stops reading until they are taken."""
        assert self._waiting is None
        if len(rest):
            self._waiting = memoryview(bytearray(rest))

    def set_frame_aside(self) -> None:
        """Set a whole frame aside that is in its own buffer, without a copy."""
        assert self._waiting is None
        assert self._frame is not None
        self._waiting, self._frame = memoryview(self._frame), None

    def take_set_aside(self) -> memoryview | None:
        held, self._waiting = self._waiting, None
        return held

    # The own buffer

    def frame_buffer(self) -> memoryview:
        assert self._frame is not None
        return memoryview(self._frame)[self._received_bytes :]

    def received_into_frame(self, count: int) -> memoryview | None:
        """Count bytes received into the own buffer. Returns its content once it is full."""
        assert self._frame is not None
        self._received_bytes += count
        return memoryview(self._frame) if self._received_bytes == len(self._frame) else None

    @property
    def grow_bytes(self) -> int:
        """Next allotment of memory for the frame in the own buffer; 0 if the frame is whole."""
        assert self._frame is not None
        size = len(self._frame)
        step = self._size if self.is_large else min(size * FRAME_STEP_GROWTH, FRAME_FIRST_BYTES)
        return min(step, self._size) - size

    def grow(self) -> None:
        assert self._frame is not None
        self._frame = self._frame.ljust(len(self._frame) + self.grow_bytes, b"\0")

    def release_frame(self) -> None:
        self._frame = None

    def _checked_size(self, data: Buffer, position: int) -> int:
        """Size of a frame with its prefix; ProtocolError if no request can have it."""
        (size,) = _SIZE(data, position)
        if not REQUEST_BYTES_MIN <= size <= self._frame_bytes_max:
            allowed = f"{REQUEST_BYTES_MIN} to {self._frame_bytes_max}"
            problem = f"a frame of {size} bytes was announced; {allowed} are allowed"
            looks_like_http = bytes(data[position : position + FRAME_PREFIX_BYTES]) in _HTTP_BEGINNINGS
            hint = ": this looks like HTTP, which has a port of its own" if looks_like_http else ""
            raise ProtocolError(problem + hint)
        return FRAME_PREFIX_BYTES + int(size)


class PendingReply:
    __slots__ = ("abandon", "buffers", "charge_bytes", "since", "size")

    def __init__(self, abandon: Callable[[], None] | None, charge_bytes: int, since: float) -> None:
        self.charge_bytes = charge_bytes
        """Memory charge of the decoded request, until the reply is finished or abandoned."""
        self.since = since
        self.buffers: list[Buffer] | None = NOT_FINISHED
        self.size = 0
        self.abandon = abandon
        """Called if the client disconnects before the reply is finished."""


class ReplyQueue:
    """Holds finished replies until all earlier replies have left."""

    __slots__ = ("held_bytes", "pending")

    def __init__(self) -> None:
        self.pending: deque[PendingReply] = deque()
        """Pending replies, oldest first. Callers may read it; only this class changes it."""
        self.held_bytes = 0
        """Size of finished replies that wait for an earlier one."""

    def __len__(self) -> int:
        return len(self.pending)

    def add_pending(
        self, abandon: Callable[[], None] | None = None, charge_bytes: int = 0, since: float = 0.0
    ) -> PendingReply:
        """Reserve the next position for the reply of an accepted request."""
        pending = PendingReply(abandon, charge_bytes, since)
        self.pending.append(pending)
        return pending

    def abandonable(self) -> list[PendingReply]:
        """Pending replies whose work can be cancelled. The work of the other replies runs to its end."""
        return [
            reply for reply in self.pending if reply.buffers is NOT_FINISHED and reply.abandon is not None
        ]

    def abandon(self) -> int:
        """Cancel pending replies after the client disconnected. Returns the memory charge of those
        cancelled."""
        charged_bytes = 0
        for reply in self.abandonable():
            charged_bytes += reply.charge_bytes
            reply.charge_bytes = 0
            assert reply.abandon is not None
            reply.abandon()
        self.pending = deque()
        self.held_bytes = 0
        return charged_bytes

    def finish(self, pending: PendingReply, buffers: list[Buffer]) -> list[Buffer]:
        """Finish a reply. Returns the buffers to write now, oldest first. An empty `buffers`: send no
        reply."""
        assert pending.buffers is NOT_FINISHED, "a reply is finished once"
        pending.buffers = buffers
        pending.size = sum(map(len, buffers))
        self.held_bytes += pending.size
        ready: list[Buffer] = []
        queue = self.pending
        # Only the finished replies at the head may leave: clients expect replies in request order.
        while queue and (first := queue[0].buffers) is not NOT_FINISHED:
            ready += first
            self.held_bytes -= queue.popleft().size
        return ready
