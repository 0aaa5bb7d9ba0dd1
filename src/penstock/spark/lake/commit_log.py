"""The commit log of a table of plain Parquet files, which defines the files of the table.

    _penstock/log/00000000000000000007.json             one commit
    _penstock/log/00000000000000000064.snapshot.json    the result of commits 1 to 64

Strategy: a commit file is complete before it gets its number, and a number is given out once
(`disk.create_once`). So of two concurrent writers one is second; it reads the first one's commit and
decides again. Every SNAPSHOT_EVERY commits the result of all commits is written as a snapshot, so that a
reader has few files to read. The commit that writes a snapshot also removes the files that the snapshot
replaces, once they are a minute old. So the log is about as large as the list of the table's files, however
many commits there were.

Rule 1: Commit numbers have no gaps. If one is missing, the log is damaged, and no reader works around it.
Rule 2: `apply_commits` is the only interpretation of a commit, for every reader. It copies the table's file
        list once, however many commits it applies.
"""

import base64
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from penstock.errors import CorruptData
from penstock.limits import MINUTE_MS
from penstock.spark.lake import disk
from penstock.spark.lake.lake_table import METADATA_FOLDER, DataFile, RecordedQuery
from penstock.types import TopicPartition

SNAPSHOT_EVERY: Final = 64
COMMIT_SUFFIX: Final = ".json"
SNAPSHOT_SUFFIX: Final = ".snapshot.json"
ATTEMPTS_MAX: Final = 1000

Parsed = TypeVar("Parsed")


class TableCommit(NamedTuple):
    """One entry of the commit log."""

    kind: str
    """append or compact"""
    at_ms: int
    add: tuple[DataFile, ...]
    remove: tuple[str, ...] = ()
    app: str | None = None
    recorded: RecordedQuery | None = None
    ends: dict[TopicPartition, int] = {}  # noqa: RUF012 (never changed)
    schema: pa.Schema | None = None
    """The new schema, if this commit adds columns."""


class TableState(NamedTuple):
    """The table after a number of commits."""

    number: int
    files: dict[str, DataFile]
    apps: dict[str, RecordedQuery]
    ends: dict[TopicPartition, int]
    schema: pa.Schema | None


EMPTY: Final = TableState(0, {}, {}, {}, None)


def apply_commits(state: TableState, entries: Iterable[TableCommit]) -> TableState:
    """The table after these commits. Its files are in the order in which they were added."""
    number, schema = state.number, state.schema
    files, apps, ends = dict(state.files), dict(state.apps), dict(state.ends)
    for entry in entries:
        for path in entry.remove:
            files.pop(path, None)
        files.update((file.path, file) for file in entry.add)
        ends |= entry.ends
        if entry.app is not None and entry.recorded is not None:
            apps[entry.app] = entry.recorded
        number, schema = number + 1, entry.schema or schema
    return TableState(number, files, apps, ends, schema)


class TableCommitLog:
    """The commits of one table of a lake. (`log.PartitionLog` is a partition's log of records.)"""

    def __init__(
        self, table: Path, *, keep_ms: int = MINUTE_MS, snapshot_every: int = SNAPSHOT_EVERY
    ) -> None:
        self.folder = table / METADATA_FOLDER / "log"
        self._snapshot_every = snapshot_every
        self._keep_ms = keep_ms

    def read(self) -> TableState:
        """Apply the newest snapshot and the commits behind it. Other processes may commit meanwhile."""
        missing: int | None = None
        for _ in range(ATTEMPTS_MAX):
            names = self.names()
            # A listing that is made while other processes commit and remove may contain a newer file and
            # lack an older one. A commit that is missing from two listings is gone.
            before, missing = missing, _first_missing(names)
            if missing is not None:
                if missing == before:
                    raise CorruptData(f"commit {missing} is missing in {self.folder}")
                continue
            try:
                return self._read(names)
            except FileNotFoundError:  # another process removed files that a newer snapshot replaces
                continue
        raise CorruptData(f"{self.folder} changes faster than it can be read")

    def change(self, decide: Callable[[TableState], TableCommit | None]) -> TableState | None:
        """Commit what `decide` makes of the table's state. None if `decide` returns None."""
        for _ in range(ATTEMPTS_MAX):
            state = self.read()
            entry = decide(state)
            if entry is None:
                return None
            if self.create(state.number + 1, entry) and not self._is_past(state.number + 1):
                after = apply_commits(state, [entry])
                if after.number % self._snapshot_every == 0:
                    # The snapshot is durable before the commits that it replaces are removed.
                    disk.replace(self._path(after.number, SNAPSHOT_SUFFIX), _dump(_snapshot_document(after)))
                    self._remove_obsolete()
                return after
        raise CorruptData(f"{self.folder} changes faster than it can be written")

    def _remove_obsolete(self) -> None:
        """Remove replaced files that are older than `keep_ms`.

        A reader that listed the log has a minute to read it; a slower reader lists it again.
        """
        limit_ms = time.time_ns() // 1_000_000 - self._keep_ms
        for path in self.obsolete_files():
            if disk.modified_ms(path) <= limit_ms:
                path.unlink(missing_ok=True)  # another commit may remove the same file

    def obsolete_files(self) -> list[Path]:
        """Commits and snapshots that a newer snapshot replaces."""
        names = self.names()
        newest = _newest_snapshot(names)
        suffix = {True: SNAPSHOT_SUFFIX, False: COMMIT_SUFFIX}
        return [
            self._path(number, suffix[is_snapshot])
            for number, is_snapshot in names
            if number < newest or (number == newest and not is_snapshot)
        ]

    def _is_past(self, number: int) -> bool:
        """Whether a snapshot replaces this commit number, so that no reader reads the commit any more.

        Either the number was used before, by a commit that was removed while this process was suspended,
        and our commit does not count; or our commit counts and other writers were fast. Deciding again
        finds out which.
        """
        return number <= _newest_snapshot(self.names())

    def create(self, number: int, entry: TableCommit) -> bool:
        disk.make_folder(self.folder)
        return disk.create_once(self._path(number, COMMIT_SUFFIX), _dump(_commit_document(entry)))

    def _path(self, number: int, suffix: str) -> Path:
        return self.folder / f"{number:020d}{suffix}"

    def names(self) -> set[tuple[int, bool]]:
        if not self.folder.is_dir():
            return set()
        paths = [path for path in self.folder.iterdir() if path.name[:20].isdigit()]
        return {(int(path.name[:20]), path.name.endswith(SNAPSHOT_SUFFIX)) for path in paths}

    def _read(self, names: set[tuple[int, bool]]) -> TableState:
        start = _newest_snapshot(names)
        state = _load(self._path(start, SNAPSHOT_SUFFIX), _parse_table_state) if start else EMPTY
        return apply_commits(
            state,
            [_load(self._path(number, COMMIT_SUFFIX), _parse_commit) for number in _commits_to_read(names)],
        )


