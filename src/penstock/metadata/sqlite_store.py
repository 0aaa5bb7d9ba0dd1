"""The file of the embedded broker's metadata store: one SQLite database. Calls block.

Strategy: one table of entries, and a row with the revision. Every transaction takes the write lock first,
then compares, makes its changes, increments the revision and commits through the write-ahead log, which is
synced before `transact` returns. SQLite recovers half-written transactions.

Rule 1: one connection, used by one thread at a time. `embedded_store.py` gives the file its own worker.
Rule 2: a file that is not a metadata store is rejected before anything is written to it.
Rule 3: after a failed write or sync the store accepts nothing more: what is on disk is known only after it is
        opened again. A full disk is different: nothing was applied, and writing may go on.
Rule 4: a session ends with its process. Keys of sessions left behind are deleted at the next opening.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.errors import CorruptData, StorageFailed, StorageFull
from penstock.host.metadata_store import (
    ABSENT,
    CommittedTransaction,
    Compare,
    Conflict,
    Delete,
    Event,
    Put,
    SessionId,
    Snapshot,
    StoreChange,
    StoreEntry,
    prefix_end,
    require_well_formed,
)

MEMORY = ":memory:"
"""Path of a store that exists only in memory, until it is closed."""

APPLICATION_ID = int.from_bytes(b"Pens", "big")
SCHEMA_VERSION = 1
# The lock on the data directory excludes other brokers; this timeout is for a user's sqlite3 shell.
BUSY_SECONDS_MAX = 5.0
CHANGES_MAX = 1_000_000
"""Limit on the changes of one transaction, which share one sync. The limit exists to detect a runaway
decision.
"""

_SCHEMA = (
    "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL)"
    " WITHOUT ROWID",
    "CREATE TABLE store (revision INTEGER NOT NULL)",
    "INSERT INTO store VALUES (0)",
    "CREATE TABLE session_keys (key TEXT PRIMARY KEY, session INTEGER NOT NULL) WITHOUT ROWID",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_PUT = """
