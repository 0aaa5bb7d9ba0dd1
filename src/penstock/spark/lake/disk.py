"""Files and folders that must survive a power failure.

A file is durable when both the file and the folder that names it have been synced. Every file here is
complete before it gets the name under which other processes can see it, so no reader finds a torn file.
"""

import errno
import os
import uuid
from pathlib import Path
from typing import Final

from penstock.spark.lake.lake_table import LakeTableError

TEMPORARY_PREFIX: Final = ".new-"
NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
"""The errors that file systems without hard links return."""


def sync_file(path: Path) -> None:
    _sync(os.open(path, os.O_RDONLY))


def sync_folder(folder: Path) -> None:
    _sync(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def modified_ms(path: Path) -> int:
    """Time of the last write to a file. A file that is gone meanwhile counts as newer than all others."""
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return 1 << 62


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and sync the entry of each in its parent."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def create_once(path: Path, content: bytes) -> bool:
    """Create the file unless it exists. Of two concurrent callers, exactly one gets True."""
    temporary = _write_temporary(path, content)
    try:
        # A link fails if the name exists, so exactly one process gets it. A rename would overwrite.
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as problem:
        if problem.errno not in NO_LINKS:
            raise
        raise LakeTableError(
            f"the file system of {path.parent} does not allow hard links, which the log of the table is "
            "made with: use another file system, or the format delta"
        ) from problem
    finally:
        temporary.unlink()
    # The new name is durable only when its folder is synced.
    sync_folder(path.parent)
    return True


def replace(path: Path, content: bytes) -> None:
    temporary = _write_temporary(path, content)
    try:
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _write_temporary(path: Path, content: bytes) -> Path:
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # for example a full disk
        temporary.unlink(missing_ok=True)
        raise
    return temporary
