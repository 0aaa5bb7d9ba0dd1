"""Syncs of a few files that the kernel carries out by itself (Linux AIO), without a thread of this process.

A sync in a worker thread makes a produce request wait for two changes of thread, and each of them also hands
over Python's interpreter lock. Here the event loop submits the syncs with one system call, and an eventfd
tells it when they have ended. docs/adr/0023-the-kernel-syncs-logs.md has the figures, and says why no library
does this here.

Rule 1: the kernel reports a failed writeback once to each open file, so only one of the two, this class or
        the thread behind it, syncs a file at a time.
Rule 2: whatever the kernel does not take goes to the thread. No sync is left out.
"""

import asyncio
import ctypes
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from penstock.errors import StorageFailed
from penstock.host.disk import Disk, File
from penstock.host.file_sync import FileSync, SyncDone, ThreadSync
from penstock.host.os_disk import OsDisk, OsFile
from penstock.host.worker import Worker
from penstock.limits import SYNC_FILES_BEFORE_SYNCFS


class _SystemCalls(NamedTuple):
    io_setup: int
    io_destroy: int
    io_getevents: int
    io_submit: int


SYSTEM_CALLS: Final = {
    "x86_64": _SystemCalls(io_setup=206, io_destroy=207, io_getevents=208, io_submit=209),
    "aarch64": _SystemCalls(io_setup=0, io_destroy=1, io_getevents=4, io_submit=2),
}
_FDATASYNC: Final = 3
_NOTIFY_EVENTFD: Final = 1

SystemCall = Callable[..., int]
"""Called with the number of a system call and its arguments."""


class _SyncRequest(ctypes.Structure):
    """`struct iocb` of the kernel, on a little-endian machine."""

    _fields_ = (
        ("number", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("operation", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("position", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("eventfd", ctypes.c_uint32),
    )


class SyncEvent(ctypes.Structure):
    """`struct io_event` of the kernel. `result`: 0, or a negative error number."""

    _fields_ = (
        ("number", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class KernelSync:
    """OSError from the constructor: this kernel, or the sandbox around this process, does not offer AIO."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        otherwise: FileSync,
        files_max: int,
        system_call: SystemCall | None = None,
    ) -> None:
        """`otherwise` syncs folders, more than `files_max` files, and what the kernel does not take."""
        self._loop = loop
        self._otherwise = otherwise
        self._files_max = files_max
        self._calls = SYSTEM_CALLS[platform.machine()]
        self._call = system_call or libc_system_call()
        self._context = ctypes.c_ulong(0)
        if self._call(self._calls.io_setup, files_max, ctypes.byref(self._context)) != 0:
            raise OSError(ctypes.get_errno(), "the kernel makes no context for asynchronous syncs")
        self._events = (SyncEvent * files_max)()
        self._events_at = ctypes.c_void_p(ctypes.addressof(self._events))
        try:
            # A sandbox that forbids only this call would leave the first sync without an end.
            if self._take_events() < 0:
                raise OSError(ctypes.get_errno(), "the kernel does not tell which syncs have ended")
            self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._call(self._calls.io_destroy, self._context)
            raise
        # Made once, because a system call passes addresses: nothing is allocated or converted for a sync.
        self._requests = (_SyncRequest * files_max)(*(self._request(number) for number in range(files_max)))
        size, first = ctypes.sizeof(_SyncRequest), ctypes.addressof(self._requests)
        self._pointers = (ctypes.c_uint64 * files_max)(
            *(first + size * number for number in range(files_max))
        )
        self._pointers_at = ctypes.c_void_p(ctypes.addressof(self._pointers))
        self._files: Sequence[File] = ()
        self._outstanding = 0
        self._failure: BaseException | None = None
        self._done: SyncDone = _ignore
        loop.add_reader(self._eventfd, self._some_ended)

    def _request(self, number: int) -> _SyncRequest:
        return _SyncRequest(number=number, operation=_FDATASYNC, flags=_NOTIFY_EVENTFD, eventfd=self._eventfd)

    def sync(self, files: Sequence[File], folders: Sequence[str], done: SyncDone) -> None:
        if folders or not 0 < len(files) <= self._files_max:
            self._otherwise.sync(files, folders, done)
            return
        for number, file in enumerate(files):
            assert isinstance(file, OsFile)
            self._requests[number].descriptor = file.descriptor
        taken = self._call(self._calls.io_submit, self._context, len(files), self._pointers_at)
        if taken <= 0:
            self._otherwise.sync(files, folders, done)
            return
        self._files, self._outstanding, self._done, self._failure = files, taken, done, None
        if taken < len(files):
            # Rule 2: it may happen that the kernel lacks memory for all of them at once.
            self._outstanding += 1
            self._otherwise.sync(files[taken:], (), self._one_ended)

    def _some_ended(self) -> None:
        with suppress(BlockingIOError):  # an earlier call has taken these events already
            os.read(self._eventfd, 8)
        for event in self._events[: max(self._take_events(), 0)]:
            failure = None
            if event.result < 0:
                path, reason = self._files[event.number].path, os.strerror(-event.result)
                failure = StorageFailed(f"cannot sync {path}: {reason}")
            self._one_ended(failure)

    def _take_events(self) -> int:
        """Fetch the events of syncs that have ended. Returns their number, or -1."""
        return self._call(self._calls.io_getevents, self._context, 0, self._files_max, self._events_at, None)

    def _one_ended(self, failure: BaseException | None) -> None:
        self._failure = self._failure or failure
        self._outstanding -= 1
        if self._outstanding == 0:
            done, self._done, self._files = self._done, _ignore, ()
            done(self._failure)

    def close(self) -> None:
        self._loop.remove_reader(self._eventfd)
        self._call(self._calls.io_destroy, self._context)  # waits for syncs that are under way
        os.close(self._eventfd)


def file_sync(disk: Disk, worker: Worker, loop: asyncio.AbstractEventLoop) -> FileSync:
    """The fastest way to sync log files that works here."""
    in_thread = ThreadSync(disk, worker)
    # A disk that tests put in front of the real one has a `sync` of its own.
    if type(disk) is not OsDisk or sys.platform != "linux" or platform.machine() not in SYSTEM_CALLS:
        return in_thread
    # In a 32-bit process on a 64-bit kernel the same numbers are other system calls: 206 sets the groups.
    if sys.maxsize < 2**32:
        return in_thread
    try:
        return KernelSync(loop, in_thread, SYNC_FILES_BEFORE_SYNCFS)
    except OSError:
        return in_thread  # sandboxes and containers may forbid the system call; the thread does the same


def libc_system_call() -> SystemCall:
    function: Any = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    return function  # type: ignore[no-any-return]


def _ignore(failure: BaseException | None) -> None:
    """The end of a sync that nothing waits for."""
