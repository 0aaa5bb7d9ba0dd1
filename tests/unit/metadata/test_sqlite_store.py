"""The SQLite store: atomic, durable, and plain about what it cannot read."""

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CorruptData, StorageFailed, StorageFull
from penstock.host.metadata_store import (
    CommittedTransaction,
    Compare,
    Conflict,
    Delete,
    Put,
    SessionId,
    StoreEntry,
)
from penstock.metadata.sqlite_store import MEMORY, SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "metadata.sqlite")


@contextmanager
def opened(path: str) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    try:
        yield store
    finally:
        store.close()


def test_a_new_store_is_empty_at_revision_zero() -> None:
    with opened(MEMORY) as store:
        assert store.read("") == (0, {})


def test_what_one_transaction_writes_has_one_revision() -> None:
    with opened(MEMORY) as store:
        assert store.transact([], [Put("a", b"1"), Put("b", b"2")]) == CommittedTransaction(1)
        assert store.transact([], [Put("b", b"3"), Delete("a")]) == CommittedTransaction(2)
        assert store.read("") == (2, {"b": StoreEntry(b"3", 2)})


def test_a_moved_revision_is_a_conflict_and_changes_nothing() -> None:
    with opened(MEMORY) as store:
        store.transact([Compare("a", 0)], [Put("a", b"1")])
        assert store.transact([Compare("a", 0)], [Put("b", b"2")]) == Conflict(1)
        assert store.transact([Compare("a", 1), Compare("c", 1)], [Delete("a")]) == Conflict(1)
        assert store.read("") == (1, {"a": StoreEntry(b"1", 1)})
        assert store.transact([Compare("a", 1)], [Delete("a")]) == CommittedTransaction(2)


def test_a_transaction_that_changes_nothing_keeps_the_revision() -> None:
    with opened(MEMORY) as store:
        store.transact([], [Put("a", b"1")])
        assert store.transact([Compare("a", 1)], []) == CommittedTransaction(1, has_changed=False)
        assert store.transact([], [Delete("absent")]) == CommittedTransaction(1, has_changed=False)


def test_reading_a_prefix_stops_at_its_end() -> None:
    with opened(MEMORY) as store:
        store.transact([], [Put(key, b"") for key in ("/a", "/a/", "/a/b", "/a/~", "/a0", "/b/")])
        assert list(store.read("/a/").entries) == ["/a/", "/a/b", "/a/~"]


def test_the_same_key_twice_in_one_transaction_is_our_mistake() -> None:
    with opened(MEMORY) as store, pytest.raises(AssertionError):
        store.transact([], [Put("a", b"1"), Delete("a")])


def test_a_transaction_that_raises_half_way_leaves_nothing() -> None:
    with opened(MEMORY) as store:
        store.transact([], [Put("a", b"1")])
        no_value: Any = None
        with pytest.raises(sqlite3.IntegrityError):
            store.transact([], [Put("a", b"2"), Put("b", no_value)])
        assert store.read("") == (1, {"a": StoreEntry(b"1", 1)})
        assert store.transact([Compare("a", 1)], [Put("a", b"3")]) == CommittedTransaction(2)


def test_closing_leaves_one_file_and_loses_nothing(path: str) -> None:
    with opened(path) as store:
        store.transact([], [Put("a", b"1")])
        assert os.path.exists(path + "-wal")
    assert os.listdir(os.path.dirname(path)) == ["metadata.sqlite"]
    with opened(path) as store:
        assert store.read("") == (1, {"a": StoreEntry(b"1", 1)})


def test_closing_twice_is_harmless(path: str) -> None:
    store = SqliteStore(path)
    store.transact([], [Put("a", b"1")])
    store.close()
    store.close()
    with opened(path) as again:
        assert again.read("") == (1, {"a": StoreEntry(b"1", 1)})


def test_every_commit_is_synced(path: str) -> None:
    with opened(path) as store:
        assert store.value_of("PRAGMA synchronous") == 2
        assert store.value_of("PRAGMA journal_mode") == "wal"


def test_ten_thousand_puts_are_one_revision(path: str) -> None:
    with opened(path) as store:
        assert store.transact([], [Put(f"k{i}", b"v") for i in range(10_000)]) == CommittedTransaction(1)
        assert len(store.read("k").entries) == 10_000


def test_a_copy_taken_inside_a_transaction_shows_none_of_it(path: str, tmp_path: Path) -> None:
    """The cache is made so small that the open transaction is already in the write-ahead log."""
    with opened(path) as store:
        store.transact([], [Put("before", b"1")])
        store._connection.execute("PRAGMA cache_size = 1")
        with store._transaction("BEGIN IMMEDIATE"):
            size_before = os.path.getsize(path + "-wal")
            store._change([Put(f"k{i}", bytes(1_000)) for i in range(200)])
            assert os.path.getsize(path + "-wal") > size_before
            for suffix in ("", "-wal"):
                shutil.copy(path + suffix, str(tmp_path / "copy") + suffix)
        assert len(store.read("").entries) == 201
    with opened(str(tmp_path / "copy")) as copy:
        assert copy.read("") == (1, {"before": StoreEntry(b"1", 1)})


