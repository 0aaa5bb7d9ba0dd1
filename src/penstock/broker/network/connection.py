"""A client connection: the I/O around protocol/connection.py.

The connection stops reading while it has any of these reasons to pause. Bytes that were already received are
held until all reasons have passed:

    EXCLUSIVE   a handler must finish before the next request is handled
    IN_FLIGHT   too many requests wait for a reply, or too many replies wait for an earlier one
    WRITING     the client does not read its replies
    MEMORY      the memory for unfinished requests, or for requests without a reply, is used up
    OVERDRAWN   the last request was accepted although it had to wait and that memory was used up
    THROTTLED   the client is over its quota
    REJECTED    the next request is of an API whose requests were rejected many times in a row
    STOPPING    the broker accepts no more requests

Rule 1: no exception that a client's bytes cause leaves this file. A request that cannot be answered closes
        the connection, with one log line for the reason. A bug of the broker is logged with its traceback.
"""

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, cast

from penstock.broker.apis.api_versions import unsupported_version_reply
from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_request_cache import FetchCacheBudget, FetchRequestCache
from penstock.broker.network.frame_memory import FrameMemory, held_byte_seconds
from penstock.broker.network.memory_budget import MEMORY_LIMITS, MemoryBudget, MemoryBudgets, MemoryLimits
from penstock.broker.network.rejection_throttle import RejectionThrottle
from penstock.broker.network.reply_writer import ReplyWriter
from penstock.broker.network.request_memory import RequestMemory, is_small
from penstock.broker.router import DeferredReply, ReplyOutcome, Route, Router, encode_reply
from penstock.errors import ProtocolError
from penstock.host.sockets import keep_alive, peer_has_closed
from penstock.host.tasks import Tasks
from penstock.limits import (
    CONNECTION_REQUESTS_IN_FLIGHT_MAX,
    FRAME_COMPLETION_MS_MAX,
    FRAME_PREFIX_BYTES,
    RECEIVE_BYTES_WHEN_SHORT,
    REPLY_BYTES_PAUSE_AT,
    REPLY_BYTES_RESUME_AT,
    SLOW_READER_MS_MAX,
)
from penstock.protocol.connection import FrameReceiver, PendingReply, ReplyQueue
from penstock.protocol.frames import RequestHeader, encode_response, parse_request_header
from penstock.protocol.messages.api_versions import API_VERSIONS
from penstock.protocol.produce_request_cache import ProduceRequestCache
from penstock.protocol.schema import Struct
from penstock.types import Buffer

API_VERSIONS_KEY = API_VERSIONS.key


class PauseReason(Enum):
    EXCLUSIVE = 1
    IN_FLIGHT = 2
    WRITING = 3
    MEMORY = 4
    THROTTLED = 5
    STOPPING = 6
    OVERDRAWN = 7
    REJECTED = 8


class ConnectionLimits(NamedTuple):
    """How long a client may stall, and how much memory all connections together may use."""

    frame_completion_ms_max: int = FRAME_COMPLETION_MS_MAX
    slow_reader_ms_max: int = SLOW_READER_MS_MAX
    memory: MemoryLimits = MEMORY_LIMITS


CONNECTION_LIMITS: Final = ConnectionLimits()


class ConnectionResources(MemoryBudgets):
    """The resources that all connections of a server share."""

    def __init__(
        self,
        router: Router,
        tasks: Tasks,
        receive_buffer: bytearray,
        request_bytes_max: int,
        in_flight_bytes_max: int,
        on_bug: Callable[[str, BaseException], None],
        limits: ConnectionLimits = CONNECTION_LIMITS,
    ) -> None:
        super().__init__(in_flight_bytes_max, limits.memory)
        self.limits = limits
        self.router = router
        self.on_bug = on_bug
        """Called with a description and the exception when a request fails because of a bug."""
        self.tasks = tasks
        self.receive_view = memoryview(receive_buffer)
        self.request_bytes_max = request_bytes_max
        self.reply_bytes_queued = 0
        self.fetch_cache_budget = FetchCacheBudget()


