"""The disk, as the log sees it.

Reading, writing and truncating are plain calls: they go to the page cache and return at once.
Making data durable is not: `sync` and `store` block for as long as the device takes, so the log
only says what should be synced and the shell does it away from the event loop.

Rule 1: a write happens whole or raises. After `StorageFull` the caller cuts what remains of it.
Rule 2: a failed sync is never repeated. What the page cache holds after it is unknown.
Rule 3: that no file can be opened passes when others are closed; it says nothing of the disk.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.errors import StorageFull
from penstock.types import Buffer


class TooManyOpenFiles(StorageFull):
    """No file can be opened now. Whoever tries again, after some were closed, may succeed."""


class File(Protocol):
    """An open file. `retain` and `release` are counted; the last release closes it."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes. Blocks if they are not in memory."""
        ...

    def read_cached(self, position: int, length: int) -> bytes | None:
        """The same, but None instead of waiting for the device."""
        ...

    def write(self, position: int, data: Buffer) -> None: ...

    def truncate(self, size: int) -> None: ...

    @property
    def is_shared(self) -> bool:
        """Whether it stays open after the next release: somebody else holds it too."""
        ...

    def retain(self) -> None: ...

    def release(self) -> None: ...


class SmallFile(NamedTuple):
    """A small file to be replaced whole, atomically and durably."""

    path: str
    content: bytes


class Space(NamedTuple):
    total_bytes: int
    usable_bytes: int


class Disk(Protocol):
    @property
    def open_files_max(self) -> int:
        """How many files of logs may be open at once."""
        ...

    def open(self, path: str, *, create: bool = False) -> File: ...

    def exists(self, path: str) -> bool:
        """Whether there is such a name. StorageFailed if that cannot be found out: not seen is not gone."""
        ...

    def list_folder(self, path: str) -> list[str]:
        """Sorted names, so that no decision depends on the order of the file system."""
        ...

    def make_folder(self, path: str) -> None:
        """With its parents; an existing one is fine."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def size_of(self, path: str) -> int: ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_folder(self, path: str) -> None:
        """With everything in it."""
        ...

    def space(self, path: str) -> Space: ...

    # The calls below wait for the device.

    def sync(self, files: Sequence[File], folders: Sequence[str]) -> None:
        """Make the content of `files` and the entries of `folders` durable, or raise StorageFailed."""
        ...

    def open_sync_descriptors(self, path: str, threads: int) -> None:
        """Keep the file system of this folder within reach of so many threads, so that no sync of
        theirs fails for want of a descriptor. Call it before anything is written."""
        ...

    def close_sync_descriptors(self) -> None:
        """Of what is held."""
        ...

    def store(self, writes: Sequence[SmallFile]) -> None:
        """Replace each file atomically: after a crash it is the old one or the new one, never a mix."""
        ...
