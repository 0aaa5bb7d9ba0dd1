"""The rebalance statistics of a group: how many, the last reason, and the last duration."""

from penstock.coordinator.outcome import Now

REASON_CHARACTERS_MAX = 255
"""Limit on a reason: clients send reasons too, of any length."""


class RebalanceStatistics:
    """Counter and durations of a group's rebalances.

    The count goes up whenever members must rejoin, so an interrupted rebalance counts again. The
    duration runs from when the group stopped being Stable until it is Stable again, however often the
    rebalance was interrupted.
    """

    def __init__(self) -> None:
        self.count = 0
        self.reason = ""
        """Reason of the last rebalance."""
        self.began_at: float | None = None
        """Monotonic seconds; None before the first rebalance."""
        self.ended_at: float | None = None
        """Monotonic seconds; None while a rebalance is in progress."""

    @property
    def is_under_way(self) -> bool:
        return self.began_at is not None and self.ended_at is None

    @property
    def duration_ms(self) -> int | None:
        """Duration of the last rebalance; None while one is in progress."""
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
