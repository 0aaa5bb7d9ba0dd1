"""SqliteStore against a dict: any order of reads, transactions, conflicts, restarts and crashes.

A crash is a copy of the file and its write-ahead log, with the part of the log that the last
transaction wrote cut or overwritten anywhere. The copy must show that transaction whole or not at
all, and if nothing was damaged, whole.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.host.metadata_store import (
    CommittedTransaction,
    Compare,
    Conflict,
    Delete,
    DeleteAll,
    Put,
    SessionId,
    Snapshot,
    StoreChange,
    StoreEntry,
)
from penstock.metadata.sqlite_store import SqliteStore

KEYS = st.sampled_from(["/a", "/a/1", "/a/2", "/a0", "/b/1", "/b"])
PREFIXES = ("/a/", "/b")


def _can_be_one_transaction(changes: list[StoreChange]) -> bool:
    deleted = tuple(change.prefix for change in changes if isinstance(change, DeleteAll))
    return not any(
        name(change).startswith(deleted) for change in changes if not isinstance(change, DeleteAll)
    )


def name(change: StoreChange) -> str:
    return change.prefix if isinstance(change, DeleteAll) else change.key


CHANGES = st.lists(
    st.builds(Put, KEYS, st.binary(max_size=5_000), st.sampled_from([None, None, SessionId(1)]))
    | st.builds(Delete, KEYS)
    | st.builds(DeleteAll, st.sampled_from(PREFIXES)),
    max_size=4,
    unique_by=name,
).filter(_can_be_one_transaction)
# How far each compared revision is from the true one.
COMPARES = st.dictionaries(KEYS, st.sampled_from([0, 0, 0, 1]), max_size=3)


class Model:
    def __init__(self) -> None:
        self.revision = 0
        self.entries: dict[str, StoreEntry] = {}
        self.tied: set[str] = set()

    def revision_of(self, key: str) -> int:
        return self.entries[key].revision if key in self.entries else 0

    def after(self, changes: Sequence[StoreChange]) -> "Model":
        model = Model()
        model.revision, model.entries, model.tied = self.revision, dict(self.entries), set(self.tied)
        puts = [change for change in changes if isinstance(change, Put)]
        deleted = {key for change in changes for key in self.entries if _deletes(change, key)}
        if puts or deleted:
            model.revision += 1
        for key in deleted:
            del model.entries[key]
        model.tied -= deleted
        for put in puts:
            model.entries[put.key] = StoreEntry(put.value, model.revision)
            model.tied.discard(put.key)
            if put.session is not None:
                model.tied.add(put.key)
        return model

    def after_opening(self) -> "Model":
        """No session outlives its process."""
        return self.after([Delete(key) for key in self.tied])

    def snapshot(self, prefix: str = "") -> Snapshot:
        found = {key: self.entries[key] for key in sorted(self.entries) if key.startswith(prefix)}
        return Snapshot(self.revision, found)


def _deletes(change: StoreChange, key: str) -> bool:
    if isinstance(change, DeleteAll):
        return key.startswith(change.prefix)
    return isinstance(change, Delete) and key == change.key


class StoreAgainstDict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.incarnation = 0
        self.model = Model()
        self.store = SqliteStore(self.path)

    @property
    def path(self) -> str:
        return os.path.join(self.folder, f"store{self.incarnation}")

    @rule(compares=COMPARES, changes=CHANGES)
    def transact(self, compares: dict[str, int], changes: list[StoreChange]) -> None:
        compared = [Compare(key, self.model.revision_of(key) + off) for key, off in compares.items()]
        outcome = self.store.transact(compared, changes)
        if any(compares.values()):
            assert outcome == Conflict(self.model.revision)
        else:
            before, self.model = self.model.revision, self.model.after(changes)
            assert outcome == CommittedTransaction(
                self.model.revision, has_changed=self.model.revision > before
            )

    @rule(prefix=st.sampled_from(["", "/", "/a", "/a/", "/b/", "/c"]))
    def read(self, prefix: str) -> None:
        snapshot = self.store.read(prefix)
        assert snapshot == self.model.snapshot(prefix)
        assert list(snapshot.entries) == sorted(snapshot.entries)

    @rule()
    def end_the_session(self) -> None:
        self.store.end_session(SessionId(1))
        self.model = self.model.after_opening()

    @rule()
    def restart(self) -> None:
        self.store.close()
        assert not os.path.exists(self.path + "-wal")
        self.store = SqliteStore(self.path)
        self.model = self.model.after_opening()

    @rule(changes=CHANGES, kept=st.floats(0, 1), overwrite=st.booleans())
    def crash_in_a_transaction(self, changes: list[StoreChange], kept: float, overwrite: bool) -> None:
        synced = self.log_size()
        assert isinstance(self.store.transact([], changes), CommittedTransaction)
        written = self.log_size()
        before, self.model = self.model, self.model.after(changes)
        original = self.path
        self.incarnation += 1
        for suffix in ("", "-wal"):
            shutil.copy(original + suffix, self.path + suffix)
        self.store.close()
        cut = synced + round((written - synced) * kept)
        with open(self.path + "-wal", "r+b") as log:
            log.truncate(cut)
            if overwrite:
                log.seek(cut)
                log.write(b"\xa5" * (written - cut))
        self.store = SqliteStore(self.path)
        found = self.store.read("")
        if cut < written and found == before.after_opening().snapshot():
            self.model = before
        self.model = self.model.after_opening()
        assert found == self.model.snapshot()

    def log_size(self) -> int:
        # The log appears with the first write after opening.
        return os.path.getsize(self.path + "-wal") if os.path.exists(self.path + "-wal") else 0

    @invariant()
    def shows_what_the_dict_holds(self) -> None:
        assert self.store.read("") == self.model.snapshot()

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)


StoreAgainstDict.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestStoreAgainstDict = StoreAgainstDict.TestCase
