"""The disk of the operating system keeps the promises of host/disk.py."""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock.errors import StorageFailed, StorageFull
from penstock.host import os_disk
from penstock.host.disk import File, SmallFile, TooManyOpenFiles
from penstock.host.os_disk import OsDisk
from penstock.limits import OPEN_FILES_MAX, SYNC_FILES_BEFORE_SYNCFS


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)


def failing(code: int) -> object:
    def fail(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_what_is_written_is_read(folder: str) -> None:
    file = OsDisk().open(f"{folder}/a", create=True)
    file.write(3, memoryview(b"hello"))
    assert (file.size(), file.read(0, 100), file.read(4, 2)) == (8, b"\0\0\0hello", b"el")
    assert file.read_cached(3, 5) in (b"hello", None)
    assert file.read_cached(3, 6) is None, "never less than was asked for"
    file.truncate(4)
    assert file.read(0, 100) == b"\0\0\0h"
    file.release()


def test_a_short_write_is_finished(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:3], at))
    file = OsDisk().open(f"{folder}/a", create=True)
    file.write(0, b"0123456789")
    assert file.read(0, 100) == b"0123456789"
    file.release()


def test_a_file_closes_with_its_last_holder(folder: str) -> None:
    file = OsDisk().open(f"{folder}/a", create=True)
    file.retain()
    file.release()
    file.write(0, b"still open")
    descriptor = file.descriptor
    file.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(AssertionError, match="closed"):
        file.release()


