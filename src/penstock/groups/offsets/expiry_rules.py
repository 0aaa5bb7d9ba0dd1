"""When committed offsets are forgotten.

Offsets outlive their group's members: a team stops its consumers on Friday and starts them on
Monday. They are forgotten when nobody has used the group for the retention time:

    the group has members    never, for topics that they subscribe to; else by the time of commit
    the group is empty       counted from when it became empty
    it never had members     counted from the commit
    the client said when     at that time

Rule 1: a wall clock that jumps ahead is not believed. A machine that wakes up with a wrong date
        would otherwise forget everything at once, and every consumer would begin anew.
Rule 2: that holds over a restart. What is believed is itself kept in the log, every time that groups
        are looked through, and a start goes on from there: what lies between may be a jump. Records
        prove nothing, since a wrong clock may have written them. After a day of running it counts as
        time that has passed.
Rule 3: so offsets may be forgotten later than asked for, and never earlier.
"""

from collections.abc import Iterator, Mapping
from struct import Struct as Layout
from typing import Final, NamedTuple

from penstock.coordinator.outcome import Now, StateRecord
from penstock.groups.offsets.committed_offsets import OffsetAndMetadata
from penstock.limits import DAY_MS, MINUTE_MS
from penstock.types import NO_TIMESTAMP, TopicId

JUMP_MS_MIN: Final = MINUTE_MS
"""Clocks are corrected by less than this in the course of things."""
JUMP_DISTRUST_MS: Final = DAY_MS
"""How long somebody has to notice a wrong date and put it right."""


UNKNOWN_TIME_MS: Final = 0
"""What is believed of a log that does not say it."""

TIME_RECORD_KEY: Final = Layout(">h").pack(10_000)
"""Of the record that keeps what is believed. To Kafka it is of an unknown type, which it passes over."""
_TIME_VALUE: Final = Layout(">hq")
_TIME_VERSION: Final = 0


def time_record(trusted_ms: int) -> StateRecord:
    return StateRecord(TIME_RECORD_KEY, _TIME_VALUE.pack(_TIME_VERSION, trusted_ms))


def parse_time_record(value: bytes | None) -> int:
    """What such a record says; as little as none would if it cannot be read."""
    if value is None or len(value) != _TIME_VALUE.size:
        return UNKNOWN_TIME_MS
    version, trusted_ms = _TIME_VALUE.unpack(value)
    return trusted_ms if version == _TIME_VERSION and trusted_ms >= 0 else UNKNOWN_TIME_MS


class TrustedClock:
    """Wall time for those who delete things: follows jumps only after a day."""

    __slots__ = ("_ahead_ms", "_has_jumped", "_last", "_latest", "_restored_ms", "_trusted_at")

    def __init__(self) -> None:
        self._last: Now | None = None
        self._restored_ms = NO_TIMESTAMP
        """What was believed when the logs were last written."""
        self._has_jumped = False
        """Since this process began: it knows better than the logs."""
        self._ahead_ms = 0
        """How far wall time has jumped ahead of what is believed."""
        self._trusted_at = 0.0
        self._latest: Now | None = None
        """The latest time that was ever believed, and when that was."""

    def restore(self, trusted_ms: int, now: Now) -> None:
        """A log was loaded, and this was believed then. Of several logs the latest counts."""
        if self._has_jumped or trusted_ms <= self._restored_ms:
            return
        ahead_ms = now.wall_ms - trusted_ms
        ahead_ms = ahead_ms if ahead_ms >= JUMP_MS_MIN else 0
        if self._restored_ms == NO_TIMESTAMP:
            self._ahead_ms = ahead_ms
            self._trusted_at = now.monotonic + JUMP_DISTRUST_MS / 1000
        else:
            self._ahead_ms = min(self._ahead_ms, ahead_ms)
        self._restored_ms = trusted_ms
        self._note(trusted_ms, now)

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
                self._trusted_at = now.monotonic + JUMP_DISTRUST_MS / 1000
        if self._ahead_ms and now.monotonic >= self._trusted_at:
            self._ahead_ms = 0
        trusted_ms = now.wall_ms - self._ahead_ms
        self._note(trusted_ms, now)
        return trusted_ms

    def earliest(self, now: Now) -> int:
        """What is kept now must not look older than this. It is what the time would be if the wall clock
        had never gone back: a machine may start in 1970 and be told the date a little later.
        """
        if self._latest is None:
            return NO_TIMESTAMP
        trusted_ms, monotonic = self._latest
        return trusted_ms + int((now.monotonic - monotonic) * 1000) - JUMP_MS_MIN

    def _note(self, trusted_ms: int, now: Now) -> None:
        if trusted_ms >= self.earliest(now):
            self._latest = Now(trusted_ms, now.monotonic)


class GroupFacts(NamedTuple):
    """What decides how long a group's offsets are kept."""

    empty_since_ms: int | None
    """None while it has members, or if it never had any."""
    subscribed: frozenset[str] | None = frozenset()
    """The topics that its members read; None: any."""

    def subscribes(self, topic: str) -> bool:
        return self.subscribed is None or topic in self.subscribed


def expired_partitions(
    partitions: Mapping[int, OffsetAndMetadata], facts: GroupFacts, now_ms: int, retention_ms: int
) -> Iterator[int]:
    """The partitions, of a topic that no member subscribes to, whose time is up."""
    empty_since_ms = facts.empty_since_ms or NO_TIMESTAMP
    until_ms = now_ms - retention_ms
    if empty_since_ms > until_ms:
        until_ms = NO_TIMESTAMP - 1  # only what has a time of its own
    for index, committed in partitions.items():
        if committed.expire_timestamp_ms != NO_TIMESTAMP:
            if committed.expire_timestamp_ms <= now_ms:
                yield index
        elif committed.commit_timestamp_ms <= until_ms:
            yield index


def partitions_of_old_topic(partitions: Mapping[int, OffsetAndMetadata], topic_id: TopicId) -> Iterator[int]:
    """The partitions of a topic that is gone; one of the same name made since is another topic."""
    return (index for index, committed in partitions.items() if not committed.is_for_topic(topic_id))
