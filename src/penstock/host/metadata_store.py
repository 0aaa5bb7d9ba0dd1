"""Metadata store interface: a small linearisable map with revisions, watches and sessions.

The store counts its changes. Every transaction that changes something raises the revision and stamps it on
the entries that it wrote. A reader takes a snapshot and then watches later changes. A writer states the
revisions on which its decision was based, and the changes. If one of these revisions has changed, the store
changes nothing and the writer decides again. There is no other concurrency control.

A key may be tied to a session. When its owner stops renewing a session, the session ends, and its keys are
deleted as by a transaction.

Rule 1: a transaction is applied as a whole or not at all, also across a crash.
Rule 2: `CommittedTransaction` means durable.
Rule 3: a key appears at most once among the changes of a transaction.
Rule 4: a watcher receives whole transactions, in the order of their revisions, each once.
Rule 5: a missing reply proves nothing. A store that does not reply in time raises StoreUnavailable, and then
        the transaction may have been applied, may still be applied, or never will.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType, Protocol

ABSENT = 0
"""Revision of a key that does not exist. Revisions of changes are larger."""

SessionId = NewType("SessionId", int)


class StoreEntry(NamedTuple):
    """Value of a key."""

    value: bytes
    revision: int
    """Revision of the transaction that last wrote this key."""


class Snapshot(NamedTuple):
    """Entries of the store at one revision."""

    revision: int
    """Revision of the whole store at the time of the read."""
    entries: Mapping[str, StoreEntry]


class Compare(NamedTuple):
    """Condition: the key still has this revision; `ABSENT`: the key does not exist."""

    key: str
    revision: int


class Put(NamedTuple):
    key: str
    value: bytes
    session: SessionId | None = None
    """Session whose end deletes the key; None: the key stays."""


class Delete(NamedTuple):
    """Deleting an absent key changes nothing and is no error."""

    key: str


class DeleteAll(NamedTuple):
    """Delete every key with this prefix. No other change of the transaction may refer to such a key."""

    prefix: str


StoreChange = Put | Delete | DeleteAll


class Event(NamedTuple):
    """One transaction as a watcher receives it."""

    revision: int
    changes: tuple[Put | Delete, ...]
    """Changes under the watched prefix. Empty: none of them changed up to this revision."""


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    revision: int
    """Revision of the store after the transaction: a new one if anything changed, else the previous one."""
    has_changed: bool = True
    """False: watchers receive no event of this transaction."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A compared revision has changed, and nothing was written. The caller reads and decides again."""

    revision: int | None
    """A watcher that has reached this revision has received the cause; None: unknown, read again."""


class StoreUnavailable(Exception):
    """No reply in time: whether a transaction was applied is unknown."""


class StoreFull(StoreUnavailable):
    """The store has no space, which it may have found out after it had made the changes.

    It still serves reads and keeps sessions; changes may be retried. The disk of this broker is different: a
    store on it raises StorageFull.
    """


class StoreRejected(Exception):
    """The store rejects the call, and nothing was changed. The message contains the remedy."""


class HistoryCompacted(Exception):
    """The watch requests events that the store no longer has: read again."""


class MetadataStore(Protocol):
    """Keys are printable ASCII.

    Every call may raise StoreUnavailable and StoreRejected; those of a store on the local disk also
    StorageFailed.
    """

    changes_max: int
    """Maximum number of comparisons, and of changes, in one transaction."""

    async def read(self, prefix: str) -> Snapshot:
        """Read every entry whose key begins with `prefix`, all as of one revision, in the order of keys.

        Includes every transaction, of any client, that was committed before the call.
        """
        ...

    async def transact(
        self, compares: Sequence[Compare], changes: Sequence[StoreChange]
    ) -> CommittedTransaction | Conflict:
        """Make all changes if all comparisons hold.

        StoreFull: whether the changes were made is unknown, as with every StoreUnavailable. StorageFull: the
        local disk has no space; nothing was changed, and a retry is allowed. StorageFailed: whether the
        changes survived is unknown until the store is opened again. StoreRejected: among other reasons, the
        session has ended.
        """
        ...

    def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Event, None]:
        """Yield the changes of keys that begin with `prefix`, from the next revision on.

        The generator ends only by raising. StoreUnavailable: watch again, after the last event that was
        received. HistoryCompacted: read everything again and watch after that.
        """
        ...

    async def begin_session(self, ttl_ms: int) -> SessionId:
        """Begin a session that ends no earlier than `ttl_ms` after its last renewal."""
        ...

    async def renew_session(self, session: SessionId) -> bool:
        """False: the session has ended."""
        ...

    async def end_session(self, session: SessionId) -> None:
        """End a session and delete its keys. No error if the session has ended already."""
        ...

    async def close(self) -> None: ...


def prefix_end(prefix: str) -> str:
    """First key after all that begin with `prefix`."""
    assert prefix
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def require_well_formed(
    compares: Sequence[Compare], changes: Sequence[StoreChange], changes_max: int
) -> None:
    """Check for mistakes of the caller that some stores would accept and others would reject."""
    assert len(compares) <= changes_max, f"{len(compares)} comparisons in one transaction"
    assert len(changes) <= changes_max, f"{len(changes)} changes in one transaction"
    assert all(compare.revision >= ABSENT for compare in compares)
    prefixes = tuple(change.prefix for change in changes if isinstance(change, DeleteAll))
    keys = [change.key for change in changes if not isinstance(change, DeleteAll)]
    assert len(set(keys)) == len(keys), "a key is changed twice in one transaction"
    assert all(key.isascii() and key.isprintable() for key in (*keys, *prefixes)), "keys are printable ASCII"
    assert all(prefixes), "everything is never deleted at once"
    if prefixes:
        assert not any(key.startswith(prefixes) for key in keys), "a key is changed and deleted at once"
        assert len(set(prefixes)) == len(prefixes)
