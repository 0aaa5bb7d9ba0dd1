"""Group records that cannot be read: damaged values, and values of a newer version.

A key of an unknown type is not among them; it is ignored by design. But where the newest value of a known
key cannot be read, the state of that key is unknown. Acting as if the record did not exist would reset
consumers to the beginning or the end of their topics.

Rule 1: reading a committed offset whose record cannot be read is an error, until a client commits the
        offset again or deletes it.
Rule 2: no offset of a group expires while a record about its members cannot be read: the time since when
        the group is empty is then unknown too. The members themselves join again, which rewrites their
        records.
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
    def __init__(self) -> None:
        self._offsets: dict[str, dict[TopicPartition, str]] = {}
        """Reasons, by group and partition."""
        self._members: dict[str, dict[RecordKey[Struct], str]] = {}
        """Reasons, by group and record key."""
        self._keys: list[str] = []
        """Descriptions of records whose key cannot be read."""

    def __len__(self) -> int:
        offsets = sum(len(reasons) for reasons in self._offsets.values())
        return len(self._keys) + offsets + sum(len(reasons) for reasons in self._members.values())

    def __iter__(self) -> Iterator[str]:
        """Descriptions of all unreadable records, for the operator."""
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
        """Keys of the unreadable records about the group itself, not its offsets."""
        return self._members.get(group_id, _NO_MEMBERS)

    # Updates

    def add_record(self, key: RecordKey[Struct], problem: CorruptData) -> None:
        if isinstance(key, OffsetCommitKey | LegacyOffsetCommitKey):
            partition = TopicPartition(key.topic, key.partition)
            self._offsets.setdefault(key.group, {})[partition] = str(problem)
        else:
            self._members.setdefault(group_id_of(key), {})[key] = str(problem)

    def add_key(self, key: bytes, problem: CorruptData) -> None:
        self._keys.append(f"the record with the key {key[:100].hex()}: {problem}")

    def settle(self, key: RecordKey[Struct]) -> None:
        """Drop the entry of this key: a later record of it could be read."""
        if isinstance(key, OffsetCommitKey | LegacyOffsetCommitKey):
            _drop(self._offsets, key.group, TopicPartition(key.topic, key.partition))
        else:
            _drop(self._members, group_id_of(key), key)


def group_id_of(key: RecordKey[Struct]) -> str:
    """Group id of a key, which has it in one of two fields."""
    name: str = key.group if hasattr(key, "group") else key.group_id  # type: ignore[attr-defined]
    return name


def _drop(noted: dict[str, dict[EntryKey, str]], group_id: str, what: EntryKey) -> None:
    reasons = noted.get(group_id)
    if reasons is not None and reasons.pop(what, None) is not None and not reasons:
        del noted[group_id]
