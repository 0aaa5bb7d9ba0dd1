"""A timer for waits far shorter than a millisecond.

Timers of event loops have a resolution of one millisecond. Linux has timers that are file descriptors: the
event loop watches the descriptor, and one system call sets the timer.
"""

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

_CLOCK_MONOTONIC: Final = 1
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_NANOSECONDS: Final = 1_000_000_000


class ShortTimer(Protocol):
    def start(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call `callback` once, after `seconds`. The timer must not be running."""
        ...

    def cancel(self) -> None:
        """Stop the timer: its callback is not called."""
        ...

    def close(self) -> None: ...


NewTimer = Callable[[asyncio.AbstractEventLoop], ShortTimer]


class LoopTimer:
    """A timer of the event loop, with the resolution of that loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float, callback: Callable[[], None]) -> None:
        self._handle = self._loop.call_later(seconds, callback)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def close(self) -> None:
        self.cancel()


class _TimerSpec(ctypes.Structure):
    """`struct itimerspec` of the kernel. Without an interval the timer ends once."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class KernelTimer:
    """OSError from the constructor: this system, or the sandbox around this process, has no such timers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, library: Any = None) -> None:
        # Python has these calls since version 3.13 only.
        library = library or ctypes.CDLL(None, use_errno=True)
        try:
            self._settime, create = library.timerfd_settime, library.timerfd_create
        except AttributeError as missing:
            raise OSError("the system's library has no timerfd") from missing
        self._descriptor: int = create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "the kernel makes no timer")
        self._loop = loop
        # Made once, because a system call passes an address: nothing is allocated for a start.
        self._spec = _TimerSpec()
        self._spec_at = ctypes.c_void_p(ctypes.addressof(self._spec))
        self._callback: Callable[[], None] | None = None
        # A sandbox that forbids only this call would leave the first callback uncalled.
        if self._set(0) != 0:
            os.close(self._descriptor)
            raise OSError(ctypes.get_errno(), "the kernel sets no timer")
        loop.add_reader(self._descriptor, self._expired)

    def start(self, seconds: float, callback: Callable[[], None]) -> None:
        assert self._callback is None, "the timer is running"
        self._callback = callback
        self._set(max(int(seconds * _NANOSECONDS), 1))  # 0 would stop the timer

    def cancel(self) -> None:
        if self._callback is not None:
            self._callback = None
            self._set(0)

    def _set(self, nanoseconds: int) -> int:
        self._spec.value_s, self._spec.value_ns = divmod(nanoseconds, _NANOSECONDS)
        return int(self._settime(self._descriptor, 0, self._spec_at, None))

    def _expired(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return  # the timer was set again after the loop had seen its end
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


def short_timer(loop: asyncio.AbstractEventLoop, library: Any = None) -> ShortTimer:
    """The timer with the finest resolution that works here. `library`: the system's, unless given."""
    if sys.platform == "linux":
        with suppress(OSError):  # sandboxes may forbid it
            return KernelTimer(loop, library)
    return LoopTimer(loop)
