"""Sends the replies of one connection: batches them, counts their bytes, and detects a client that does not
read.

uvloop passes every write to the kernel at once, and a system call costs as much as half a small request. So
replies to requests that were received together are sent together: at the end of the read that brought the
requests, or of the loop iteration that finished the replies.
"""

import asyncio

from penstock.limits import REPLY_BYTES_GATHERED_MAX
from penstock.types import Buffer


class ReplyWriter:
    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._gathered: list[Buffer] = []
        self._bytes = 0
        self._reads = False
        self._is_scheduled = False
        self._queued_bytes = 0
        self.unread_since: float | None = None
        """When the client last read something while replies were waiting; None while no reply waits."""

    @property
    def unsent_bytes(self) -> int:
        return self._bytes + self._queued_bytes

    def begin_read(self) -> None:
        """Hold small replies until `end_read`, because requests are being processed."""
        self._reads = True

    def end_read(self) -> None:
        self._reads = False
        self.send()

    def write(self, buffers: list[Buffer]) -> bool:
        """Queue a reply. Returns whether `unsent_bytes` must be counted now: False while a read batches small
        replies.
        """
        gathered = self._gathered
        gathered += buffers
        self._bytes += len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        # A batch has a size limit, so that `send` copies no large replies and they do not wait for the read.
        if self._bytes >= REPLY_BYTES_GATHERED_MAX:
            self.send()
        elif self._reads:
            return False
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._send_scheduled)
        return True

    def _send_scheduled(self) -> None:
        self._is_scheduled = False
        self.send()

    def send(self) -> None:
        """Pass all queued replies to the transport."""
        buffers = self._gathered
        if buffers and not self._transport.is_closing():
            if len(buffers) == 1:
                self._transport.write(buffers[0])
            elif self._bytes < REPLY_BYTES_GATHERED_MAX:
                # Small buffers are joined; large ones are passed on without a copy.
                self._transport.write(b"".join(buffers))
            else:
                self._transport.writelines(buffers)
        if buffers:
            self._gathered, self._bytes = [], 0
            self.note()

    def note(self) -> None:
        """Check how much the client has read."""
        queued = self._transport.get_write_buffer_size()
        if queued == self._queued_bytes:
            return
        if not queued:
            self.unread_since = None
        elif queued < self._queued_bytes or self.unread_since is None:
            self.unread_since = self._loop.time()
        self._queued_bytes = queued
