"""Where the facts of the cluster live: a small linearisable map with revisions.

The store counts its changes. Every transaction that changes something raises the revision by one
and stamps it on the entries it wrote. A reader takes a snapshot; a writer says which revisions its
decision rested on and what to change. If one of them has moved, nothing happens and the writer
decides again. That is all the concurrency control there is, and all that etcd needs to offer.

Rule 1: a transaction happens whole or not at all, also across a crash.
Rule 2: `Committed` means durable.
Rule 3: a key appears at most once among the changes of a transaction.

The calls block for as long as the store takes, so the shell makes them away from the event loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

ABSENT = 0
"""The revision of a key that does not exist. The first change of a store has revision 1."""


class Entry(NamedTuple):
    value: bytes
    revision: int
    """Of the transaction that last wrote this key."""


class Snapshot(NamedTuple):
    revision: int
    """Of the whole store at the moment of reading."""
    entries: Mapping[str, Entry]


class Compare(NamedTuple):
    """The key must still have this revision; `ABSENT` says that it must not exist."""

    key: str
    revision: int


class Put(NamedTuple):
    key: str
    value: bytes


class Delete(NamedTuple):
    """Deleting a key that is absent changes nothing and is no error."""

    key: str


Change = Put | Delete


@dataclass(frozen=True, slots=True)
class Committed:
    revision: int
    """Of the store after the transaction: new if anything changed, as it was otherwise."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A compared revision has moved, and nothing was changed. Read again and decide again."""


class MetadataStore(Protocol):
    """Keys are printable ASCII."""

    def read(self, prefix: str) -> Snapshot:
        """Every entry whose key begins with `prefix`, all as of one revision, in the order of keys."""
        ...

    def transact(self, compares: Sequence[Compare], changes: Sequence[Change]) -> Committed | Conflict:
        """Make all changes if all comparisons hold.

        StorageFull: nothing was changed, and it may be tried again.
        StorageFailed: whether the changes survived is unknown until the store is opened afresh.
        """
        ...

    def close(self) -> None: ...
