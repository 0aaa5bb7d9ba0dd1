"""One client connection without a socket: bytes in, frames out; replies in order.

Receiving. All connections of a loop read into one shared buffer. Whole frames in it are handed out
where they lie. What is left of an unfinished frame moves to a buffer of the frame's own, and the
next bytes are read straight into that.

Rule 1: a frame handed out is valid until the next call. Whoever needs it longer copies it.
Rule 2: the announced size is judged before a byte is set aside for it, and memory follows the bytes
        that came, not those that were announced.
Rule 3: replies leave in the order of their requests, whenever they are finished.
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


class FrameReceiver:
    """Where the next bytes go, and which frames they complete.

    Memory is asked for in steps that the caller grants: `keep_bytes` when a frame turns out to be
    unfinished, and `grow_bytes` when all of that is used. Up to FRAME_FIRST_BYTES a step is in
    proportion to what has come; then the frame has shown that it is meant, and the rest is asked for
    at once, for two that each hold a part and wait for more would wait for each other.
    """

    __slots__ = ("_frame", "_frame_bytes_max", "_received_bytes", "_size", "_waiting")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._frame: bytearray | None = None
        self._received_bytes = 0
        self._size = FRAME_PREFIX_BYTES
        """Of the unfinished frame in `_frame`, its prefix included; until that is known, the prefix."""
        self._waiting: memoryview | None = None
        """Bytes that came but were not handed out, because nobody may take them now."""

    @property
    def held_bytes(self) -> int:
        """Memory this connection keeps for itself."""
        waiting = len(self._waiting) if self._waiting is not None else 0
        return waiting + (len(self._frame) if self._frame is not None else 0)

    @property
    def is_unfinished(self) -> bool:
        """Whether a frame has begun and not ended."""
        return self._frame is not None

    @property
    def is_large(self) -> bool:
        """Whether the unfinished frame has all that one of ordinary size may have."""
        return self._frame is not None and len(self._frame) >= FRAME_FIRST_BYTES

    @property
    def received_bytes(self) -> int:
        """What has come of the unfinished frame."""
        return self._received_bytes if self._frame is not None else 0

    # The shared buffer

    def next_frame(self, data: memoryview, position: int) -> tuple[memoryview, int] | None:
        """The whole frame that begins at `position`, and where it ends. None: it is not whole."""
        start, have = position + FRAME_PREFIX_BYTES, len(data)
        if have < start:
            return None
        (size,) = _SIZE(data, position)
        if not REQUEST_BYTES_MIN <= size <= self._frame_bytes_max:
            raise self._refusal(size)
        end = start + size
        return (data[start:end], end) if end <= have else None

    def keep_bytes(self, rest: memoryview, *, is_short: bool = False) -> int:
        """How much memory the unfinished frame that begins with `rest` is given at first."""
        if len(rest) < FRAME_PREFIX_BYTES:
            return FRAME_PREFIX_BYTES if len(rest) else 0
        first = FRAME_STEP_BYTES if is_short else FRAME_FIRST_BYTES
        return min(self._checked_size(rest, 0), max(first, 2 * len(rest)))

    def keep(self, rest: memoryview, granted_bytes: int | None = None) -> None:
        """What has come of an unfinished frame moves to a buffer of its own."""
        assert self._frame is None
        if len(rest):
            self._received_bytes = len(rest)
            known = self._received_bytes >= FRAME_PREFIX_BYTES
            self._size = self._checked_size(rest, 0) if known else FRAME_PREFIX_BYTES
            self._frame = bytearray(granted_bytes or self.keep_bytes(rest))
            self._frame[: self._received_bytes] = rest

    def hold(self, rest: memoryview) -> None:
        """Bytes that may not be looked at yet. The caller stops reading until they are taken."""
        assert self._waiting is None
        if len(rest):
            self._waiting = memoryview(bytearray(rest))

    def hold_frame(self) -> None:
        """The same for a frame that is whole, in its own buffer."""
        assert self._waiting is None
        assert self._frame is not None
        self._waiting, self._frame = memoryview(self._frame), None

    def take_held(self) -> memoryview | None:
        held, self._waiting = self._waiting, None
        return held

    # The own buffer

    def frame_buffer(self) -> memoryview:
        assert self._frame is not None
        return memoryview(self._frame)[self._received_bytes :]

    def received_into_frame(self, count: int) -> memoryview | None:
        """`count` bytes came into the own buffer. Returns everything in it once it is full."""
        assert self._frame is not None
        self._received_bytes += count
        return memoryview(self._frame) if self._received_bytes == len(self._frame) else None

    @property
    def grow_bytes(self) -> int:
        """How much more memory the frame in the own buffer is given next; 0 if it is whole."""
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
        """The size of a frame with its prefix, or ProtocolError if no request can have it."""
        (size,) = _SIZE(data, position)
        if not REQUEST_BYTES_MIN <= size <= self._frame_bytes_max:
            raise self._refusal(size)
        return FRAME_PREFIX_BYTES + int(size)

    def _refusal(self, size: int) -> ProtocolError:
        allowed = f"{REQUEST_BYTES_MIN} to {self._frame_bytes_max}"
        return ProtocolError(f"a frame of {size} bytes was announced; {allowed} are allowed")


class PendingReply:
    __slots__ = ("abandon", "buffers", "charge_bytes", "since", "size")

    def __init__(self, abandon: Callable[[], None] | None, charge_bytes: int, since: float) -> None:
        self.charge_bytes = charge_bytes
        """What its decoded request is counted as, until the reply is finished or abandoned."""
        self.since = since
        self.buffers: list[Buffer] | None = NOT_FINISHED
        self.size = 0
        self.abandon = abandon
        """Called if the client leaves before the reply is finished."""


class ReplyQueue:
    """Holds finished replies until every earlier one has left."""

    __slots__ = ("held_bytes", "pending")

    def __init__(self) -> None:
        self.pending: deque[PendingReply] = deque()
        """Oldest first. For a look whether there are any; changed only here."""
        self.held_bytes = 0
        """Of replies that are finished and wait for an earlier one."""

    def __len__(self) -> int:
        return len(self.pending)

    def add_pending(
        self, abandon: Callable[[], None] | None = None, charge_bytes: int = 0, since: float = 0.0
    ) -> PendingReply:
        """A request was accepted; its reply will have this place."""
        pending = PendingReply(abandon, charge_bytes, since)
        self.pending.append(pending)
        return pending

    def abandonable(self) -> list[PendingReply]:
        """Those whose work ends as soon as nobody waits for it. Others are finished in any case."""
        return [
            reply for reply in self.pending if reply.buffers is NOT_FINISHED and reply.abandon is not None
        ]

    def abandon(self) -> int:
        """Nobody waits for these replies any more. Returns what was charged for those given up."""
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
        """Returns what may be written now, oldest first. An empty list of buffers: nothing is sent."""
        assert pending.buffers is NOT_FINISHED, "a reply is finished once"
        pending.buffers = buffers
        pending.size = sum(map(len, buffers))
        self.held_bytes += pending.size
        ready: list[Buffer] = []
        queue = self.pending
        while queue and (first := queue[0].buffers) is not NOT_FINISHED:
            ready += first
            self.held_bytes -= queue.popleft().size
        return ready