class Connection(asyncio.BufferedProtocol):
    def __init__(
        self,
        shared: ConnectionResources,
        make_context: Callable[[asyncio.Transport], RequestContext],
        opened: Callable[["Connection"], bool],
        closed: Callable[["Connection", str | None], None],
    ) -> None:
        self._shared = shared
        self._make_context = make_context
        self._opened = opened
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._receiver = FrameReceiver(shared.request_bytes_max)
        self._replies = ReplyQueue()
        self._produce_request_cache = ProduceRequestCache()
        self._fetch_request_cache = FetchRequestCache(shared.fetch_cache_budget)
        self._pause_reasons: set[PauseReason] = set()
        self._memory = FrameMemory(
            shared,
            self._receiver,
            self._loop.time,
            partial(self._add_pause_reason, PauseReason.MEMORY),
            partial(self._remove_pause_reason, PauseReason.MEMORY),
        )
        self._decoded = RequestMemory(
            shared,
            partial(self._add_pause_reason, PauseReason.OVERDRAWN),
            partial(self._remove_pause_reason, PauseReason.OVERDRAWN),
        )
        self._rejections = RejectionThrottle(self._loop.time)
        self._unsent_bytes = 0
        """Bytes that the transport has not sent, and finished replies that wait for earlier ones."""
        self._frame_since: float | None = None
        self._close_reason: str | None = None
        self._is_closed = False
        self.last_read_at = self._loop.time()

    def keep_alive(self) -> None:
        keep_alive(self._transport.get_extra_info("socket"))

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transport of uvloop has the methods but not the base class.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self._reply_writer = ReplyWriter(transport, self._loop)
        transport.set_write_buffer_limits(high=REPLY_BYTES_PAUSE_AT, low=REPLY_BYTES_RESUME_AT)
        self.context = self._make_context(transport)
        if not self._opened(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        self._memory.drop()
        self._decoded.drop()
        self._fetch_request_cache.forget()
        self._shared.decoded.release(self._replies.abandon())
        self._shared.reply_bytes_queued -= self._unsent_bytes
        self._unsent_bytes = 0
        self._closed(self, self._close_reason)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._receiver.is_unfinished:
            return self._receiver.frame_buffer()
        if self._shared.small_frames.is_short:
            return self._shared.receive_view[:RECEIVE_BYTES_WHEN_SHORT]
        return self._shared.receive_view

    def buffer_updated(self, nbytes: int) -> None:
        self.last_read_at = self._loop.time()
        if self._is_closed:
            return  # TLS delivers bytes that it had decrypted before it learned of the close
        if self._receiver.is_unfinished:
            if (data := self._receiver.received_into_frame(nbytes)) is not None:
                self._handle_received(self._own_buffer_filled, data)
        else:
            self._handle_received(self._accept_frames, self._shared.receive_view[:nbytes])

    def _handle_received(self, take: Callable[[memoryview], None], data: memoryview) -> None:
        """Process received bytes, and send the replies to them together."""
        self._reply_writer.begin_read()
        try:
            take(data)
        except ProtocolError as problem:
            self.close_rejected(str(problem))
        except Exception as bug:
            # Rule 1: a bug costs one connection, not the broker.
            self._shared.on_bug(f"a request from {self.context.peer}", bug)
            self.close_rejected("a request failed for a reason of ours")
        self._reply_writer.end_read()
        self._count_unsent()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._add_pause_reason(PauseReason.WRITING)

    def resume_writing(self) -> None:
        self._reply_writer.note()
        self._count_unsent()
        self._remove_pause_reason(PauseReason.WRITING)

    # Receiving

    def _accept_frames(self, data: memoryview) -> None:
        """Process every complete frame, and keep the rest."""
        position, end = 0, len(data)
        # Frames are views of the shared receive buffer, valid until the next read only. So all of them are
        # processed now, or the rest is copied by `set_aside`.
        while not self._pause_reasons:
            found = self._receiver.next_frame(data, position)
            if found is None:
                self._move_to_own_buffer(data[position:])
                return
            if self._must_wait(found[0]):
                break
            # Only now past the frame: a frame that has to wait is held together with the rest.
            frame, position = found
            self._accept(frame)
            if self._is_closed:
                return
            if position == end:
                self._frame_since = None
                return
        self._memory.set_aside(data[position:])

    def _move_to_own_buffer(self, rest: memoryview) -> None:
        need = self._receiver.first_allotment_bytes(rest, is_short=self._shared.small_frames.is_short)
        if need == 0:
            self._frame_since = None
            return
        if self._frame_since is None:
            self._frame_since = self._loop.time()
        self._memory.move_to_own_buffer(rest, need)

    def _own_buffer_filled(self, data: memoryview) -> None:
        if len(data) == FRAME_PREFIX_BYTES:  # the frame size is known only now
            self._receiver.release_frame()
            self._memory.release_taken()
            self._move_to_own_buffer(data)
        elif self._receiver.grow_bytes:
            self._memory.grow()
        else:
            self._frame_since = None
            frame = data[FRAME_PREFIX_BYTES:]
            if self._must_wait(frame):
                self._receiver.set_frame_aside()
            else:
                self._receiver.release_frame()
                self._accept(frame)
                self._memory.release_taken()

    def _must_wait(self, frame: memoryview) -> bool:
        """Begin the wait of the request in `frame`, if it must wait; the caller then sets its bytes aside."""
        if self._shared.decoded.free_bytes < 0 and not is_small(self._shared.router.weigh(frame)):
            # Out of memory for waiting requests: a large request waits, a small one is accepted
            # (request_memory.py).
            self._memory.wait_for_turn()
            return True
        wait_s = self._rejections.wait_s(frame)
        if wait_s > 0:
            self._pause_for(PauseReason.REJECTED, wait_s)
        return wait_s > 0

    # Memory that this connection holds

    def held_bytes_of(self, budget: MemoryBudget) -> int:
        """The bytes that this connection would return to a budget if it ended."""
        if budget is self._shared.decoded:
            return sum(reply.charge_bytes for reply in self._replies.abandonable())
        return self._memory.taken_bytes(budget)

    def waits_for_client(self, budget: MemoryBudget) -> bool:
        return self._memory.waits_for_client(budget)

    def held_byte_seconds(self, budget: MemoryBudget, now: float) -> float:
        """Bytes of a budget that this connection holds, times the seconds; 0 while it makes progress."""
        if budget is self._shared.decoded:
            oldest = min((reply.since for reply in self._replies.abandonable()), default=now)
            grace_ms = self._shared.memory_limits.grace_ms
            return held_byte_seconds(self.held_bytes_of(budget), now - oldest, grace_ms=grace_ms)
        return self._memory.held_byte_seconds(budget, now, self.last_read_at)

    # Pausing and resuming

    def _add_pause_reason(self, reason: PauseReason) -> None:
        if not self._pause_reasons and not self._is_closed:
            self._transport.pause_reading()
        self._pause_reasons.add(reason)

    def _remove_pause_reason(self, reason: PauseReason) -> None:
        self._pause_reasons.discard(reason)
        if not self._pause_reasons and not self._is_closed:
            # Deferred to the next loop iteration: the caller may be in the middle of another connection's
            # work, for example of a flush that finishes many produce requests.
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        if self._pause_reasons or self._is_closed:
            return
        self._memory.end_turn()
        if self._memory.holds_large_frame and self._shared.decoded.free_bytes < 0:
            # Another connection took the memory first: the held frame stays in its buffer.
            self._memory.wait_for_turn()
            return
        if (held := self._receiver.take_set_aside()) is not None:
            self._memory.release_taken()
            self._handle_received(self._accept_frames, held)
        if not self._pause_reasons and not self._is_closed:
            self._transport.resume_reading()

    # Replying

    def _accept(self, frame: memoryview) -> None:
        router = self._shared.router
        if (
            repeated := self._produce_request_cache.recall(frame) or self._fetch_request_cache.recall(frame)
        ) is not None:
            self._handle(repeated[0], repeated[1], len(frame))
            return
        header, position = parse_request_header(frame)
        # ApiVersions of an unknown version gets a version 0 reply, so that a newer client can negotiate
        # (KIP-511).
        if header.api_key == API_VERSIONS_KEY and not router.supports(header.api_key, header.api_version):
            reply = unsupported_version_reply(router.supported())
            self._send_in_order(encode_response(API_VERSIONS, 0, header.correlation_id, reply))
            return
        request = router.decode(header, frame, position)
        self._produce_request_cache.remember(frame, header, position, request)
        self._fetch_request_cache.remember(frame, header, position, request)
        self._handle(header, request, len(frame))

    def _handle(self, header: RequestHeader, request: Struct, request_bytes: int) -> None:
        dispatched = self._shared.router.dispatch(header, request, request_bytes, self.context)
        route, answer, throttle_ms = dispatched
        if throttle_ms:
            self._pause_for(PauseReason.THROTTLED, throttle_ms / 1000)
        if isinstance(answer, Struct):
            self._rejections.note(header.api_key, answer)
            self._send_in_order(encode_reply(route, header, answer))
        elif isinstance(answer, DeferredReply):
            pending = self._expect(answer.abandon, route.api.weigh(request, request_bytes))
            answer.then(partial(self._finish, pending, route, header))
            self._stop_at_limit()
        elif answer is not None:
            self._add_pause_reason(PauseReason.EXCLUSIVE)
            # The slot in the reply queue is taken before the handler runs, so replies keep the order of the
            # requests.
            pending = self._expect(None, route.api.weigh(request, request_bytes))
            waiting = self._answer(answer, pending, route, header)
            self._shared.tasks.start(waiting, f"{route.messages.name} for {self.context.peer}")

    def _expect(self, abandon: Callable[[], None] | None, charge_bytes: int) -> PendingReply:
        pending = self._replies.add_pending(abandon, charge_bytes, self.last_read_at)
        self._decoded.charge(pending)
        return pending

    async def _answer(
        self, answer: Coroutine[Any, Any, Struct], pending: PendingReply, route: Route, header: RequestHeader
    ) -> None:
        # The connection was lost after the request was accepted, and the handler has not started.
        if self._is_closed:
            answer.close()
            self._decoded.discharge(pending)
            return
        try:
            self._finish(pending, route, header, await answer)
        except ProtocolError as problem:
            self.close_rejected(str(problem))
        except BaseException:
            self.close_rejected(f"{route.messages.name} failed")
            # Raised again for the task's error handler, which logs the traceback.
            raise
        finally:
            self._decoded.discharge(pending)
        self._remove_pause_reason(PauseReason.EXCLUSIVE)

    def _finish(
        self, pending: PendingReply, route: Route, header: RequestHeader, outcome: ReplyOutcome
    ) -> None:
        self._decoded.discharge(pending)
        if self._is_closed:
            return
        if isinstance(outcome, ProtocolError):
            self.close_rejected(str(outcome))
            return
        buffers: list[Buffer] = []
        if isinstance(outcome, Struct):
            self._rejections.note(header.api_key, outcome)
            buffers = encode_reply(route, header, outcome)
        self._write(self._replies.finish(pending, buffers))
        # Resumed at half the limit, so that reading does not stop and start with every reply.
        if (
            PauseReason.IN_FLIGHT in self._pause_reasons
            and len(self._replies) < CONNECTION_REQUESTS_IN_FLIGHT_MAX // 2
            and self._replies.held_bytes < REPLY_BYTES_PAUSE_AT
        ):
            self._remove_pause_reason(PauseReason.IN_FLIGHT)

    def _send_in_order(self, buffers: list[Buffer]) -> None:
        if not self._replies.pending:
            self._write(buffers)
            return
        self._write(self._replies.finish(self._replies.add_pending(), buffers))
        self._stop_at_limit()

    def _stop_at_limit(self) -> None:
        replies = self._replies
        if len(replies) >= CONNECTION_REQUESTS_IN_FLIGHT_MAX or replies.held_bytes >= REPLY_BYTES_PAUSE_AT:
            self._add_pause_reason(PauseReason.IN_FLIGHT)

    def _write(self, buffers: list[Buffer]) -> None:
        # Less than REPLY_BYTES_GATHERED_MAX stays uncounted, and only until the read ends.
        if not buffers or self._reply_writer.write(buffers):
            self._count_unsent()

    def _count_unsent(self) -> None:
        """Update the total of unsent bytes of all connections."""
        unsent = self._reply_writer.unsent_bytes + self._replies.held_bytes
        if unsent != self._unsent_bytes:
            self._shared.reply_bytes_queued += unsent - self._unsent_bytes
            self._unsent_bytes = unsent

    def _pause_for(self, reason: PauseReason, seconds: float) -> None:
        self._add_pause_reason(reason)
        self._loop.call_later(seconds, self._remove_pause_reason, reason)

    # Closing

    @property
    def is_waiting(self) -> bool:
        """Whether a request has no reply yet."""
        return len(self._replies) > 0

    def close_rejected(self, reason: str) -> None:
        """Close the connection because of what the client sent. Replies that were finished before are still
        sent.
        """
        if not self._is_closed:
            self._close_reason = reason
            self._is_closed = True
            self._frame_since = None
            self._memory.drop()
            self._decoded.drop()
            self.close()

    def end_to_free_memory(self) -> None:
        """Abort the connection at once, so that connections that wait for memory get what it holds."""
        if self._close_reason is None:
            self._close_reason = "memory was short, and this connection had held most of it for longest"
        self._transport.abort()

    def stop_accepting_requests(self) -> None:
        """Accept no more requests: the broker is stopping. Accepted requests still get their replies."""
        self._add_pause_reason(PauseReason.STOPPING)

    def close(self) -> None:
        self._reply_writer.send()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def check(self, now: float, idle_ms_max: int) -> None:
        """Close a connection that has stalled. The server calls this at intervals."""
        self._reply_writer.note()
        self._count_unsent()
        unread_since, limits = self._reply_writer.unread_since, self._shared.limits
        frame_since = self._frame_since
        if frame_since is not None and (now - frame_since) * 1000 > limits.frame_completion_ms_max:
            self.close_rejected("a request was begun and not completed in time")
        elif unread_since is not None and (now - unread_since) * 1000 > limits.slow_reader_ms_max:
            self._close_reason = "replies were not taken in time"
            self._transport.abort()
        elif self._pause_reasons and peer_has_closed(self._transport.get_extra_info("socket")):
            # While reading is paused asyncio does not detect a closed connection, and its replies would be
            # kept.
            self._transport.abort()
        # A negative `connections.max.idle.ms` disables the idle timeout, as in Kafka.
        elif (
            idle_ms_max >= 0
            and not self.is_waiting
            and not self._unsent_bytes
            and (now - self.last_read_at) * 1000 > idle_ms_max
        ):
            self.close()
