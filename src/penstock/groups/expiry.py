"""When committed offsets are forgotten.

Offsets outlive their group's members: a team stops its consumers on Friday and starts them on
Monday. They are forgotten when nobody has used the group for the retention time:

    the group has members    never, for topics that they subscribe to; else by the time of commit
    the group is empty       counted from when it became empty
    it never had members     counted from the commit
    the client said when     at that time

Rule 1: a wall clock that jumps ahead is not believed. A machine that wakes up with a wrong date
        would otherwise forget everything at once, and every consumer would begin anew.
Rule 2: that holds over a restart, as far as it can be known: the time is at least that of the newest
        record, and what lies between may be a jump. After a day it counts as time that has passed.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from penstock.coordinator.outcome import Now
from penstock.groups.offsets import Committed, Offsets
from penstock.limits import DAY_MS, MINUTE_MS
from penstock.types import NO_TIMESTAMP, TopicPartition

JUMP_MS_MIN: Final = MINUTE_MS
"""Clocks are corrected by less than this in the course of things."""
DISTRUST_MS: Final = DAY_MS
"""How long somebody has to notice a wrong date and put it right."""


class SteadyClock:
    """Wall time for those who delete things: follows jumps only after a day."""

    __slots__ = ("_ahead_ms", "_believed_at", "_has_jumped", "_last", "_newest_ms")

    def __init__(self) -> None:
        self._last: Now | None = None
        self._newest_ms = NO_TIMESTAMP
        """Of the records that were loaded when this process began."""
        self._has_jumped = False
        """Since then: what is in the logs may have been written at a time that is not believed."""
        self._ahead_ms = 0
        """How far wall time has jumped ahead of what is believed."""
        self._believed_at = 0.0

    def learn(self, newest_ms: int, now: Now) -> None:
        """A log was loaded, and this is the time of its newest record. Of several logs the newest counts."""
        if self._has_jumped or newest_ms <= self._newest_ms:
            return
        ahead_ms = now.wall_ms - newest_ms
        ahead_ms = ahead_ms if ahead_ms >= JUMP_MS_MIN else 0
        if self._newest_ms == NO_TIMESTAMP:
            self._ahead_ms = ahead_ms
            self._believed_at = now.monotonic + DISTRUST_MS / 1000
        else:
            self._ahead_ms = min(self._ahead_ms, ahead_ms)
        self._newest_ms = newest_ms

    def read(self, now: Now) -> int:
        """The time to act on. Call it now and then: a jump is what lies between two calls."""
        last, self._last = self._last, now
        if last is not None:
            passed_ms = (now.monotonic - last.monotonic) * 1000
            jump_ms = int(now.wall_ms - last.wall_ms - passed_ms)
            if abs(jump_ms) >= JUMP_MS_MIN:
                # A jump back undoes what went ahead; it is never itself a reason to delete.
                self._ahead_ms = max(0, self._ahead_ms + jump_ms)
                self._has_jumped = True
                self._believed_at = now.monotonic + DISTRUST_MS / 1000
        if self._ahead_ms and now.monotonic >= self._believed_at:
            self._ahead_ms = 0
        return now.wall_ms - self._ahead_ms


class GroupFacts(NamedTuple):
    """What decides how long a group's offsets are kept."""

    empty_since_ms: int | None
    """None while it has members, or if it never had any."""
    subscribes: Callable[[str], bool] = lambda topic: False
    has_members: bool = False


def expired(
    offsets: Offsets, group_id: str, facts: GroupFacts, now_ms: int, retention_ms: int
) -> list[TopicPartition]:
    return [
        partition
        for partition, committed in offsets.partitions(group_id)
        if not (facts.has_members and facts.subscribes(partition.topic))
        and _is_expired(committed, facts, now_ms, retention_ms)
    ]


def _is_expired(committed: Committed, facts: GroupFacts, now_ms: int, retention_ms: int) -> bool:
    if committed.expire_timestamp_ms != NO_TIMESTAMP:
        return now_ms >= committed.expire_timestamp_ms
    since_ms = committed.commit_timestamp_ms
    if facts.empty_since_ms is not None:
        since_ms = max(since_ms, facts.empty_since_ms)
    return now_ms - since_ms >= retention_ms


def of_other_topics(
    offsets: Offsets, group_id: str, exists: Callable[[str, Committed], bool]
) -> Iterator[TopicPartition]:
    """The places in topics that are gone; one of the same name made since is another topic."""
    for partition, committed in offsets.partitions(group_id):
        if not exists(partition.topic, committed):
            yield partition


class Rounds:
    """Goes through many groups, some at a time, so that nobody has to wait for all of them."""

    __slots__ = ("_left", "_per_turn")

    def __init__(self, per_turn: int) -> None:
        self._per_turn = per_turn
        self._left: list[str] = []

    def next(self, everything: Collection[str]) -> tuple[list[str], bool]:
        """The next few, and whether that ends the round."""
        if not self._left:
            self._left = list(everything)
        turn, self._left = self._left[: self._per_turn], self._left[self._per_turn :]
        return turn, not self._left
