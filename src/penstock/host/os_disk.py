"""Disk of the operating system.

Reads use `preadv` with RWF_NOWAIT where the kernel has it: either the bytes are in the page cache and are
returned at once, or the caller must read them in a worker thread. A memory map would be shorter to write and
turn a truncated file into a SIGBUS.

A few files are made durable with `fdatasync` each; beyond that one `syncfs` for the whole file system is
several times faster (0.6 ms against 5.3 ms for 100 files). `syncfs` reports failed writeback only since Linux
5.8, so it is never used on older kernels.

Rule 1: a `syncfs` uses a descriptor that was open before the writes it covers: the kernel reports to a
        descriptor only what failed since it was opened.
Rule 2: each thread that syncs has its own descriptor. The kernel reports a failure once to each descriptor,
        so with a shared one the wrong thread might receive it.
"""

import ctypes
import errno
import functools
import os
import platform
import resource
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from penstock.errors import StorageFailed, StorageFull
from penstock.host.disk import File, SmallFile, Space, TooManyOpenFiles
from penstock.limits import OPEN_FILES_MAX, SYNC_FILES_BEFORE_SYNCFS
from penstock.types import Buffer

# Temporary conditions: space is freed, a quota is raised; a descriptor is closed.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
TEMPORARY_SUFFIX = ".tmp"
_RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_CREATE_REMEDY = "Allow this user to write there, or choose another folder with --data-dir."
_F_FULLFSYNC = 51  # macOS: fsync alone leaves data in the drive's cache


@contextmanager
def translate_os_errors(action: str, path: str) -> Iterator[None]:
    """Convert errors of the operating system to this project's errors, with the file and the action."""
    try:
        yield
    except OSError as error:
        sentence = f"cannot {action} {path}: {error.strerror or error}"
        if error.errno in NO_DESCRIPTOR:
            raise TooManyOpenFiles(sentence) from error
        if error.errno in FULL:
            raise StorageFull(sentence) from error
        raise StorageFailed(sentence, remedy=_CREATE_REMEDY if action == "create" else "") from error