INSERT INTO entries VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = excluded.revision
"""

_DAMAGE_REMEDY = "Restore it from a backup, or move the data directory away to begin anew."
_FULL = {sqlite3.SQLITE_FULL}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_FAILED = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOLFS,
}


class SqliteStore:
    """Entries in the file at `path`, which is created if it does not exist."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._failed = False
        self._closed = False
        with self._errors_translated():
            self._connection = sqlite3.connect(
                path, timeout=BUSY_SECONDS_MAX, isolation_level=None, check_same_thread=False
            )
        try:
            # Any failure closes the connection, so that the file is not left locked.
            with self._errors_translated():
                self._prepare()
                self.opened_at_revision = self._revision()
        except BaseException:
            self._connection.close()
            raise

    def read(self, prefix: str) -> Snapshot:
        assert prefix.isascii()
        self._require_usable()
        with self._errors_translated(), self._transaction("BEGIN"):
            rows = self._select(prefix)
            entries = {key: StoreEntry(value, revision) for key, value, revision in rows}
            return Snapshot(self._revision(), entries)

    def transact(
        self, compares: Sequence[Compare], changes: Sequence[StoreChange]
    ) -> CommittedTransaction | Conflict:
        outcome = self.commit(compares, changes)
        if isinstance(outcome, Conflict):
            return outcome
        return CommittedTransaction(outcome.revision, has_changed=bool(outcome.changes))

    def commit(self, compares: Sequence[Compare], changes: Sequence[StoreChange]) -> Event | Conflict:
        """Like `transact`, and returns the changes that were really made."""
        require_well_formed(compares, changes, CHANGES_MAX)
        self._require_usable()
        # IMMEDIATE takes the write lock before the compares: nothing changes between comparing and writing.
        with self._errors_translated(), self._transaction("BEGIN IMMEDIATE"):
            if not all(map(self._matches, compares)):
                # Every transaction increments the store's revision, so this one covers every conflict.
                return Conflict(self._revision())
            return self._change(changes)

    def end_session(self, session: SessionId) -> Event:
        """Delete the keys that are tied to the session."""
        self._require_usable()
        with self._errors_translated(), self._transaction("BEGIN IMMEDIATE"):
            return self._change(self._session_deletes("WHERE session = ?", (session,)))

    def close(self) -> None:
        """Move the write-ahead log into the file and remove it. Closing twice is harmless.

        If the disk is too full for that, StorageFull is raised and the store is closed. The log then stays
        beside the file, and no committed transaction is lost.
        """
        if self._closed:
            return
        self._closed = True
        with self._errors_translated():
            try:
                if not self._failed:
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                self._connection.close()

    def _prepare(self) -> None:
        if self._is_new():
            # Outside the transaction that creates the schema, because SQLite requires that. A crash between
            # the two leaves a file without tables, which counts as new the next time too.
            self._enable_wal()
            with self._transaction("BEGIN IMMEDIATE"):
                for statement in _SCHEMA:
                    self._connection.execute(statement)
            return
        self._require_ours()
        self._enable_wal()
        self._require_undamaged()
        self._end_sessions()

    def _end_sessions(self) -> None:
        """End the sessions of a process that stopped without ending them."""
        if left := self._session_deletes("", ()):
            with self._transaction("BEGIN IMMEDIATE"):
                self._change(left)

    def _enable_wal(self) -> None:
        mode = self.value_of("PRAGMA journal_mode = WAL")
        if mode != "wal" and self._path != MEMORY:
            raise StorageFailed(
                f"{self._path}: this file system cannot hold a write-ahead log (it is {mode})"
            )
        # Every commit syncs the log. With NORMAL, a power failure could undo acknowledged commits.
        self._connection.execute("PRAGMA synchronous = FULL")

    def _is_new(self) -> bool:
        return self.value_of("SELECT count(*) FROM sqlite_master") == 0 and self._application_id() == 0

    def _require_ours(self) -> None:
        if self._application_id() != APPLICATION_ID:
            raise CorruptData(f"{self._path} is a database, but not a metadata store of Penstock")
        version = self.value_of("PRAGMA user_version")
        if version != SCHEMA_VERSION:
            detail = f"was written with schema version {version}; this Penstock knows {SCHEMA_VERSION}"
            raise CorruptData(f"{self._path} {detail}")

    def _require_undamaged(self) -> None:
        verdict = self.value_of("PRAGMA quick_check(1)")
        if verdict != "ok":
            raise CorruptData(f"{self._path} is damaged: {verdict}", remedy=_DAMAGE_REMEDY)
        if self.value_of("SELECT count(*) FROM store") != 1:
            problem = f"{self._path} is damaged: it does not say its revision"
            raise CorruptData(problem, remedy=_DAMAGE_REMEDY)

    def _application_id(self) -> object:
        return self.value_of("PRAGMA application_id")

    def _revision(self) -> int:
        revision = self.value_of("SELECT revision FROM store")
        assert isinstance(revision, int)
        return revision

    def value_of(self, statement: str) -> object:
        """The first column of the first row."""
        row = self._connection.execute(statement).fetchone()
        assert row is not None, statement
        value: object = row[0]
        return value

    def _select(self, prefix: str) -> sqlite3.Cursor:
        if not prefix:
            return self._connection.execute("SELECT key, value, revision FROM entries ORDER BY key")
        return self._connection.execute(
            "SELECT key, value, revision FROM entries WHERE key >= ? AND key < ? ORDER BY key",
            (prefix, prefix_end(prefix)),
        )

    def _matches(self, compare: Compare) -> bool:
        query = "SELECT revision FROM entries WHERE key = ?"
        row = self._connection.execute(query, (compare.key,)).fetchone()
        return compare.revision == (ABSENT if row is None else row[0])

    def _change(self, changes: Sequence[StoreChange]) -> Event:
        revision = self._revision() + 1
        puts = [change for change in changes if isinstance(change, Put)]
        deletes = self._existing_deletes(changes)
        if not puts and not deletes:
            # Nothing to write, as when all keys to delete are absent: the revision stays.
            return Event(revision - 1, ())
        self._connection.executemany(_PUT, [(put.key, put.value, revision) for put in puts])
        keys = [(delete.key,) for delete in deletes]
        self._connection.executemany("DELETE FROM entries WHERE key = ?", keys)
        self._record_session_keys(puts, keys)
        self._connection.execute("UPDATE store SET revision = ?", (revision,))
        return Event(revision, (*puts, *deletes))

    def _existing_deletes(self, changes: Sequence[StoreChange]) -> list[Delete]:
        """Deletes of every existing key that the deletions among these changes cover."""
        present: list[Delete] = []
        for change in changes:
            if isinstance(change, Delete):
                query = "SELECT 1 FROM entries WHERE key = ?"
                if self._connection.execute(query, (change.key,)).fetchone() is not None:
                    present.append(change)
            elif not isinstance(change, Put):
                present += [Delete(key) for key, _, _ in self._select(change.prefix)]
        return present

    def _record_session_keys(self, puts: Sequence[Put], deleted: Sequence[tuple[str]]) -> None:
        """Record which keys are tied to which session."""
        if self.value_of("SELECT count(*) FROM session_keys"):
            # A key that is rewritten without a session, or deleted, is no longer tied to one.
            untied = [*deleted, *((put.key,) for put in puts)]
            self._connection.executemany("DELETE FROM session_keys WHERE key = ?", untied)
        tied = [(put.key, put.session) for put in puts if put.session is not None]
        self._connection.executemany("INSERT INTO session_keys VALUES (?, ?)", tied)

    def _session_deletes(self, condition: str, values: tuple[int, ...]) -> list[Delete]:
        rows = self._connection.execute(f"SELECT key FROM session_keys {condition}", values)  # noqa: S608
        return [Delete(key) for (key,) in rows.fetchall()]

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        """Commits if the block completes, rolls back if it raises."""
        self._connection.execute(begin)
        try:
            yield
            self._connection.execute("COMMIT")
        finally:
            # SQLite rolls back some failed transactions by itself, and a second ROLLBACK is an error.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # The low byte is the kind of error; the rest identifies the call. Kinds that are not listed are
            # bugs of ours and are raised unchanged.
            kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
            if kind in _FULL:
                raise StorageFull(f"{self._path}: {error}") from error
            if kind in _CORRUPT:
                problem = f"{self._path} is not a sound metadata store: {error}"
                raise CorruptData(problem, remedy=_DAMAGE_REMEDY) from error
            if kind in _FAILED:
                # After an I/O error the state on disk is unknown until the file is reopened (rule 3).
                self._failed = self._failed or kind == sqlite3.SQLITE_IOERR
                raise StorageFailed(f"{self._path}: {error} ({error.sqlite_errorname})") from error
            raise

    def _require_usable(self) -> None:
        assert not self._closed
        if self._failed:
            raise StorageFailed(f"{self._path}: an earlier write failed, and the store must be opened again")
