"""The expiry scan: visits all groups in chunks and deletes what has expired.

It deletes expired offsets (`expiry_rules.py`), offsets of deleted topics, and groups that have neither
members nor offsets.

Rule 1: a chunk is measured in offsets, not in groups: one group may have as many offsets as all others
        together.
Rule 2: between two chunks any group may change. So each chunk reads the state again.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from penstock.coordinator.outcome import EMPTY_OUTCOME, CommandOutcome, Now, StateRecord
from penstock.groups.classic import classic_timers
from penstock.groups.classic.classic_group import ClassicGroup
from penstock.groups.consumer import consumer_timers
from penstock.groups.consumer.consumer_group import ConsumerGroup
from penstock.groups.consumer.consumer_records import group_tombstones
from penstock.groups.group_context import GroupContext, TimerKey
from penstock.groups.group_store import GroupStore
from penstock.groups.migration import Group
from penstock.groups.offsets.committed_offsets import offset_tombstones
from penstock.groups.offsets.expiry_rules import (
    GroupFacts,
    expired_partitions,
    partitions_of_old_topic,
    time_record,
)
from penstock.groups.records import GroupMetadataKey, encode_key
from penstock.limits import OFFSETS_LOOKED_PER_CHUNK, TOMBSTONES_AT_ONCE
from penstock.types import TopicPartition

EXPIRY_SCAN_TIMER: Final = TimerKey("forgetting", "")
_NEXT_CHUNK_SECONDS: Final = 0.01
_SOON_SECONDS: Final = 1.0
"""Delay before a scan: topics are often deleted many at a time, and one scan is enough for them."""
_GROUP_SCAN_COST: Final = 5
"""Cost of visiting a group, in offsets, beside its offsets."""


class _ScanStep(NamedTuple):
    """One step of the scan: the offsets visited, and the records to write."""

    scanned: int
    records: Sequence[StateRecord] = ()


class ExpiryScan:
    def __init__(self, context: GroupContext, store: GroupStore) -> None:
        self._context = context
        self._store = store
        self._scan: Iterator[_ScanStep] | None = None
        """The scan in progress; None between two scans."""
        self._now = Now(0, 0.0)
        self._now_ms = 0
        """Time of this chunk, and the trusted time."""
        self._facts: tuple[str, GroupFacts] | None = None
        """Facts about the group that was visited last in this chunk."""

    def schedule_soon(self, now: Now) -> CommandOutcome:
        """Schedule a scan soon. Until it runs, reads already hide the offsets of deleted topics."""
        at = now.monotonic + _SOON_SECONDS
        next_deadline = self._context.timers.deadline(EXPIRY_SCAN_TIMER)
        if next_deadline is None or next_deadline > at:
            self._context.timers.set(EXPIRY_SCAN_TIMER, at)
        return EMPTY_OUTCOME

    def run_chunk(self, now: Now) -> Iterator[CommandOutcome]:
        """Run one chunk of the scan, as outcomes that each fit a batch."""
        self._now, self._now_ms = now, self._context.trusted_clock.read(now)
        if self._scan is None:
            self._scan = self._scan_all_groups()
        # The group may have changed since the previous chunk.
        self._facts = None
        scanned = forgotten = 0
        while scanned < OFFSETS_LOOKED_PER_CHUNK and forgotten < TOMBSTONES_AT_ONCE:
            step = next(self._scan, None)
            if step is None:
                self._scan = None
                break
            scanned += step.scanned
            if step.records:
                forgotten += len(step.records)
                yield CommandOutcome(step.records)
        config = self._context.config().offsets
        wait = config.check_ms / 1000 if self._scan is None else _NEXT_CHUNK_SECONDS
        self._context.timers.set(EXPIRY_SCAN_TIMER, now.monotonic + wait)

    def _scan_all_groups(self) -> Iterator[_ScanStep]:
        """Steps over all groups. A step's records are replayed before the next step is requested."""
        if self._store.groups:
            # Through this record the trusted time survives a restart (rule 2 of `expiry_rules.py`).
            yield _ScanStep(1, [time_record(self._now_ms)])
        # A copy, because groups come and go between two chunks.
        for group_id in list(self._store.groups):
            yield from self._scan_group(group_id)

    def _scan_group(self, group_id: str) -> Iterator[_ScanStep]:
        """Steps over one group: its offsets first, then the group itself if nothing else is left."""
        store = self._store
        unreadable = {partition.topic for partition in store.unreadable.offsets_of(group_id)}
        for topic in {**store.offsets.of_group(group_id), **dict.fromkeys(unreadable)}:
            is_done = False
            while not is_done:
                group = store.groups.get(group_id)
                if group is None or store.unreadable.members_of(group_id):
                    return  # an unreadable record may be newer than what is known
                gone = self._expired_partitions(group, topic)
                looked = len(store.offsets.of_group(group_id).get(topic, ()))
                yield _ScanStep(1 + looked, offset_tombstones(group_id, gone))
                # A full chunk may have left more of this topic; its records are replayed by now.
                is_done = len(gone) < TOMBSTONES_AT_ONCE
        yield _ScanStep(_GROUP_SCAN_COST)
        group = store.groups.get(group_id)
        if group is None or store.unreadable.members_of(group_id) or store.has_offsets(group_id):
            return
        if _is_abandoned(group):
            yield _ScanStep(1, self.end(group, self._now))

    def _expired_partitions(self, group: Group, name: str) -> list[TopicPartition]:
        """Deletable partitions of one topic, up to the size of one chunk."""
        partitions = self._store.offsets.of_group(group.group_id).get(name, {})
        topic = self._context.topics().by_name.get(name)
        if topic is None:
            unreadable = self._store.unreadable.offsets_of(group.group_id)
            lost = (partition.partition for partition in unreadable if partition.topic == name)
            gone = dict.fromkeys(islice((*partitions, *lost), TOMBSTONES_AT_ONCE))
        else:
            gone = dict.fromkeys(islice(partitions_of_old_topic(partitions, topic.id), TOMBSTONES_AT_ONCE))
            facts = self._facts_of(group)
            if not facts.subscribes(name):
                retention_ms = self._context.config().offsets.retention_ms
                old = expired_partitions(partitions, facts, self._now_ms, retention_ms)
                gone.update(dict.fromkeys(islice(old, TOMBSTONES_AT_ONCE - len(gone))))
        return [TopicPartition(name, index) for index in gone]

    def _facts_of(self, group: Group) -> GroupFacts:
        if self._facts is None or self._facts[0] != group.group_id:
            self._facts = group.group_id, _facts(group)
        return self._facts[1]

    def end(self, group: Group, now: Now) -> Sequence[StateRecord]:
        """Build the records that delete a group without members, except its offsets."""
        unreadable = [
            StateRecord(encode_key(key), None) for key in self._store.unreadable.members_of(group.group_id)
        ]
        if isinstance(group, ConsumerGroup):
            consumer_timers.end(self._context, group)
            return [*unreadable, *group_tombstones(group)]
        rejections = classic_timers.end(self._context, group, now)
        assert not rejections, "no request waits in a group without members"
        return [*unreadable, StateRecord(encode_key(GroupMetadataKey(group.group_id)), None)]


def _is_abandoned(group: Group) -> bool:
    if isinstance(group, ConsumerGroup):
        return group.is_empty
    return group.is_empty and not group.pending_members


def _facts(group: Group) -> GroupFacts:
    if group.members:
        return GroupFacts(None, subscribed_topics(group))
    if isinstance(group, ClassicGroup):
        was_used = group.protocol_type is not None
        return GroupFacts(group.current_state_timestamp_ms if was_used else None)
    return GroupFacts(group.empty_since_ms)


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """Topics that the members subscribe to. None: a subscription cannot be decoded."""
    return group.subscribed_topics if isinstance(group, ConsumerGroup) else group.subscribed_topics()
