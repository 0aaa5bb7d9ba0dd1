"""Which followers this leader hears from, and which of those that report it count as cut off from it.

Rule: a report counts when its sender's next fetch is late by FOLLOWER_SILENCE_MS_MAX, in two checks in a row.
      While a fetch waits here for records, the next one is not late. A leader that was paused, or was slow,
      finds fetches in its receive buffers when it runs again: they refute the report before the second check.
"""

from collections.abc import Collection

from penstock.controller.reachability import FollowerContact
from penstock.limits import FOLLOWER_SILENCE_MS_MAX


class FollowerContacts:
    def __init__(self) -> None:
        self._due_at: dict[int, float] = {}
        """By broker id: when its next fetch is due, at the latest; the first check if it has sent none."""
        self._suspects: frozenset[int] = frozenset()
        """Brokers that reported this leader, and were silent, at the last check."""

    def fetched(self, broker_id: int, now: float, wait_ms: int) -> None:
        """Note the arrival of a fetch that may wait here for so long."""
        self._due_at[broker_id] = now + wait_ms / 1000

    def check(self, others: Collection[int], reporters: frozenset[int], now: float) -> FollowerContact:
        """Called periodically. `others`: the other admitted brokers; `reporters`: those that report this
        leader as unreachable.
        """
        self._due_at = {node: self._due_at.get(node, now) for node in others}
        silent = frozenset(
            node for node, at in self._due_at.items() if now - at >= FOLLOWER_SILENCE_MS_MAX / 1000
        )
        before, self._suspects = self._suspects, silent & reporters
        return FollowerContact(self._suspects & before, silent)
