"""Lock that allows one process at a time in a data directory."""

import fcntl
import os
from contextlib import suppress
from typing import Protocol

from penstock.errors import StorageFailed
from penstock.host.os_disk import translate_os_errors

LOCK_FILE = ".lock"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Lock(Protocol):
    @property
    def mark(self) -> str:
        """Name of the lock, unique among all locks of all machines since their boot. A process that holds a
        lock of the same name took it after the previous holder released it, or died. Empty: the lock has no
        name here.
        """
        ...

    def release(self) -> None: ...


class DirectoryInUse(StorageFailed):
    """Another process holds the folder."""

    def __init__(self, folder: str, owner: str) -> None:
        """`owner`: id of that process; empty if unknown."""
        self.owner = owner
        holder = f"process {owner}" if owner else "another process"
        super().__init__(
            f"the data directory {folder} is in use by {holder}",
            remedy="Stop that process, or choose another folder with --data-dir.",
        )


class FolderLock:
    """Lock on an open file: the kernel releases it when the process ends, however it ends."""

    def __init__(self, folder: str) -> None:
        path = f"{folder}/{LOCK_FILE}"
        with translate_os_errors("lock", path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o640)
            try:
                self._take(folder)
            except BaseException:
                os.close(self._descriptor)
                raise

    def _take(self, folder: str) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            raise DirectoryInUse(folder, owner) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    @property
    def mark(self) -> str:
        """Boot id of the kernel, device and inode of the lock file. A copy of the folder has another file."""
        try:
            with open(BOOT_ID, encoding="ascii") as file:
                boot_id = file.read().strip()
        except OSError:  # not Linux
            return ""
        found = os.fstat(self._descriptor)
        return f"{boot_id}:{found.st_dev}:{found.st_ino}"

    def release(self) -> None:
        # The kernel reuses process ids, and operators type `kill $(cat .lock)`. The lock itself is the open
        # file, whatever its content.
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
