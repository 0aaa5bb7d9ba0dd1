"""Where the facts of the cluster live: a small linearisable map with revisions, watches and sessions.

The store counts its changes. Every transaction that changes something raises the revision and stamps
it on the entries it wrote. A reader takes a snapshot and then watches what happens after it; a writer
says which revisions its decision rested on and what to change. If one of them has moved, nothing
happens and the writer decides again. That is all the concurrency control there is.

A key may be tied to a session. A session that its owner no longer keeps alive is over, and its keys
are deleted as by a transaction.

Rule 1: a transaction happens whole or not at all, also across a crash.
Rule 2: `CommittedTransaction` means durable.
Rule 3: a key appears at most once among the changes of a transaction.
Rule 4: a watcher sees whole transactions, in the order of their revisions, each once.
Rule 5: silence is not an answer. A store that does not answer in time raises StoreAway, and then
        a transaction may have happened, may yet happen, or never will.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType, Protocol

ABSENT = 0
"""The revision of a key that does not exist. Revisions of changes are above it."""

SessionId = NewType("SessionId", int)


class StoreEntry(NamedTuple):
    value: bytes
    revision: int
    """Of the transaction that last wrote this key."""


class Snapshot(NamedTuple):
    revision: int
    """Of the whole store at the moment of reading."""
    entries: Mapping[str, StoreEntry]


class Compare(NamedTuple):
    """The key must still have this revision; `ABSENT` says that it must not exist."""

    key: str
    revision: int


class Put(NamedTuple):
    key: str
    value: bytes
    session: SessionId | None = None
    """With whose end the key goes; None: it stays."""


class Delete(NamedTuple):
    """Deleting a key that is absent changes nothing and is no error."""

    key: str


class DeleteAll(NamedTuple):
    """Every key that begins so. No other change of the transaction may be about one of them."""

    prefix: str


StoreChange = Put | Delete | DeleteAll


class Event(NamedTuple):
    """One transaction as a watcher sees it."""

    revision: int
    changes: tuple[Put | Delete, ...]
    """Those under the watched prefix. Empty: nothing of it has changed up to this revision."""


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    revision: int
    """Of the store after the transaction: new if anything changed, as it was otherwise."""
    has_changed: bool = True
    """False: no watcher will see anything of this transaction."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A compared revision has moved, and nothing was changed. Decide again on what is true now."""

    revision: int | None
    """From this revision on a watcher sees why; None: that is not known, read again."""


class StoreUnavailable(Exception):
    """Nobody answered in time: whether a transaction happened is unknown."""


class StoreFull(StoreUnavailable):
    """The store has no room, which it may have found out after it had made the changes.

    It answers questions and keeps sessions; changes may be tried again. Our own disk is another matter:
    a store there raises StorageFull.
    """


class StoreRejected(Exception):
    """The store answers that it will not do this, and nothing was changed. The message says what to do."""


class HistoryCompacted(Exception):
    """The watch asks for events that the store no longer has: read again."""


class MetadataStore(Protocol):
    """Keys are printable ASCII.

    Every call may raise StoreAway and StoreRefuses; those of a store on our own disk StorageFailed.
    """

    changes_max: int
    """How many comparisons, and how many changes, one transaction takes."""

    async def read(self, prefix: str) -> Snapshot:
        """Every entry whose key begins with `prefix`, all as of one revision, in the order of keys.

        It shows every transaction that was committed before it was called, whoever made it.
        """
        ...

    async def transact(
        self, compares: Sequence[Compare], changes: Sequence[StoreChange]
    ) -> CommittedTransaction | Conflict:
        """Make all changes if all comparisons hold.

        StoreFull: whether it was done is unknown, as with every StoreAway.
        StorageFull: our own disk has no room; nothing was changed, and it may be tried again.
        StorageFailed: whether the changes survived is unknown until the store is opened afresh.
        A session that is over refuses: StoreRefuses.
        """
        ...

    def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Event, None]:
        """What happens to keys that begin with `prefix`, from the next revision on.

        It ends only by raising. StoreAway: watch again, after the last event that was seen.
        HistoryGone: read everything again and watch after that.
        """
        ...

    async def begin_session(self, ttl_ms: int) -> SessionId:
        """A session that ends at the earliest `ttl_ms` after it was last kept."""
        ...

    async def renew_session(self, session: SessionId) -> bool:
        """False: it is over."""
        ...

    async def end_session(self, session: SessionId) -> None:
        """Its keys go. Ending one that is over is no error."""
        ...

    async def close(self) -> None: ...


def prefix_end(prefix: str) -> str:
    """The first key after all that begin with `prefix`."""
    assert prefix
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def require_well_formed(
    compares: Sequence[Compare], changes: Sequence[StoreChange], changes_max: int
) -> None:
    """Mistakes of ours that some stores would accept and others would not."""
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