def _newest_snapshot(names: set[tuple[int, bool]]) -> int:
    return max((number for number, is_snapshot in names if is_snapshot), default=0)


def _commits_to_read(names: set[tuple[int, bool]]) -> range:
    """The commits after the newest snapshot."""
    return range(_newest_snapshot(names) + 1, max((number for number, _ in names), default=0) + 1)


def _first_missing(names: set[tuple[int, bool]]) -> int | None:
    return next((number for number in _commits_to_read(names) if (number, False) not in names), None)


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _load(path: Path, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
    try:
        return parse(json.loads(path.read_bytes()))
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as problem:
        raise CorruptData(f"{path} is not what was written there: {problem!r}") from problem


def _commit_document(entry: TableCommit) -> dict[str, Any]:
    document: dict[str, Any] = {"kind": entry.kind, "at_ms": entry.at_ms, "add": _file_documents(entry.add)}
    if entry.remove:
        document["remove"] = entry.remove
    if entry.app is not None and entry.recorded is not None:
        document |= {"app": entry.app, "recorded": entry.recorded._asdict()}
    if entry.ends:
        document["ends"] = _ends_document(entry.ends)
    if entry.schema is not None:
        document["schema"] = _schema_text(entry.schema)
    return document


def _parse_commit(document: dict[str, Any]) -> TableCommit:
    recorded = document.get("recorded")
    return TableCommit(
        document["kind"],
        document["at_ms"],
        _files(document["add"]),
        tuple(document.get("remove", ())),
        document.get("app"),
        None if recorded is None else RecordedQuery(**recorded),
        _ends(document.get("ends", {})),
        _schema(document.get("schema")),
    )


def _snapshot_document(state: TableState) -> dict[str, Any]:
    return {
        "number": state.number,
        "files": _file_documents(tuple(state.files.values())),
        "apps": {app: recorded._asdict() for app, recorded in state.apps.items()},
        "ends": _ends_document(state.ends),
        "schema": None if state.schema is None else _schema_text(state.schema),
    }


def _parse_table_state(document: dict[str, Any]) -> TableState:
    return TableState(
        document["number"],
        {file.path: file for file in _files(document["files"])},
        {app: RecordedQuery(**recorded) for app, recorded in document["apps"].items()},
        _ends(document["ends"]),
        _schema(document["schema"]),
    )


def _file_documents(files: tuple[DataFile, ...]) -> list[dict[str, Any]]:
    return [{"path": file.path, "rows": file.rows, "bytes": file.bytes} for file in files]


def _files(documents: list[dict[str, Any]]) -> tuple[DataFile, ...]:
    split = [(*each["path"].rpartition("/")[::2], each["rows"], each["bytes"]) for each in documents]
    return tuple(DataFile(*facts) for facts in split)


def _ends_document(ends: dict[TopicPartition, int]) -> dict[str, dict[str, int]]:
    document: dict[str, dict[str, int]] = {}
    for (topic, partition), end in ends.items():
        document.setdefault(topic, {})[str(partition)] = end
    return document


def _ends(document: dict[str, dict[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): end
        for topic, partitions in document.items()
        for partition, end in partitions.items()
    }


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema(text: str | None) -> pa.Schema | None:
    return None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
