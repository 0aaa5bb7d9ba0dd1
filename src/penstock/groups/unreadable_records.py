"""What the log says of groups and cannot be read: a value that is damaged, or of a newer version.

A key whose type is not known is no such thing; it is passed over by design. But where the newest value
of a known key cannot be read, something was said, and nobody knows what. To act as if it had not been
said would send consumers to the beginning or the end of their topics.

Rule 1: an offset that cannot be read is an error to whoever asks for it, until it is committed anew or
        deleted.
Rule 2: nothing of a group is forgotten in the course of time while a record about its members cannot
        be read: since when it is empty is among what is not known. The members themselves join again,
        which writes their records anew.
"""

from collections.abc import Collection, Iterator
from typing import TypeVar

from penstock.errors import CorruptData
from penstock.groups.records import LegacyOffsetCommitKey, OffsetCommitKey, RecordKey
from penstock.protocol.schema import Struct
from penstock.types import TopicPartition

_NO_OFFSETS: dict[TopicPartition, str] = {}
_NO_MEMBERS: dict[RecordKey[Struct], str] = {}
EntryKey = TypeVar("EntryKey")


class UnreadableRecords:
    __slots__ = ("_keys", "_members", "_offsets")

    def __init__(self) -> None:
        self._offsets: dict[str, dict[TopicPartition, str]] = {}
        """Why, by group and partition."""
        self._members: dict[str, dict[RecordKey[Struct], str]] = {}
        """Why, by group and record."""
        self._keys: list[str] = []
        """Of records whose very key cannot be read."""

    def __len__(self) -> int:
        offsets = sum(len(reasons) for reasons in self._offsets.values())
        return len(self._keys) + offsets + sum(len(reasons) for reasons in self._members.values())

    def __iter__(self) -> Iterator[str]:
        """What cannot be read, as people may find it."""
        for group_id, offsets in self._offsets.items():
            for partition, reason in offsets.items():
                yield f"the offset of {group_id} in {partition}: {reason}"
        for group_id, members in self._members.items():
            for key, reason in members.items():
                yield f"{type(key).__name__.removesuffix('RecordKey')} of {group_id}: {reason}"
        yield from self._keys

    def offsets_of(self, group_id: str) -> Collection[TopicPartition]:
        return self._offsets.get(group_id, _NO_OFFSETS)

    def members_of(self, group_id: str) -> Collection[RecordKey[Struct]]:
        """The keys of records about the group itself."""
        return self._members.get(group_id, _NO_MEMBERS)

    # Keeping the books

    def add_record(self, key: RecordKey[Struct], problem: CorruptData) -> None:
        if isinstance(key, OffsetCommitKey | LegacyOffsetCommitKey):
            partition = TopicPartition(key.topic, key.partition)
            self._offsets.setdefault(key.group, {})[partition] = str(problem)
        else:
            self._members.setdefault(group_id_of(key), {})[key] = str(problem)

    def add_key(self, key: bytes, problem: CorruptData) -> None:
        self._keys.append(f"the record with the key {key[:100].hex()}: {problem}")

    def settle(self, key: RecordKey[Struct]) -> None:
        """A later record of that key could be read."""
        if isinstance(key, OffsetCommitKey | LegacyOffsetCommitKey):
            _drop(self._offsets, key.group, TopicPartition(key.topic, key.partition))
        else:
            _drop(self._members, group_id_of(key), key)


def group_id_of(key: RecordKey[Struct]) -> str:
    """Every key names a group, in one field or the other."""
    name: str = key.group if hasattr(key, "group") else key.group_id  # type: ignore[attr-defined]
    return name


def _drop(noted: dict[str, dict[EntryKey, str]], group_id: str, what: EntryKey) -> None:
    reasons = noted.get(group_id)
    if reasons is not None and reasons.pop(what, None) is not None and not reasons:
        del noted[group_id]
