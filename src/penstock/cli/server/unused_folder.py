"""Cleanup of a new data directory after a failed start.

Rule: a folder that existed before, or that holds a partition, is never removed.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from penstock.errors import ConfigError, StorageFailed
from penstock.host.folder_lock import FolderLock
from penstock.host.os_disk import OsDisk
from penstock.log.data_directory import IDENTITY_FILE, DataDirectory, identity_in


@contextmanager
def remove_unused_new_folder(path: str) -> Iterator[None]:
    """Remove the data directory that a rejected start created, for example one with a used node id."""
    was_there = os.path.lexists(path)
    try:
        yield
    except ConfigError:
        if not was_there:
            _remove_unused(path)
        raise


def _remove_unused(path: str) -> None:
    """Remove the folder, unless it holds partitions or another process has begun to use it."""
    disk = OsDisk()
    with suppress(StorageFailed), ExitStack() as stack:
        if not disk.exists(f"{path}/{IDENTITY_FILE}"):
            return
        # The lock fails if another process uses the folder; then nothing is removed.
        stack.callback(FolderLock(path).release)
        if not DataDirectory(disk, path, identity_in(disk, path)).partitions_on_disk():
            disk.remove_folder(path)
