"""The latest events of a store that lives in this process, for those who watch it.

Events are kept for watchers that are a little behind. One that asks for older events is told to
read again, as by any store.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from penstock.host.metadata_store import Event, HistoryCompacted
from penstock.limits import METADATA_EVENTS_KEPT_MAX


class EventFeed:
    def __init__(self, revision: int) -> None:
        """`revision`: of the store now. What happened before is not known here."""
        self._begins_after = revision
        self._events: deque[Event] = deque()
        self._more = asyncio.Event()

    def publish(self, event: Event) -> None:
        assert event.revision > (self._events[-1].revision if self._events else self._begins_after)
        self._events.append(event)
        if len(self._events) > METADATA_EVENTS_KEPT_MAX:
            self._begins_after = self._events.popleft().revision
        # Whoever waits has this one; the next wait is for the next event.
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
        """The first event after `revision`, if it has happened."""
        if revision < self._begins_after:
            raise HistoryCompacted(
                f"events after revision {revision} are gone; {self._begins_after} is the oldest"
            )
        # Watchers are usually at the end.
        newest_first = iter(reversed(self._events))
        found = None
        while (event := next(newest_first, None)) is not None and event.revision > revision:
            found = event
        return found
