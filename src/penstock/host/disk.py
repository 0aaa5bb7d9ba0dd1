"""Disk interface of the log.

Reads, writes and truncations are plain calls: they use the page cache and return at once. Making data durable
is different: `sync` and `store` block for as long as the device takes, so the log only returns what should be
synced, and its caller does that away from the event loop.

Rule 1: a write is complete or raises. After `StorageFull` the caller truncates the part that was written.
Rule 2: a failed sync is never repeated. The page cache content after it is unknown.
Rule 3: a failure to open a file for lack of descriptors is temporary: it passes when other files are closed,
        and proves nothing about the disk.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from penstock.errors import StorageFull
from penstock.types import Buffer


class TooManyOpenFiles(StorageFull):
    """No descriptor is free. A retry may succeed after other files were closed."""

    remedy = "Allow this process more open files (`ulimit -n`) and start again."


class File(Protocol):
    """An open file. `retain` and `release` are counted; the last release closes it."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def read(self, position: int, length: int) -> bytes:
        """Read up to `length` bytes. Blocks if they are not in the page cache."""
        ...

    def read_cached(self, position: int, length: int) -> bytes | None:
        """The same, but None instead of waiting for the device."""
        ...

    def write(self, position: int, data: Buffer) -> None: ...

    def truncate(self, size: int) -> None: ...

    @property
    def is_shared(self) -> bool:
        """Whether the file stays open after the next release, because it has another holder."""
        ...

    def retain(self) -> None: ...

    def release(self) -> None: ...


class SmallFile(NamedTuple):
    """A small file to be replaced as a whole, atomically and durably."""

    path: str
    content: bytes


class Space(NamedTuple):
    total_bytes: int
    usable_bytes: int


class Disk(Protocol):
    @property
    def open_files_max(self) -> int:
        """Maximum number of log files that may be open at once."""
        ...

    def open(self, path: str, *, create: bool = False) -> File: ...

    def exists(self, path: str) -> bool:
        """Whether the path exists. StorageFailed: unknown, which must not count as missing."""
        ...

    def list_folder(self, path: str) -> list[str]:
        """Sorted names, so that no decision depends on the order of the file system."""
        ...

    def make_folder(self, path: str) -> None:
        """Create the folder and its parents; an existing one is no error."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def size_of(self, path: str) -> int: ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_folder(self, path: str) -> None:
        """Remove the folder with everything in it."""
        ...

    def space(self, path: str) -> Space: ...

    # The calls below wait for the device.

    def sync(self, files: Sequence[File], folders: Sequence[str]) -> None:
        """Make the content of `files` and the entries of `folders` durable, or raise StorageFailed."""
        ...

    def reserve_sync_descriptors(self, path: str, threads: int) -> None:
        """Open a descriptor of this folder's file system for each of `threads` threads, so that no sync fails
        for lack of a descriptor. Call it before anything is written.
        """
        ...

    def close_sync_descriptors(self) -> None:
        """Close these descriptors."""
        ...

    def store(self, writes: Sequence[SmallFile]) -> None:
        """Replace each file atomically: after a crash it is the old one or the new one, never a mix."""
        ...


@contextmanager
def opened(disk: Disk, path: str) -> Iterator[File]:
    """Open an existing file, and release it at the end."""
    file = disk.open(path)
    try:
        yield file
    finally:
        file.release()
