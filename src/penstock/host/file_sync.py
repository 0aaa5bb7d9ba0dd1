"""Syncs of log files that do not block the event loop.

`ThreadSync` runs the disk's sync in a worker thread. `KernelSync`
(host/syscalls/kernel_sync.py) needs no thread.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.host.disk import Disk, File
from penstock.host.worker import Worker

SyncDone = Callable[[BaseException | None], None]
"""Called on the event loop: with None when everything is durable, else with the reason why it is not."""


class FileSync(Protocol):
    def sync(self, files: Sequence[File], folders: Sequence[str], done: SyncDone) -> None:
        """Make the content of `files` and the entries of `folders` durable, then call `done`.

        One sync at a time: the caller begins the next one after `done`.
        """
        ...

    def close(self) -> None:
        """Release what the syncs needed. Called when no sync is under way."""
        ...


class ThreadSync:
    def __init__(self, disk: Disk, worker: Worker) -> None:
        self._disk = disk
        self._worker = worker

    def sync(self, files: Sequence[File], folders: Sequence[str], done: SyncDone) -> None:
        self._worker.submit(lambda: self._disk.sync(files, folders), lambda _, error: done(error))

    def close(self) -> None:
        """Nothing to release: the worker belongs to the caller."""
