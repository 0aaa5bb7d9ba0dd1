"""Looking through all groups for what may be forgotten, a few at a time.

Forgotten are offsets whose time is up (`expiry.py`), those of topics that are gone, and groups that
have neither members nor offsets left.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.coordinator.outcome import NOTHING, Now, Outcome, StateRecord
from penstock.groups import classic_timers, consumer_timers
from penstock.groups.book import Book
from penstock.groups.classic_group import ClassicGroup
from penstock.groups.consumer_group import ConsumerGroup
from penstock.groups.consumer_records import group_tombstones
from penstock.groups.expiry import GroupFacts, Rounds, expired, of_other_topics
from penstock.groups.migration import Group
from penstock.groups.offsets import Committed, tombstones
from penstock.groups.records import GroupMetadataKey, encode_key
from penstock.groups.surroundings import Surroundings, TimerKey
from penstock.limits import GROUPS_EXPIRED_PER_TURN, TOMBSTONES_AT_ONCE
from penstock.types import TopicPartition

FORGETTING: Final = TimerKey("forgetting", "")
_NEXT_TURN_SECONDS: Final = 0.01
_SOON_SECONDS: Final = 1.0
"""Topics are often deleted many at a time: one look through all groups is enough for them."""


class Forgetting:
    def __init__(self, surroundings: Surroundings, book: Book) -> None:
        self._surroundings = surroundings
        self._book = book
        self._rounds = Rounds(GROUPS_EXPIRED_PER_TURN)

    def soon(self, now: Now) -> Outcome:
        """Something may have become forgettable. It is not shown any more even before it is forgotten."""
        at = now.monotonic + _SOON_SECONDS
        due = self._surroundings.timers.deadline(FORGETTING)
        if due is None or due > at:
            self._surroundings.timers.set(FORGETTING, at)
        return NOTHING

    def take_turn(self, now: Now) -> Iterator[Outcome]:
        """In pieces that each fit a batch. A group goes last, when nothing of it is left."""
        config = self._surroundings.config().offsets
        groups = self._book.groups
        turn, is_last = self._rounds.next(groups.keys())
        wait = config.check_ms / 1000 if is_last else _NEXT_TURN_SECONDS
        self._surroundings.timers.set(FORGETTING, now.monotonic + wait)
        now_ms = self._surroundings.steady_clock.read(now)
        for group in [groups[group_id] for group_id in turn if group_id in groups]:
            if self._book.unreadable.members_of(group.group_id):
                continue  # it may be younger than it looks
            gone = self._gone(group, now_ms, config.retention_ms)
            is_left = not (_is_abandoned(group) and self._are_all(group.group_id, gone))
            yield from _in_pieces(tombstones(group.group_id, gone))
            if not is_left:
                yield Outcome(self.end(group, now))

    def _gone(self, group: Group, now_ms: int, retention_ms: int) -> set[TopicPartition]:
        offsets = self._book.offsets
        gone = set(expired(offsets, group.group_id, _facts(group), now_ms, retention_ms))
        gone.update(of_other_topics(offsets, group.group_id, self._exists))
        topics = self._surroundings.topics().by_name
        unreadable = self._book.unreadable.offsets_of(group.group_id)
        gone.update(partition for partition in unreadable if partition.topic not in topics)
        return gone

    def _exists(self, name: str, committed: Committed) -> bool:
        topic = self._surroundings.topics().by_name.get(name)
        return topic is not None and committed.is_of(topic.id)

    def _are_all(self, group_id: str, partitions: set[TopicPartition]) -> bool:
        return all(partition in partitions for partition in self._book.places(group_id))

    def end(self, group: Group, now: Now) -> Sequence[StateRecord]:
        """The records that delete a group without members, its offsets aside."""
        unreadable = [
            StateRecord(encode_key(key), None) for key in self._book.unreadable.members_of(group.group_id)
        ]
        if isinstance(group, ConsumerGroup):
            consumer_timers.end(self._surroundings, group)
            return [*unreadable, *group_tombstones(group)]
        ended = classic_timers.end(self._surroundings, group, now)
        assert not ended.replies, "nobody waits in a group without members"
        return [*unreadable, StateRecord(encode_key(GroupMetadataKey(group.group_id)), None)]


def _in_pieces(records: Sequence[StateRecord]) -> Iterator[Outcome]:
    for first in range(0, len(records), TOMBSTONES_AT_ONCE):
        yield Outcome(records[first : first + TOMBSTONES_AT_ONCE])


def _is_abandoned(group: Group) -> bool:
    if isinstance(group, ConsumerGroup):
        return group.is_empty
    return group.is_empty and not group.pending_members


def _facts(group: Group) -> GroupFacts:
    topics = subscribed_topics(group)
    if group.members:
        return GroupFacts(None, lambda topic: topics is None or topic in topics, has_members=True)
    if isinstance(group, ClassicGroup):
        was_used = group.protocol_type is not None
        return GroupFacts(group.current_state_timestamp_ms if was_used else None)
    return GroupFacts(group.empty_since_ms)


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """None: members do not say it in a form that is known here."""
    return group.subscribed_topics if isinstance(group, ConsumerGroup) else group.subscribed_topics()
