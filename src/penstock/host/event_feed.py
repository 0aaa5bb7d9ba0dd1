"""Recent events of a metadata store in this process, for its watchers.

Events are kept for watchers that are a little behind. A watcher that requests older events must read the
store again, as with any store.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from penstock.host.metadata_store import Event, HistoryCompacted
from penstock.limits import METADATA_EVENTS_KEPT_MAX


class EventFeed:
    """Events of one store."""

    def __init__(self, revision: int) -> None:
        """`revision`: current revision of the store. Earlier events are not kept here."""
        self._begins_after = revision
        self._events: deque[Event] = deque()
        self._more = asyncio.Event()

    def publish(self, event: Event) -> None:
        assert event.revision > (self._events[-1].revision if self._events else self._begins_after)
        self._events.append(event)
        if len(self._events) > METADATA_EVENTS_KEPT_MAX:
            self._begins_after = self._events.popleft().revision
        # Wake current watchers with this event; the next wait uses a new one.
        self._more.set()
        self._more = asyncio.Event()

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Event, None]:
        while True:
            event = self._after(after_revision)
            if event is None:
                await self._more.wait()
                continue
            after_revision = event.revision
            changes = tuple(change for change in event.changes if change.key.startswith(prefix))
            yield Event(event.revision, changes)

    def _after(self, revision: int) -> Event | None:
        """First event after `revision`, if there is one."""
        if revision < self._begins_after:
            raise HistoryCompacted(
                f"events after revision {revision} are gone; {self._begins_after} is the oldest"
            )
        # Newest first, because watchers are usually at the end.
        newest_first = iter(reversed(self._events))
        found = None
        while (event := next(newest_first, None)) is not None and event.revision > revision:
            found = event
        return found
