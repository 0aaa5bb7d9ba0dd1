"""What people are told about the rebalances of a group: how often, why, and how long."""

from penstock.coordinator.outcome import Now

REASON_CHARACTERS_MAX = 255
"""Clients give reasons too, and may give long ones."""


class RebalanceHistory:
    """The count goes up whenever members are asked to gather; so one that is interrupted counts again.

    The duration is that of the disturbance: from when the group stopped being at rest until it is
    at rest again, however often it was interrupted meanwhile.
    """

    __slots__ = ("began_at", "count", "ended_at", "reason")

    def __init__(self) -> None:
        self.count = 0
        self.reason = ""
        """Of the last one."""
        self.began_at: float | None = None
        """Monotonic seconds; None if there was none yet."""
        self.ended_at: float | None = None
        """Monotonic seconds; None while one is under way."""

    @property
    def is_under_way(self) -> bool:
        return self.began_at is not None and self.ended_at is None

    @property
    def duration_ms(self) -> int | None:
        """Of the last one that ended; None while one is under way."""
        if self.began_at is None or self.ended_at is None:
            return None
        return round((self.ended_at - self.began_at) * 1000)

    def begin(self, reason: str, now: Now) -> None:
        if not self.is_under_way:
            self.began_at, self.ended_at = now.monotonic, None
        self.count += 1
        self.reason = reason[:REASON_CHARACTERS_MAX]

    def end(self, now: Now) -> None:
        if self.is_under_way:
            self.ended_at = now.monotonic
