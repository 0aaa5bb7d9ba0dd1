"""The rules for when committed offsets expire.

Offsets outlive their group's members: a team stops its consumers on Friday and starts them on Monday. They
expire when the group was not used for the retention time:

    the group has members        never for subscribed topics; else counted from the commit
    the group is empty           counted from when it became empty
    it never had members         counted from the commit
    the client set an expiry     at that time

Rule 1: a forward jump of the wall clock is not trusted. A machine that starts with a wrong date would
        otherwise expire all offsets at once, and every consumer would be reset.
Rule 2: rule 1 holds over a restart. Every expiry scan writes the trusted time to the log, and a start
        continues from there: the time between may be a jump. Record timestamps prove nothing, since a wrong
        clock may have written them. After a day of running, the jump counts as time that has passed.
Rule 3: so offsets may expire later than configured, and never earlier.
"""

from collections.abc import Iterator, Mapping
from struct import Struct as Layout
from typing import Final, NamedTuple

from penstock.coordinator.outcome import Now, StateRecord
from penstock.groups.offsets.committed_offsets import OffsetAndMetadata
from penstock.limits import DAY_MS, MINUTE_MS
from penstock.types import NO_TIMESTAMP, TopicId

JUMP_MS_MIN: Final = MINUTE_MS
"""Minimum jump. Normal clock corrections are smaller."""
JUMP_DISTRUST_MS: Final = DAY_MS
"""Time that an operator has to notice a wrong date and correct it."""


UNKNOWN_TIME_MS: Final = 0
"""Trusted time of a log without a time record."""

TIME_RECORD_KEY: Final = Layout(">h").pack(10_000)
"""Key of the record that stores the trusted time. Kafka ignores it as an unknown type."""
_TIME_VALUE: Final = Layout(">hq")
_TIME_VERSION: Final = 0


def time_record(trusted_ms: int) -> StateRecord:
    return StateRecord(TIME_RECORD_KEY, _TIME_VALUE.pack(_TIME_VERSION, trusted_ms))


def parse_time_record(value: bytes | None) -> int:
    """Trusted time of such a record; UNKNOWN_TIME_MS if it cannot be read."""
    if value is None or len(value) != _TIME_VALUE.size:
        return UNKNOWN_TIME_MS
    version, trusted_ms = _TIME_VALUE.unpack(value)
    return trusted_ms if version == _TIME_VERSION and trusted_ms >= 0 else UNKNOWN_TIME_MS


class TrustedClock:
    """Wall clock for decisions that delete data: it follows a forward jump only after a day."""

    def __init__(self) -> None:
        self._last: Now | None = None
        self._restored_ms = NO_TIMESTAMP
        """Newest trusted time of the logs that were loaded."""
        self._has_jumped = False
        """True: this process saw a jump itself, which is better evidence than the logs."""
        self._ahead_ms = 0
        """How far the wall clock is ahead of the trusted time."""
        self._trusted_at = 0.0
        self._latest: Now | None = None
        """Latest trusted time, and the monotonic time of that reading."""

    def restore(self, trusted_ms: int, now: Now) -> None:
        """Restore the trusted time of a loaded log. Among several logs the latest counts."""
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
        """Return the trusted time. Call it regularly: a jump is detected between two calls."""
        last, self._last = self._last, now
        if last is not None:
            passed_ms = (now.monotonic - last.monotonic) * 1000
            jump_ms = int(now.wall_ms - last.wall_ms - passed_ms)
            if abs(jump_ms) >= JUMP_MS_MIN:
                # A backward jump undoes a forward jump; it never makes offsets expire.
                self._ahead_ms = max(0, self._ahead_ms + jump_ms)
                self._has_jumped = True
                self._trusted_at = now.monotonic + JUMP_DISTRUST_MS / 1000
        if self._ahead_ms and now.monotonic >= self._trusted_at:
            self._ahead_ms = 0
        trusted_ms = now.wall_ms - self._ahead_ms
        self._note(trusted_ms, now)
        return trusted_ms

    def earliest(self, now: Now) -> int:
        """Minimum timestamp for new data: the trusted time as if the wall clock had never gone back. A
        machine may start in 1970 and get the correct date a little later."""
        if self._latest is None:
            return NO_TIMESTAMP
        trusted_ms, monotonic = self._latest
        return trusted_ms + int((now.monotonic - monotonic) * 1000) - JUMP_MS_MIN

    def _note(self, trusted_ms: int, now: Now) -> None:
        if trusted_ms >= self.earliest(now):
            self._latest = Now(trusted_ms, now.monotonic)


class GroupFacts(NamedTuple):
    """The facts about a group that decide the expiry of its offsets."""

    empty_since_ms: int | None
    """None while the group has members, or if it never had any."""
    subscribed: frozenset[str] | None = frozenset()
    """Topics that its members subscribe to; None: unknown, so all topics count as subscribed."""

    def subscribes(self, topic: str) -> bool:
        return self.subscribed is None or topic in self.subscribed


def expired_partitions(
    partitions: Mapping[int, OffsetAndMetadata], facts: GroupFacts, now_ms: int, retention_ms: int
) -> Iterator[int]:
    """Expired partitions of a topic that no member subscribes to."""
    empty_since_ms = facts.empty_since_ms or NO_TIMESTAMP
    until_ms = now_ms - retention_ms
    if empty_since_ms > until_ms:
        until_ms = NO_TIMESTAMP - 1  # only offsets with an expiry of their own
    for index, committed in partitions.items():
        if committed.expire_timestamp_ms != NO_TIMESTAMP:
            if committed.expire_timestamp_ms <= now_ms:
                yield index
        elif committed.commit_timestamp_ms <= until_ms:
            yield index


def partitions_of_old_topic(partitions: Mapping[int, OffsetAndMetadata], topic_id: TopicId) -> Iterator[int]:
    """Partitions committed for a deleted topic; a later topic of the same name is another topic."""
    return (index for index, committed in partitions.items() if not committed.is_for_topic(topic_id))
