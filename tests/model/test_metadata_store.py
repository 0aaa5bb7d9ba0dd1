"""SqliteStore against a dict: any order of reads, transactions, conflicts, restarts and crashes.

A crash is a copy of the file and its write-ahead log, with the part of the log that the last
transaction wrote cut or overwritten anywhere. The copy must show that transaction whole or not at
all, and if nothing was damaged, whole.
"""

import os
import shutil
import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.host.metadata_store import Change, Committed, Compare, Conflict, Delete, Entry, Put, Snapshot
from penstock.metadata.sqlite import SqliteStore

KEYS = st.sampled_from(["/a", "/a/1", "/a/2", "/a0", "/b/1", "/b"])
CHANGES = st.lists(
    st.builds(Put, KEYS, st.binary(max_size=5_000)) | st.builds(Delete, KEYS),
    max_size=4,
    unique_by=lambda change: change.key,
)
# How far each compared revision is from the true one.
COMPARES = st.dictionaries(KEYS, st.sampled_from([0, 0, 0, 1]), max_size=3)


class Model:
    def __init__(self) -> None:
        self.revision = 0
        self.entries: dict[str, Entry] = {}

    def revision_of(self, key: str) -> int:
        return self.entries[key].revision if key in self.entries else 0

    def after(self, changes: list[Change]) -> "Model":
        model = Model()
        model.revision, model.entries = self.revision, dict(self.entries)
        if any(isinstance(change, Put) or change.key in self.entries for change in changes):
            model.revision += 1
        for change in changes:
            if isinstance(change, Put):
                model.entries[change.key] = Entry(change.value, model.revision)
            else:
                model.entries.pop(change.key, None)
        return model

    def snapshot(self, prefix: str = "") -> Snapshot:
        found = {key: self.entries[key] for key in sorted(self.entries) if key.startswith(prefix)}
        return Snapshot(self.revision, found)


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
    def transact(self, compares: dict[str, int], changes: list[Change]) -> None:
        compared = [Compare(key, self.model.revision_of(key) + off) for key, off in compares.items()]
        outcome = self.store.transact(compared, changes)
        if any(compares.values()):
            assert outcome == Conflict()
        else:
            self.model = self.model.after(changes)
            assert outcome == Committed(self.model.revision)

    @rule(prefix=st.sampled_from(["", "/", "/a", "/a/", "/b/", "/c"]))
    def read(self, prefix: str) -> None:
        snapshot = self.store.read(prefix)
        assert snapshot == self.model.snapshot(prefix)
        assert list(snapshot.entries) == sorted(snapshot.entries)

    @rule()
    def restart(self) -> None:
        self.store.close()
        assert not os.path.exists(self.path + "-wal")
        self.store = SqliteStore(self.path)

    @rule(changes=CHANGES, kept=st.floats(0, 1), overwrite=st.booleans())
    def crash_in_a_transaction(self, changes: list[Change], kept: float, overwrite: bool) -> None:
        synced = self.log_size()
        assert isinstance(self.store.transact([], changes), Committed)
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
        if cut < written and found == before.snapshot():
            self.model = before
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