WRITER = """
import sys
from penstock.host.metadata_store import Put
from penstock.metadata.sqlite_store import SqliteStore
store = SqliteStore(sys.argv[1])
for number in range(1, 1_000_000):
    store.transact([], [Put("one", b"%d" % number), Put("two", b"%d" % number)])
    print(number, flush=True)
"""


def test_what_was_committed_before_a_kill_is_there_afterwards(path: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        for _ in range(50):
            process.stdout.readline()
        process.kill()
        acknowledged = 50 + len(process.stdout.read().split())
    with opened(path) as store:
        revision, entries = store.read("")
    assert revision >= acknowledged
    assert entries == {key: StoreEntry(b"%d" % revision, revision) for key in ("one", "two")}


def test_a_full_disk_changes_nothing_and_writing_may_go_on(path: str) -> None:
    with opened(path) as store:
        store.transact([], [Put("a", b"1")])
        store._connection.execute("PRAGMA max_page_count = 10")
        with pytest.raises(StorageFull, match=r"metadata\.sqlite"):
            store.transact([], [Put("a", b"2"), Put("large", bytes(100_000))])
        assert store.read("") == (1, {"a": StoreEntry(b"1", 1)})
        assert store.transact([Compare("a", 1)], [Put("a", b"3")]) == CommittedTransaction(2)


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_after_a_failed_write_nothing_is_taken_until_the_store_is_opened_again(path: str) -> None:
    with opened(path) as store:
        store.transact([], [Put("a", b"1")])
        with files_no_longer_than(os.path.getsize(path + "-wal") + 5_000), pytest.raises(StorageFailed):
            store.transact([], [Put("a", b"2"), Put("large", bytes(50_000))])
        with pytest.raises(StorageFailed, match="opened again"):
            store.transact([], [Put("a", b"3")])
        with pytest.raises(StorageFailed, match="opened again"):
            store.read("")
    with opened(path) as store:
        assert store.read("") == (1, {"a": StoreEntry(b"1", 1)})


def test_a_folder_that_is_not_there_is_a_failure_that_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="absent/metadata"):
        SqliteStore(str(tmp_path / "absent" / "metadata"))


def test_a_file_that_is_no_database_is_refused(path: str) -> None:
    Path(path).write_bytes(b"# broker settings\n" * 1_000)
    with pytest.raises(CorruptData, match=r"metadata\.sqlite is not a sound metadata store"):
        SqliteStore(path)
    assert Path(path).read_bytes() == b"# broker settings\n" * 1_000


def test_a_database_of_another_program_is_refused_and_left_as_it_was(path: str) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE entries (a)")
    other.commit()
    other.close()
    content = Path(path).read_bytes()
    with pytest.raises(CorruptData, match="not a metadata store of Penstock"):
        SqliteStore(path)
    assert Path(path).read_bytes() == content
    assert os.listdir(os.path.dirname(path)) == ["metadata.sqlite"]


def test_a_store_of_a_later_schema_is_refused_by_its_number(path: str) -> None:
    SqliteStore(path).close()
    later = sqlite3.connect(path)
    later.execute("PRAGMA user_version = 7")
    later.close()
    with pytest.raises(CorruptData, match="schema version 7; this Penstock knows 1"):
        SqliteStore(path)


def test_a_store_without_its_revision_is_refused(path: str) -> None:
    SqliteStore(path).close()
    other = sqlite3.connect(path)
    other.execute("DELETE FROM store")
    other.commit()
    other.close()
    with pytest.raises(CorruptData, match="does not say its revision"):
        SqliteStore(path)


@pytest.mark.parametrize("damage", ["cut in half", "pages overwritten"])
def test_a_damaged_store_is_refused(path: str, damage: str) -> None:
    with opened(path) as store:
        store.transact([], [Put(f"k{i}", bytes(100)) for i in range(1_000)])
    content = bytearray(Path(path).read_bytes())
    if damage == "cut in half":
        del content[len(content) // 2 :]
    else:
        content[8_192:16_384] = b"\xa5" * 8_192
    Path(path).write_bytes(content)
    with pytest.raises(CorruptData, match=r"metadata\.sqlite"):
        SqliteStore(path)


def test_a_file_left_by_a_crash_during_creation_is_new(path: str) -> None:
    other = sqlite3.connect(path)
    other.execute("PRAGMA journal_mode = WAL")
    other.close()
    with opened(path) as store:
        assert store.transact([], [Put("a", b"1")]) == CommittedTransaction(1)


def test_keys_of_a_session_that_a_crash_left_behind_go_at_the_next_opening(path: str) -> None:
    with opened(path) as store:
        store.transact([], [Put("live", b"", SessionId(1)), Put("stays", b"")])
    with opened(path) as store:
        assert store.read("") == (2, {"stays": StoreEntry(b"", 1)})
        assert store.opened_at_revision == 2
    with opened(path) as store:
        assert store.opened_at_revision == 2
