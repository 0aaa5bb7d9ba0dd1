"""Who has a data directory, and what is said when that cannot be found out."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from penstock.errors import StorageFailed, StorageFull
from penstock.host.folder_lock import LOCK_FILE, FolderLock


def failing(code: int) -> object:
    def fail(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_folder_is_given_to_one_at_a_time_and_the_other_is_told_to_whom(tmp_path: Path) -> None:
    lock = FolderLock(str(tmp_path))
    with pytest.raises(StorageFailed, match=f"is in use by process {os.getpid()}$"):
        FolderLock(str(tmp_path))
    lock.release()
    FolderLock(str(tmp_path)).release()


def test_who_let_go_of_a_folder_is_not_named_any_more(tmp_path: Path) -> None:
    FolderLock(str(tmp_path)).release()
    assert not (tmp_path / LOCK_FILE).read_text()


@pytest.mark.parametrize("call", ["ftruncate", "pwrite"])
def test_a_full_disk_is_named_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.ENOSPC))
        with pytest.raises(StorageFull, match=f"^cannot lock .*/{LOCK_FILE}: No space left on device$"):
            FolderLock(str(tmp_path))
    FolderLock(str(tmp_path)).release()  # it was not kept


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    with pytest.raises(StorageFailed, match=f"^cannot lock .*/{LOCK_FILE}: No locks available$"):
        FolderLock(str(tmp_path))
