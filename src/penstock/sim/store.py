"""A metadata store in memory with exactly the guarantees of etcd.

One `SimStore` is the store; each simulated node has its own `client`. A request takes a while to arrive, is
carried out at one moment, and its reply takes a while to return. Either may be lost, or arrive after the
client has given up: then a transaction takes effect although its sender got an error.

Faults are plain attributes that the simulation sets: probabilities and delays on the store;
`is_unavailable` for the whole store (no replies, and no session ends); `is_full` (writes are rejected);
`is_disconnected` for one client's connection; `watch_events_flow` for its watch events; and `ambush` for
one intercepted request.

Rule 1: All randomness comes from the given Random, and all time from the loop.
Rule 2: The store gives no more than etcd guarantees: a conflict over a deleted key does not contain its
        revision, revisions jump where other programs share the store, and compacted history is gone.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, TypeVar

from penstock.host.metadata_store import (
    ABSENT,
    CommittedTransaction,
    Compare,
    Conflict,
    Delete,
    Event,
    HistoryCompacted,
    Put,
    SessionId,
    Snapshot,
    StoreChange,
    StoreEntry,
    StoreFull,
    StoreRejected,
    StoreUnavailable,
    require_well_formed,
)
from penstock.sim.processes import NO_PROCESS_CONTEXT
from penstock.sim.scheduler import VirtualTimeLoop

Result = TypeVar("Result")

CHANGES_MAX = 128
TIMEOUT_SECONDS = 4.0
"""How long a client waits for a reply."""
LOST_REPLY_TIMEOUT_SECONDS = 1.0
"""How long a client waits while its requests arrive and all replies are lost. Renewals arrive too, so its
session lives.
"""
WATCH_SILENCE_SECONDS = 4.0
"""How long a watch waits for an event before it checks the connection, and at most before it fails without
one.
"""


@dataclass(slots=True)
class StoreFaults:
    delay_seconds: tuple[float, float] = (0.0, 0.0)
    """The delay of a request, of a reply, and of each event on its way to a watcher."""
    stalls: float = 0.0
    """The probability that one of them takes up to twice a client's timeout."""
    lost_requests: float = 0.0
    lost_replies: float = 0.0
    broken_watches: float = 0.0
    """The probability, for each event, that the watch breaks instead of delivering it."""
    foreign_changes: float = 0.0
    """The probability, for each transaction, that other users of the store have changed something."""


class RequestFault(NamedTuple):
    """A fault of one intercepted request."""

    extra_delay_seconds: float
    """The additional delay before the request arrives."""
    loses_reply: bool
    released: "asyncio.Future[None] | None" = None
    """If set, the request does not arrive before this is done."""


RequestInterceptor = Callable[[Sequence[StoreChange]], RequestFault | None]
"""Called with every transaction when it is sent. None: the transaction is not intercepted."""
NO_FAULT = RequestFault(0.0, loses_reply=False)


@dataclass(slots=True)
class _StoreSession:
    ttl_seconds: float
    ends_at: float
    keys: set[str] = field(default_factory=set)


class _CommittedEvent(NamedTuple):
    at: float
    event: Event


class StoreBackup(NamedTuple):
    """A copy of the store, as it was at a revision."""

    revision: int
    entries: dict[str, StoreEntry]
    history: list[_CommittedEvent]


