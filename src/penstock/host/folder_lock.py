"""One process at a time in a data directory."""

import fcntl
import os

from penstock.errors import StorageFailed
from penstock.host.os_disk import named_by_what_failed

LOCK_FILE = ".lock"


class FolderLock:
    """Held by an open file, so that the kernel gives it back when the process ends, however it ends."""

    def __init__(self, folder: str) -> None:
        path = f"{folder}/{LOCK_FILE}"
        with named_by_what_failed("lock", path):
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
            holder = f"process {owner}" if owner else "another process"
            raise StorageFailed(f"the data directory {folder} is in use by {holder}") from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._descriptor)
