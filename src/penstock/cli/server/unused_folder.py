"""The folder of a broker that never was one: a start that is refused takes away what it made.

Rule: nothing is taken away that was there before, or that holds a partition.
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
    """A broker that was refused, as by a cluster that has its id, leaves no folder behind that it made."""
    was_there = os.path.lexists(path)
    try:
        yield
    except ConfigError:
        if not was_there:
            _remove_unused(path)
        raise


def _remove_unused(path: str) -> None:
    """Unless there are records in it, or somebody else has begun to use it."""
    disk = OsDisk()
    with suppress(StorageFailed), ExitStack() as stack:
        if not disk.exists(f"{path}/{IDENTITY_FILE}"):
            return
        stack.callback(FolderLock(path).release)
        if not DataDirectory(disk, path, identity_in(disk, path)).partitions_on_disk():
            disk.remove_folder(path)
