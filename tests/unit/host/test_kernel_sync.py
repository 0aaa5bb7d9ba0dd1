"""The kernel syncs a few log files without a thread; whatever it does not take goes to the thread."""

import asyncio
import ctypes
import errno
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.errors import StorageFailed
from penstock.host.disk import Disk, File
from penstock.host.file_sync import FileSync, SyncDone, ThreadSync
from penstock.host.os_disk import OsDisk, OsFile
from penstock.host.syscalls.kernel_sync import (
    SYSTEM_CALLS,
    KernelSync,
    SyncEvent,
    SystemCall,
    file_sync,
    libc_system_call,
)
from penstock.host.worker import Worker

FILES_MAX = 4

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="asynchronous syncs of the kernel are for Linux; they were NOT tested",
)


class Thread:
    """Stands for the thread that takes what the kernel does not."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.taken: list[tuple[Sequence[File], Sequence[str]]] = []
        self._failure = failure

    def sync(self, files: Sequence[File], folders: Sequence[str], done: SyncDone) -> None:
        self.taken.append((files, folders))
        asyncio.get_running_loop().call_soon(done, self._failure)

    def close(self) -> None:
        pass


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[OsFile]]:
    opened = [OsDisk().open(str(tmp_path / f"{number}.log"), create=True) for number in range(FILES_MAX + 1)]
    for file in opened:
        file.write(0, b"a record")
    yield opened
    for file in opened:
        file.release()


async def outcome(sync: FileSync, files: Sequence[File], folders: Sequence[str] = ()) -> BaseException | None:
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    sync.sync(files, folders, ended.set_result)
    return await asyncio.wait_for(ended, 10)


async def test_files_are_synced_by_the_kernel_again_and_again(files: list[OsFile]) -> None:
    thread = Thread()
    sync = KernelSync(asyncio.get_running_loop(), thread, FILES_MAX)
    for count in (1, FILES_MAX, 2, 1):
        assert await outcome(sync, files[:count]) is None
    sync.close()
    assert thread.taken == []


async def test_folders_no_files_and_too_many_files_go_to_the_thread(
    files: list[OsFile], tmp_path: Path
) -> None:
    thread = Thread()
    sync = KernelSync(asyncio.get_running_loop(), thread, FILES_MAX)
    assert await outcome(sync, files[:1], [str(tmp_path)]) is None
    assert await outcome(sync, ()) is None
    assert await outcome(sync, files) is None
    sync.close()
    assert thread.taken == [(files[:1], [str(tmp_path)]), ((), ()), (files, ())]


async def test_a_writeback_that_failed_fails_the_sync_with_the_name_of_the_file(files: list[OsFile]) -> None:
    def failing(number: int, *arguments: object) -> int:
        count = real(number, *arguments)
        if number == calls.io_getevents:
            events = ctypes.cast(arguments[3], ctypes.POINTER(SyncEvent))  # type: ignore[arg-type]
            for event in events[:count]:
                event.result = -errno.EIO if event.number == 1 else 0
        return count

    real, calls = libc_system_call(), SYSTEM_CALLS[platform.machine()]
    sync = KernelSync(asyncio.get_running_loop(), Thread(), FILES_MAX, system_call=failing)
    failure = await outcome(sync, files[:3])
    assert isinstance(failure, StorageFailed)
    assert str(failure) == f"cannot sync {files[1].path}: {os.strerror(errno.EIO)}"
    assert await outcome(sync, files[:1]) is None, "the next sync is about other files"
    sync.close()


async def test_a_file_that_has_no_sync_fails_in_the_thread(files: list[OsFile]) -> None:
    read_end, write_end = os.pipe()
    pipe, loop = OsFile("a-pipe", write_end), asyncio.get_running_loop()
    worker = Worker("flush", loop)
    sync = file_sync(OsDisk(), worker, loop)
    failure = await outcome(sync, [files[0], pipe, files[1]])
    assert str(failure) == f"cannot sync a-pipe: {os.strerror(errno.EINVAL)}"
    sync.close()
    worker.stop()
    pipe.release()
    os.close(read_end)


def refuse(after: int) -> SystemCall:
    """A system call that takes only the first `after` of the files of each sync."""
    real = libc_system_call()
    calls = SYSTEM_CALLS[platform.machine()]

    def call(number: int, *arguments: object) -> int:
        if number != calls.io_submit:
            return real(number, *arguments)
        context, _, pointers = arguments
        return real(number, context, after, pointers) if after else -1

    return call


@pytest.mark.parametrize("after", [0, 2])
async def test_what_the_kernel_does_not_take_goes_to_the_thread(files: list[OsFile], after: int) -> None:
    thread = Thread()
    sync = KernelSync(asyncio.get_running_loop(), thread, FILES_MAX, system_call=refuse(after))
    assert await outcome(sync, files[:3]) is None
    assert thread.taken == [(files[after:3], ())]
    sync.close()


async def test_a_failure_of_the_thread_fails_the_whole_sync(files: list[OsFile]) -> None:
    failure = StorageFailed("cannot sync 2.log: Input/output error")
    sync = KernelSync(asyncio.get_running_loop(), Thread(failure), FILES_MAX, system_call=refuse(2))
    assert await outcome(sync, files[:3]) is failure
    sync.close()


async def test_a_forbidden_system_call_leaves_syncs_to_the_thread() -> None:
    def forbidden(number: int, *arguments: object) -> int:
        return -1

    with pytest.raises(OSError, match="no context"):
        KernelSync(asyncio.get_running_loop(), Thread(), FILES_MAX, system_call=forbidden)


async def test_only_the_disk_of_the_system_is_synced_by_the_kernel() -> None:
    class OtherDisk(OsDisk):
        """A disk that a test puts in front of the real one."""

    loop = asyncio.get_running_loop()
    worker = Worker("flush", loop)
    disks: list[tuple[Disk, type]] = [(OsDisk(), KernelSync), (OtherDisk(), ThreadSync)]
    for disk, expected in disks:
        sync = file_sync(disk, worker, loop)
        assert type(sync) is expected
        sync.close()
    worker.stop()


def forbid(forbidden: int, calls: list[int]) -> SystemCall:
    """A system call that fails for one number. `calls` gets the numbers that are called."""
    real = libc_system_call()

    def call(number: int, *arguments: object) -> int:
        calls.append(number)
        return -1 if number == forbidden else real(number, *arguments)

    return call


async def test_a_sandbox_that_hides_ended_syncs_leaves_syncs_to_the_thread() -> None:
    """Otherwise the first flush would wait for ever."""
    numbers, calls = SYSTEM_CALLS[platform.machine()], list[int]()
    with pytest.raises(OSError, match="which syncs have ended"):
        KernelSync(
            asyncio.get_running_loop(),
            Thread(),
            FILES_MAX,
            system_call=forbid(numbers.io_getevents, calls),
        )
    assert calls == [numbers.io_setup, numbers.io_getevents, numbers.io_destroy]


async def test_a_32_bit_process_leaves_syncs_to_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a 64-bit kernel, where the same numbers are other system calls."""
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    loop = asyncio.get_running_loop()
    worker = Worker("flush", loop)
    sync = file_sync(OsDisk(), worker, loop)
    assert isinstance(sync, ThreadSync)
    worker.stop()