def test_a_symbolic_link_is_not_followed(folder: str, tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(StorageFailed, match="link"):
        OsDisk().open(f"{folder}/link")


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EIO, StorageFailed)]
)
def test_a_failed_write_is_named_by_what_failed(
    folder: str, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    file = OsDisk().open(f"{folder}/a", create=True)
    monkeypatch.setattr(os, "pwrite", failing(code))
    with pytest.raises(kind, match=f"{folder}/a"):
        file.write(0, b"x")
    file.release()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_says_nothing_of_the_disk(
    folder: str, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    disk = OsDisk()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(code))
        with pytest.raises(TooManyOpenFiles, match=f"{folder}/a"):
            disk.open(f"{folder}/a", create=True)
        with pytest.raises(TooManyOpenFiles):
            disk.store([SmallFile(f"{folder}/a", b"x")])
    disk.store([SmallFile(f"{folder}/a", b"x")])
    assert disk.read_file(f"{folder}/a") == b"x"


@pytest.mark.parametrize("count", [1, 6])
def test_a_failed_sync_is_a_failed_disk(folder: str, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    disk = OsDisk()
    files = [disk.open(f"{folder}/{number}", create=True) for number in range(count)]
    disk.sync(files, [folder])
    monkeypatch.setattr(os_disk, "sync_descriptor", failing(errno.EIO))
    monkeypatch.setattr(os_disk, "find_syncfs", lambda: lambda descriptor: -1)
    with pytest.raises(StorageFailed, match="cannot sync"):
        disk.sync(files, ())
    for file in files:
        file.release()


def test_syncing_a_folder_that_was_removed_is_no_failure_and_others_are_synced(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(_inode(os.fstat(descriptor))))
    OsDisk().sync((), [f"{folder}/gone", folder])
    OsDisk().sync((), [f"{folder}/gone{number}" for number in range(9)])
    assert synced == [_inode(os.stat(folder))]
    assert os.listdir(folder) == [], "nothing is made to be synced"


def _inode(found: os.stat_result) -> str:
    return f"{found.st_dev}:{found.st_ino}"


def test_a_replaced_file_is_the_old_one_or_the_new_one(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OsDisk()
    disk.store([SmallFile(f"{folder}/a", b"old"), SmallFile(f"{folder}/b", b"old")])
    steps: list[str] = []
    real_rename, real_sync = os.rename, disk.sync

    def rename(source: str, target: str) -> None:
        steps.append("rename")
        real_rename(source, target)

    def sync(files: Sequence[File], folders: Sequence[str]) -> None:
        steps.append("files" if files else "folder")
        real_sync(files, folders)

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(disk, "sync", sync)
    disk.store([SmallFile(f"{folder}/a", b"new")])
    assert steps == ["files", "rename", "folder"], "content before name, name before success"
    assert disk.read_file(f"{folder}/a") == b"new"
    assert disk.list_folder(folder) == ["a", "b"]


def test_a_full_disk_leaves_the_old_file_and_no_other(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OsDisk()
    disk.store([SmallFile(f"{folder}/a", b"old")])
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", failing(errno.ENOSPC))
        with pytest.raises(StorageFull):
            disk.store([SmallFile(f"{folder}/a", b"new")])
    assert disk.read_file(f"{folder}/a") == b"old"
    assert disk.list_folder(folder) == ["a"]


def test_removing_what_is_not_there_is_fine(folder: str) -> None:
    disk = OsDisk()
    disk.remove(f"{folder}/a")
    disk.remove_folder(f"{folder}/b")
    disk.make_folder(f"{folder}/c/d")
    disk.make_folder(f"{folder}/c/d")
    disk.open(f"{folder}/c/d/file", create=True).release()
    disk.remove_folder(f"{folder}/c")
    assert disk.list_folder(folder) == []


def test_each_thread_syncs_the_file_system_by_its_own_descriptor_from_the_start(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells each descriptor once of a failed writeback, and only of those since it was opened."""
    used: dict[str, list[int]] = {"a": [], "b": []}
    disk = OsDisk()
    disk.reserve_sync_descriptors(folder, 2)
    held = set(disk.sync_descriptors)
    files = [disk.open(f"{folder}/{number}", create=True) for number in range(9)]

    def syncfs(descriptor: int) -> int:
        used[threading.current_thread().name].append(descriptor)
        return 0

    monkeypatch.setattr(os_disk, "find_syncfs", lambda: syncfs)
    both = threading.Barrier(2)

    def sync_twice() -> None:
        disk.sync(files, ())
        both.wait(10)  # so that the second is not given the first one's number
        disk.sync(files, ())

    threads = [threading.Thread(target=sync_twice, name=name) for name in used]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {*used["a"], *used["b"]} == held
    assert all(len(set(descriptors)) == 1 for descriptors in used.values())
    disk.close_sync_descriptors()
    for descriptor in held:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    for file in files:
        file.release()


def test_a_sync_of_new_folders_needs_no_descriptor_that_is_not_held(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk()
    disk.reserve_sync_descriptors(folder, 1)
    called: list[int] = []

    def syncfs(descriptor: int) -> int:
        called.append(descriptor)
        return 0

    monkeypatch.setattr(os_disk, "find_syncfs", lambda: syncfs)
    monkeypatch.setattr(os, "open", failing(errno.EMFILE))
    disk.sync((), [folder])
    disk.sync((), [f"{folder}/{number}" for number in range(9)])
    assert called == disk.sync_descriptors * 2
    disk.close_sync_descriptors()


def test_half_of_the_descriptors_are_for_log_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda kind: (1_024, 4_096))
    assert OsDisk().open_files_max == 512
    monkeypatch.setattr("resource.getrlimit", lambda kind: (-1, -1))
    assert OsDisk().open_files_max == OPEN_FILES_MAX


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_what_cannot_be_looked_at_is_not_said_to_be_missing(
    folder: str, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", failing(code))
        with pytest.raises(StorageFailed) as failed:
            OsDisk().exists(folder)
    assert str(failed.value) == f"cannot look at {folder}: {os.strerror(code)}"


def test_what_is_missing_is_not_there(folder: str) -> None:
    disk = OsDisk()
    disk.store([SmallFile(f"{folder}/a", b"")])
    os.symlink("nowhere", f"{folder}/link")
    found = [disk.exists(f"{folder}/{name}") for name in ("", "a", "link", "b", "b/c", "a/c")]
    assert found == [True, True, True, False, False, False]


@pytest.mark.parametrize("has_syncfs", [False, True])
def test_a_folder_that_cannot_be_looked_at_does_not_count_as_synced(
    folder: str, monkeypatch: pytest.MonkeyPatch, has_syncfs: bool
) -> None:
    calls: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os_disk, "find_syncfs", lambda: recorded_syncfs(calls) if has_syncfs else None)
        patch.setattr(os.path, "isdir", lambda path: False)  # what it says of whatever it cannot look at
        for name in ("open", "lstat"):
            patch.setattr(os, name, failing(errno.EIO))
        with pytest.raises(StorageFailed):
            OsDisk().sync((), [folder] * (SYNC_FILES_BEFORE_SYNCFS + 1))
    assert calls == []


def recorded_syncfs(calls: list[int]) -> Callable[[int], int]:
    def syncfs(descriptor: int) -> int:
        calls.append(descriptor)
        return 0

    return syncfs
