"""The metadata store of an embedded broker: its own SQLite file, accessed through its own thread.

No other process changes the file, so a watch delivers the transactions of this process, and a session lives
as long as the process.

Rule 1: every transaction is published in the order of its revision, even if its caller no longer waits for
        it.
"""

from collections.abc import AsyncGenerator, Sequence

from penstock.host.event_feed import EventFeed
from penstock.host.metadata_store import (
    CommittedTransaction,
    Compare,
    Conflict,
    Event,
    SessionId,
    Snapshot,
    StoreChange,
    StoreRejected,
)
from penstock.host.worker import Worker
from penstock.metadata.sqlite_store import CHANGES_MAX, SqliteStore


class EmbeddedStore:
    """A MetadataStore. The caller that provided the worker stops it after `close`."""

    changes_max = CHANGES_MAX

    def __init__(self, file: SqliteStore, worker: Worker) -> None:
        self._file = file
        self._worker = worker
        self._feed = EventFeed(file.opened_at_revision)
        self._sessions: set[SessionId] = set()
        self._last_session = SessionId(0)

    async def read(self, prefix: str) -> Snapshot:
        return await self._worker.run(lambda: self._file.read(prefix))

    async def transact(
        self, compares: Sequence[Compare], changes: Sequence[StoreChange]
    ) -> CommittedTransaction | Conflict:
        self._require_sessions(changes)
        # `on_result` publishes even if the caller was cancelled: the commit happened, and watchers must see
        # it.
        outcome = await self._worker.run(
            lambda: self._file.commit(compares, changes), on_result=self._publish
        )
        if isinstance(outcome, Conflict):
            return outcome
        return CommittedTransaction(outcome.revision, has_changed=bool(outcome.changes))

    def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Event, None]:
        return self._feed.watch(prefix, after_revision)

    async def begin_session(self, ttl_ms: int) -> SessionId:
        assert ttl_ms > 0
        self._last_session = SessionId(self._last_session + 1)
        self._sessions.add(self._last_session)
        return self._last_session

    async def renew_session(self, session: SessionId) -> bool:
        return session in self._sessions

    async def end_session(self, session: SessionId) -> None:
        self._sessions.discard(session)
        await self._worker.run(lambda: self._file.end_session(session), on_result=self._publish)

    async def close(self) -> None:
        await self._worker.run(self._file.close)

    def _publish(self, outcome: Event | Conflict) -> None:
        if isinstance(outcome, Event) and outcome.changes:
            self._feed.publish(outcome)

    def _require_sessions(self, changes: Sequence[StoreChange]) -> None:
        for change in changes:
            session = getattr(change, "session", None)
            if session is not None and session not in self._sessions:
                raise StoreRejected(f"session {session} is over; begin a new one")