def sync_descriptor(descriptor: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(descriptor, _F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


@functools.cache
def find_syncfs() -> Callable[[int], int] | None:
    """The kernel's syncfs, or None where it is missing or does not report errors reliably."""
    if sys.platform != "linux":
        return None
    release = platform.release().split(".")
    if (int(release[0]), int(release[1].split("-")[0])) < (5, 8):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    function: Callable[[int], int] | None = getattr(library, "syncfs", None)
    return function


class OsFile:
    """One open file, with a count of its holders."""

    __slots__ = ("_descriptor", "_holders", "_path")

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._holders = 1

    @property
    def path(self) -> str:
        return self._path

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, position: int, length: int) -> bytes:
        with translate_os_errors("read", self._path):
            first = os.pread(self._descriptor, length, position)
            if len(first) in (0, length):
                return first
            parts = [first]
            have = len(first)
            while have < length and (part := os.pread(self._descriptor, length - have, position + have)):
                parts.append(part)
                have += len(part)
            return b"".join(parts)

    def read_cached(self, position: int, length: int) -> bytes | None:
        if not _RWF_NOWAIT or length <= 0:
            return None
        data = bytearray(length)
        try:
            have = os.preadv(self._descriptor, [data], position, _RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise StorageFailed(f"cannot read {self._path}: {error.strerror}") from error
        return data if have == length else None  # type: ignore[return-value]

    def write(self, position: int, data: Buffer) -> None:
        try:
            written = os.pwrite(self._descriptor, data, position)
            if written != len(data):
                rest = memoryview(data)
                while written < len(data):
                    written += os.pwrite(self._descriptor, rest[written:], position + written)
        except OSError as error:
            sentence = f"cannot write {self._path}: {error.strerror}"
            # A part may have been written: the caller truncates it (rule 1 of host/disk.py).
            raise (StorageFull if error.errno in FULL else StorageFailed)(sentence) from error

    def truncate(self, size: int) -> None:
        with translate_os_errors("truncate", self._path):
            os.ftruncate(self._descriptor, size)

    @property
    def is_shared(self) -> bool:
        return self._holders > 1

    def retain(self) -> None:
        assert self._holders > 0, f"{self._path} is closed"
        self._holders += 1

    def release(self) -> None:
        assert self._holders > 0, f"{self._path} is closed twice"
        self._holders -= 1
        if self._holders == 0:
            os.close(self._descriptor)

    def __repr__(self) -> str:
        return f"<OsFile {self._path}>"


class OsDisk:
    """Disk access through the operating system. Callers build the paths from validated names."""

    def __init__(self, files_max: int = OPEN_FILES_MAX) -> None:
        self._files_max = files_max
        self._free: list[int] = []
        """Unassigned folder descriptors for syncs of the file system; `_held`: those assigned, by thread."""
        self._held: dict[int, int] = {}

    @property
    def open_files_max(self) -> int:
        """Half of what the process may open: connections and readers need descriptors too."""
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return self._files_max if most == resource.RLIM_INFINITY else min(most // 2, self._files_max)

    def open(self, path: str, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        with translate_os_errors("open", path):
            return OsFile(path, os.open(path, flags, 0o640))

    def exists(self, path: str) -> bool:
        # os.path.lexists returns False on every error, after an I/O error too.
        with translate_os_errors("look at", path):
            try:
                os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def list_folder(self, path: str) -> list[str]:
        with translate_os_errors("list", path):
            return sorted(os.listdir(path))

    def make_folder(self, path: str) -> None:
        with translate_os_errors("create", path):
            os.makedirs(path, mode=0o750, exist_ok=True)

    def read_file(self, path: str) -> bytes:
        with translate_os_errors("read", path), open(path, "rb") as file:
            return file.read()

    def size_of(self, path: str) -> int:
        with translate_os_errors("look at", path):
            return os.stat(path, follow_symlinks=False).st_size

    def rename(self, source: str, target: str) -> None:
        with translate_os_errors("rename", source):
            os.rename(source, target)

    def remove(self, path: str) -> None:
        with translate_os_errors("remove", path), suppress(FileNotFoundError):
            os.unlink(path)

    def remove_folder(self, path: str) -> None:
        with translate_os_errors("remove", path), suppress(FileNotFoundError):
            shutil.rmtree(path)

    def space(self, path: str) -> Space:
        with translate_os_errors("look at", path):
            usage = shutil.disk_usage(path)
            return Space(total_bytes=usage.total, usable_bytes=usage.free)

    def sync(self, files: Sequence[File], folders: Sequence[str]) -> None:
        syncfs = find_syncfs()
        if syncfs is not None and len(files) + len(folders) > SYNC_FILES_BEFORE_SYNCFS:
            self._sync_file_system(syncfs, files, folders)
            return
        for file in files:
            assert isinstance(file, OsFile)
            try:
                sync_descriptor(file.descriptor)
            except OSError as error:
                raise StorageFailed(f"cannot sync {file.path}: {error.strerror}") from error
        for folder in folders:
            try:
                self._sync_path(folder)
            except TooManyOpenFiles:
                # No descriptor is free to open the folder with. An open one can sync the whole file system.
                if syncfs is None or not (files or self._own_descriptor() is not None):
                    raise
                self._sync_file_system(syncfs, files, ())
                return

    def reserve_sync_descriptors(self, path: str, threads: int) -> None:
        self.close_sync_descriptors()
        for _ in range(threads):
            with translate_os_errors("open", path):
                self._free.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))

    @property
    def sync_descriptors(self) -> list[int]:
        return [*self._free, *self._held.values()]

    def close_sync_descriptors(self) -> None:
        descriptors = self.sync_descriptors
        self._free, self._held = [], {}
        for descriptor in descriptors:
            os.close(descriptor)

    def _own_descriptor(self) -> int | None:
        """Descriptor of the calling thread, assigned at its first sync; None if there is none left."""
        thread = threading.get_ident()
        if thread not in self._held and self._free:
            self._held[thread] = self._free.pop()
        return self._held.get(thread)

    def store(self, writes: Sequence[SmallFile]) -> None:
        temporaries = [write.path + TEMPORARY_SUFFIX for write in writes]
        try:
            files = []
            try:
                for write, temporary in zip(writes, temporaries, strict=True):
                    self.remove(temporary)
                    file = self.open(temporary, create=True)
                    files.append(file)
                    file.write(0, write.content)
                # Content before name: a rename that reaches the disk first would leave an empty file after a
                # crash.
                self.sync(files, ())
            finally:
                for file in files:
                    file.release()
            for write, temporary in zip(writes, temporaries, strict=True):
                self.rename(temporary, write.path)
            # Only the sync of the folders makes the renames durable.
            self.sync((), sorted({os.path.dirname(write.path) for write in writes}))
        except StorageFull:
            for temporary in temporaries:
                self.remove(temporary)
            raise

    def _sync_file_system(
        self, syncfs: Callable[[int], int], files: Sequence[File], folders: Sequence[str]
    ) -> None:
        """Sync once for all files: they are on one file system, that of the data directory."""
        if (held := self._own_descriptor()) is not None:
            self._call_syncfs(syncfs, held)
            return
        if files:
            file = files[0]
            assert isinstance(file, OsFile)
            self._call_syncfs(syncfs, file.descriptor)
            return
        if (found := next(filter(self.exists, folders), None)) is None:
            return
        with translate_os_errors("open", found):
            descriptor = os.open(found, os.O_RDONLY)
        try:
            self._call_syncfs(syncfs, descriptor)
        finally:
            os.close(descriptor)

    def _call_syncfs(self, syncfs: Callable[[int], int], descriptor: int) -> None:
        if syncfs(descriptor) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise StorageFailed(f"cannot sync the file system of the data directory: {reason}")

    def _sync_path(self, path: str) -> None:
        try:
            with translate_os_errors("open", path):
                descriptor = os.open(path, os.O_RDONLY)
        except StorageFailed:
            if self.exists(path):
                raise
            return  # removed since: nothing is left to make durable
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise StorageFailed(f"cannot sync {path}: {error.strerror}") from error
        finally:
            os.close(descriptor)