class SimStore:
    def __init__(
        self,
        loop: VirtualTimeLoop,
        random: Random,
        faults: StoreFaults | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._loop = loop
        self.timeout_seconds = timeout_seconds
        self.random = random
        self.faults = faults or StoreFaults()
        self.is_unavailable = False
        self.is_full = False
        """Whether puts and new sessions are rejected. Deletions and renewals still work."""
        self.revision = 1
        self.entries: dict[str, StoreEntry] = {}
        self.on_commit: Callable[[Event], None] = lambda _: None
        """Called with every transaction at the moment it is committed, for checks that always hold."""
        self.ambush: RequestInterceptor | None = None
        self.counts: Counter[str] = Counter()
        """By fault: how often it had an effect."""
        self._history: list[_CommittedEvent] = []
        self._compacted_to = 0
        self._sessions: dict[SessionId, _StoreSession] = {}
        self._last_session = SessionId(0)
        self._event_committed = asyncio.Event()

    def client(self) -> "SimStoreClient":
        return SimStoreClient(self, self._loop)

    # Faults

    def backup(self) -> StoreBackup:
        return StoreBackup(self.revision, dict(self.entries), list(self._history))

    def restore(self, backup: StoreBackup) -> None:
        """Put back an older copy, as an operator might: everything committed since is lost."""
        self.revision, self.entries, self._history = backup.revision, backup.entries, backup.history

    def become_unavailable(self) -> None:
        """Stop replying and ending sessions, until `become_available`."""
        assert not self.is_unavailable
        self.is_unavailable = True

    def become_available(self) -> None:
        """Reply again. Every session gets its full time again, as in etcd after a leader election."""
        assert self.is_unavailable
        self.is_unavailable = False
        for session in self._sessions.values():
            session.ends_at = self._loop.now + session.ttl_seconds

    def compact(self, revision: int | None = None) -> None:
        """Compact the history up to `revision`, or up to the current one."""
        self._compacted_to = max(self._compacted_to, self.revision if revision is None else revision)
        self._history = [each for each in self._history if each.event.revision > self._compacted_to]
        self._wake_watchers()

    def delay(self) -> float:
        if self.random.random() < self.faults.stalls:
            return self.random.uniform(0, 2 * self.timeout_seconds)
        return self.random.uniform(*self.faults.delay_seconds)

    # Requests

    def read(self, prefix: str) -> Snapshot:
        found = {key: self.entries[key] for key in sorted(self.entries) if key.startswith(prefix)}
        return Snapshot(self.revision, found)

    def transact(
        self, compares: Sequence[Compare], changes: Sequence[StoreChange]
    ) -> CommittedTransaction | Conflict:
        if self.random.random() < self.faults.foreign_changes:
            self.revision += self.random.randint(1, 3)
        if self.is_full and any(isinstance(change, Put) for change in changes):
            raise StoreFull("there is no room")
        for change in changes:
            if (
                isinstance(change, Put)
                and change.session is not None
                and change.session not in self._sessions
            ):
                raise StoreRejected(f"session {change.session} is over")
        mismatched = [compare for compare in compares if self._revision_of(compare.key) != compare.revision]
        if mismatched:
            there = [self._revision_of(compare.key) for compare in mismatched if compare.key in self.entries]
            return Conflict(max(there, default=None))
        has_changed = self._commit(changes)
        return CommittedTransaction(self.revision, has_changed=has_changed)

    def begin_session(self, ttl_ms: int) -> SessionId:
        if self.is_full:
            raise StoreFull("there is no room")
        self._last_session = SessionId(self._last_session + 1)
        session = _StoreSession(ttl_ms / 1000, self._loop.now + ttl_ms / 1000)
        self._sessions[self._last_session] = session
        self._loop.call_at(
            session.ends_at,
            self._end_session_if_expired,
            self._last_session,
            session,
            context=NO_PROCESS_CONTEXT,
        )
        return self._last_session

    def renew_session(self, number: SessionId) -> bool:
        session = self._sessions.get(number)
        if session is None:
            return False
        session.ends_at = self._loop.now + session.ttl_seconds
        return True

    def _revision_of(self, key: str) -> int:
        entry = self.entries.get(key)
        return ABSENT if entry is None else entry.revision

    def _commit(self, changes: Sequence[StoreChange]) -> bool:
        effective: list[Put | Delete] = []
        for change in changes:
            if isinstance(change, Put):
                effective.append(change)
            elif isinstance(change, Delete):
                effective += [change] if change.key in self.entries else []
            else:
                deleted_keys = sorted(key for key in self.entries if key.startswith(change.prefix))
                effective += map(Delete, deleted_keys)
        if not effective:
            return False
        self.revision += 1
        for change in effective:
            self._apply(change)
        event = Event(self.revision, tuple(effective))
        self._history.append(_CommittedEvent(self._loop.now, event))
        self.on_commit(event)
        self._wake_watchers()
        return True

    def _apply(self, change: Put | Delete) -> None:
        # A key belongs to the session of its last put, or to none.
        for session in self._sessions.values():
            session.keys.discard(change.key)
        if isinstance(change, Delete):
            del self.entries[change.key]
            return
        self.entries[change.key] = StoreEntry(change.value, self.revision)
        if change.session is not None:
            self._sessions[change.session].keys.add(change.key)

    def _end_session_if_expired(self, number: SessionId, session: _StoreSession) -> None:
        """End the session if its time is over. It may have been renewed since the timer was set."""
        if self._sessions.get(number) is not session:
            return
        if self.is_unavailable:
            self._loop.call_later(session.ttl_seconds, self._end_session_if_expired, number, session)
        elif self._loop.now >= session.ends_at:
            self.counts["session-over"] += 1
            self.end_session(number)
        else:
            self._loop.call_at(session.ends_at, self._end_session_if_expired, number, session)

    def session_of(self, key: str) -> SessionId | None:
        """The session whose end deletes `key`."""
        owners = [number for number, session in self._sessions.items() if key in session.keys]
        return owners[0] if owners else None

    def end_session(self, number: SessionId) -> None:
        """End a session, at its owner's request or because it expired."""
        session = self._sessions.pop(number, None)
        if session is not None:
            self._commit([Delete(key) for key in sorted(session.keys)])

    # Watching

    def after(self, revision: int) -> _CommittedEvent | None:
        """The first event after `revision`, if there is one."""
        if revision < self._compacted_to:
            self.counts["history-gone"] += 1
            raise HistoryCompacted(f"compacted up to revision {self._compacted_to}")
        low, high = 0, len(self._history)
        while low < high:
            middle = (low + high) // 2
            if self._history[middle].event.revision > revision:
                high = middle
            else:
                low = middle + 1
        return self._history[low] if low < len(self._history) else None

    async def wait_for_event(self) -> None:
        """Return when another event has been committed."""
        await self._event_committed.wait()

    def _wake_watchers(self) -> None:
        self._event_committed.set()
        self._event_committed = asyncio.Event()


class SimStoreClient:
    """A MetadataStore: one node's client of the store."""

    changes_max = CHANGES_MAX

    def __init__(self, store: SimStore, loop: VirtualTimeLoop) -> None:
        self._store = store
        self._loop = loop
        self.is_disconnected = False
        """Whether nothing gets through, in either direction."""
        self.watch_events_flow = asyncio.Event()
        """If not set, watch events are held back although requests get replies."""
        self.watch_events_flow.set()
        self.drops_replies = False
        """Whether its requests arrive and all replies are lost."""
        self.is_dead = False
        """Whether its process is dead: it sends nothing more. Requests in flight still arrive."""

    async def read(self, prefix: str) -> Snapshot:
        return await self._request(lambda: self._store.read(prefix))

    async def transact(
        self, compares: Sequence[Compare], changes: Sequence[StoreChange]
    ) -> CommittedTransaction | Conflict:
        require_well_formed(compares, changes, CHANGES_MAX)
        fault = self._store.ambush(changes) if self._store.ambush is not None else None
        return await self._request(lambda: self._store.transact(compares, changes), fault or NO_FAULT)

    async def begin_session(self, ttl_ms: int) -> SessionId:
        return await self._request(lambda: self._store.begin_session(ttl_ms))

    async def renew_session(self, session: SessionId) -> bool:
        return await self._request(lambda: self._store.renew_session(session))

    async def end_session(self, session: SessionId) -> None:
        await self._request(lambda: self._store.end_session(session))

    async def close(self) -> None:
        """Do nothing: requests in flight still arrive, like packets of a process that has ended."""

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Event, None]:
        store = self._store
        while True:
            await self._require_connection()
            committed = store.after(after_revision)
            if committed is None:
                await self._wait_for_event()
                continue
            # Delays of several events overlap, and events still arrive in their order.
            await asyncio.sleep(max(0.0, committed.at + store.delay() - self._loop.now))
            await self._require_connection()
            await self.watch_events_flow.wait()
            if store.random.random() < store.faults.broken_watches:
                store.counts["broken-watch"] += 1
                raise StoreUnavailable("the watch broke")
            after_revision, changes = committed.event
            changes = tuple(change for change in changes if change.key.startswith(prefix))
            if changes:
                yield Event(after_revision, changes)

    async def _wait_for_event(self) -> None:
        try:
            async with asyncio.timeout(WATCH_SILENCE_SECONDS):
                await self._store.wait_for_event()
        except TimeoutError:
            return  # the caller checks the connection again

    async def _require_connection(self) -> None:
        if self._is_connected():
            return
        await asyncio.sleep(self._store.random.uniform(0, WATCH_SILENCE_SECONDS))
        if not self._is_connected():
            raise StoreUnavailable("the watch hears nothing")

    def _is_connected(self) -> bool:
        return not self.is_disconnected and not self._store.is_unavailable

    async def _request(self, job: Callable[[], Result], fault: RequestFault = NO_FAULT) -> Result:
        """Send a request and wait for its reply."""
        store, answer = self._store, self._loop.create_future()
        if self.is_dead:
            raise StoreUnavailable("the process is dead")
        if store.random.random() < store.faults.lost_requests:
            store.counts["lost-request"] += 1
        else:
            after = store.delay() + fault.extra_delay_seconds
            self._send(after, fault.released, self._process_request, job, answer, fault)
        seconds = LOST_REPLY_TIMEOUT_SECONDS if self.drops_replies else store.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                result: Result = await answer
                return result
        except TimeoutError:
            raise StoreUnavailable("no answer in time") from None

    def _send(
        self,
        after: float,
        released: "asyncio.Future[None] | None",
        arrive: Callable[..., None],
        *arguments: Any,
    ) -> None:
        if released is None:
            self._loop.call_later(after, arrive, *arguments, context=NO_PROCESS_CONTEXT)
            return
        # The callback must not run in the sender's context: the sender may be dead by then.
        released.add_done_callback(
            lambda _: self._loop.call_later(after, arrive, *arguments, context=NO_PROCESS_CONTEXT),
            context=NO_PROCESS_CONTEXT,
        )

    def _process_request(
        self, job: Callable[[], Result], answer: "asyncio.Future[Result]", fault: RequestFault
    ) -> None:
        store = self._store
        if not self._is_connected():
            return
        result: Result | None = None
        refusal: StoreRejected | StoreFull | None = None
        try:
            result = job()
        except (StoreRejected, StoreFull) as problem:
            refusal = problem
        if store.random.random() < store.faults.lost_replies or fault.loses_reply:
            store.counts["lost-reply"] += 1
        else:
            self._loop.call_later(
                store.delay(), self._deliver_reply, answer, result, refusal, context=NO_PROCESS_CONTEXT
            )

    def _deliver_reply(
        self, answer: "asyncio.Future[Any]", result: Any, refusal: StoreRejected | StoreFull | None
    ) -> None:
        if answer.done() or not self._is_connected() or self.drops_replies:
            return
        if refusal is not None:
            answer.set_exception(refusal)
        else:
            answer.set_result(result)
