"""What every metadata store promises, as checks that are run against each of them.

A check is given a way to make stores that show the same data: several clients of one store, or the
same one again where there can be only one.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import pytest

from penstock.host.metadata_store import (
    ABSENT,
    CommittedTransaction,
    Compare,
    Conflict,
    Delete,
    DeleteAll,
    Event,
    HistoryCompacted,
    MetadataStore,
    Put,
    SessionId,
    StoreEntry,
    StoreRejected,
)

WAIT_SECONDS_MAX = 20.0
ROOM_MS = 60_000

Connect = Callable[[], MetadataStore]
Check = Callable[[Connect], Awaitable[None]]


async def events(store: MetadataStore, prefix: str, after: int, count: int) -> list[Event]:
    """The next `count` events that show something."""
    found: list[Event] = []
    async with asyncio.timeout(WAIT_SECONDS_MAX), aclosing(store.watch(prefix, after)) as watched:
        async for event in watched:
            found += [event] if event.changes else []
            if len(found) == count:
                break
    return found


async def put(store: MetadataStore, *keys: str, value: bytes = b"v") -> int:
    outcome = await store.transact([], [Put(key, value) for key in keys])
    assert isinstance(outcome, CommittedTransaction)
    assert outcome.has_changed
    return outcome.revision


async def what_is_read_was_committed_with_its_revision(connect: Connect) -> None:
    writer, reader = connect(), connect()
    first = await put(writer, "/a/1", "/a/2")
    second = await put(writer, "/a/2", value=b"w")
    assert second > first
    snapshot = await reader.read("/a/")
    assert snapshot.entries == {"/a/1": StoreEntry(b"v", first), "/a/2": StoreEntry(b"w", second)}
    assert list(snapshot.entries) == ["/a/1", "/a/2"]
    assert snapshot.revision >= second


async def a_prefix_ends_where_it_ends(connect: Connect) -> None:
    store = connect()
    await put(store, "/a", "/a/", "/a/b", "/a/~", "/a0", "/b/")
    assert list((await store.read("/a/")).entries) == ["/a/", "/a/b", "/a/~"]
    assert list((await store.read("/c")).entries) == []
    assert len((await store.read("")).entries) == 6


async def a_comparison_that_fails_changes_nothing(connect: Connect) -> None:
    store, other = connect(), connect()
    first = await put(store, "/a")
    before = await store.read("")
    assert await store.transact([Compare("/a", ABSENT)], [Put("/b", b"")]) == Conflict(first)
    outcome = await other.transact([Compare("/a", first), Compare("/c", first)], [Delete("/a")])
    assert isinstance(outcome, Conflict)
    assert await store.read("") == before
    assert isinstance(await other.transact([Compare("/a", first)], [Put("/a", b"2")]), CommittedTransaction)


async def a_conflict_says_from_when_it_can_be_seen(connect: Connect) -> None:
    """Or nothing: then a watcher that waits for the news sees it all the same."""
    store = connect()
    first = await put(store, "/a", "/b")
    second = await put(store, "/a")
    outcome = await store.transact([Compare("/a", first)], [Put("/a", b"")])
    assert outcome == Conflict(second)
    (seen,) = await events(store, "/", first, 1)
    assert seen.revision == second
    await store.transact([], [Delete("/b")])
    outcome = await store.transact([Compare("/b", first)], [Put("/b", b"")])
    assert isinstance(outcome, Conflict)
    _, deletion = await events(store, "/", first, 2)
    assert outcome.revision in (None, deletion.revision)


async def what_changes_nothing_is_not_seen(connect: Connect) -> None:
    store = connect()
    first = await put(store, "/a")
    for changes in ([], [Delete("/absent")], [DeleteAll("/absent/")]):
        outcome = await store.transact([Compare("/a", first)], changes)
        assert isinstance(outcome, CommittedTransaction)
        assert not outcome.has_changed
        assert outcome.revision >= first
    last = await put(store, "/a")
    assert [event.revision for event in await events(store, "/", first, 1)] == [last]


async def a_watcher_sees_whole_transactions_in_order(connect: Connect) -> None:
    writer, watcher = connect(), connect()
    start = (await watcher.read("/")).revision
    expected = []
    for number in range(20):
        keys = [f"/k/{index:03}" for index in range(number % 7 + 1)]
        revision = await put(writer, *keys, value=b"%d" % number)
        expected.append((revision, dict.fromkeys(keys, b"%d" % number)))
    seen = await events(watcher, "/k/", start, 20)
    assert [(event.revision, _values(event)) for event in seen] == expected
    later = await events(watcher, "/k/", seen[9].revision, 10)
    assert later == seen[10:]


def _values(event: Event) -> dict[str, bytes]:
    return {change.key: change.value for change in event.changes if isinstance(change, Put)}


async def a_watcher_that_waits_is_woken(connect: Connect) -> None:
    writer, watcher = connect(), connect()
    start = await put(writer, "/k")

    async def wait() -> list[Event]:
        return await events(watcher, "/", start, 1)

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0.05)
    revision = await put(writer, "/k", value=b"2")
    assert await waiting == [Event(revision, (Put("/k", b"2"),))]


async def a_watcher_sees_only_its_prefix(connect: Connect) -> None:
    store = connect()
    start = (await store.read("/")).revision
    both = await put(store, "/a/1", "/b/1")
    await put(store, "/a/2")
    other = await put(store, "/b/2")
    seen = await events(store, "/b/", start, 2)
    assert seen == [Event(both, (Put("/b/1", b"v"),)), Event(other, (Put("/b/2", b"v"),))]


async def deleting_a_prefix_is_one_transaction_that_names_every_key(connect: Connect) -> None:
    store = connect()
    keys = [f"/topic/{number}" for number in range(300)]
    for first in range(0, 300, 100):
        start = await put(store, *keys[first : first + 100])
    await put(store, "/topic", "/topic0")
    outcome = await store.transact([], [DeleteAll("/topic/"), Put("/other", b"")])
    assert isinstance(outcome, CommittedTransaction)
    assert list((await store.read("")).entries) == ["/other", "/topic", "/topic0"]
    _, event = await events(store, "/", start, 2)
    assert event.revision == outcome.revision
    assert {change.key for change in event.changes} == {*keys, "/other"}
    assert sum(isinstance(change, Delete) for change in event.changes) == 300


async def a_large_transaction_is_seen_whole(connect: Connect) -> None:
    """Larger than what etcd sends in one piece."""
    store = connect()
    start = (await store.read("/")).revision
    keys = [f"/large/{number}" for number in range(100)]
    for value in (b"1" * 10_000, b"2" * 10_000, b"3" * 10_000):
        await put(store, *keys, value=value)
    seen = await events(store, "/", start, 3)
    assert [len(event.changes) for event in seen] == [100, 100, 100]


async def only_one_of_two_that_race_is_committed(connect: Connect) -> None:
    clients = [connect() for _ in range(4)]
    revision = await put(clients[0], "/counter", value=b"0")
    for value in range(5):
        race = [
            client.transact([Compare("/counter", revision)], [Put("/counter", b"%d" % value)])
            for client in clients
        ]
        outcomes = await asyncio.gather(*race)
        won = [outcome for outcome in outcomes if isinstance(outcome, CommittedTransaction)]
        assert len(won) == 1
        revision = won[0].revision


async def the_keys_of_a_session_go_with_it(connect: Connect) -> None:
    owner, other = connect(), connect()
    session = await owner.begin_session(ROOM_MS)
    outcome = await owner.transact([], [Put("/live/1", b"x", session), Put("/live/2", b"x", session)])
    assert isinstance(outcome, CommittedTransaction)
    stays = await put(owner, "/stays")
    assert await owner.renew_session(session)
    assert (await other.read("/live/")).entries.keys() == {"/live/1", "/live/2"}
    await owner.end_session(session)
    assert not await owner.renew_session(session)
    assert list((await other.read("/")).entries) == ["/stays"]
    seen = await events(other, "/", stays, 1)
    assert set(seen[0].changes) <= {Delete("/live/1"), Delete("/live/2")}
    await owner.end_session(session)


async def a_key_leaves_its_session_when_it_is_written_without(connect: Connect) -> None:
    store = connect()
    session = await store.begin_session(ROOM_MS)
    await store.transact([], [Put("/kept", b"x", session), Put("/moved", b"x", session)])
    following = await store.begin_session(ROOM_MS)
    await store.transact([], [Put("/kept", b"y"), Put("/moved", b"y", following)])
    await store.end_session(session)
    assert list((await store.read("/")).entries) == ["/kept", "/moved"]
    await store.end_session(following)
    assert list((await store.read("/")).entries) == ["/kept"]


async def a_session_that_is_over_holds_no_keys(connect: Connect) -> None:
    store = connect()
    for session in (await _ended(store), SessionId(987_654_321)):
        assert not await store.renew_session(session)
        with pytest.raises(StoreRejected, match="over"):
            await store.transact([], [Put("/a", b"", session)])
    assert (await store.read("")).entries == {}


async def _ended(store: MetadataStore) -> SessionId:
    session = await store.begin_session(ROOM_MS)
    await store.end_session(session)
    return session


async def two_watchers_see_the_same(connect: Connect) -> None:
    one, other = connect(), connect()
    start = (await one.read("/")).revision
    for number in range(5):
        await put(one, "/k", value=b"%d" % number)
    seen = await asyncio.gather(events(one, "/", start, 5), events(other, "/", start, 5))
    assert seen[0] == seen[1]


CHECKS: list[Check] = [
    what_is_read_was_committed_with_its_revision,
    a_prefix_ends_where_it_ends,
    a_comparison_that_fails_changes_nothing,
    a_conflict_says_from_when_it_can_be_seen,
    what_changes_nothing_is_not_seen,
    a_watcher_sees_whole_transactions_in_order,
    a_watcher_that_waits_is_woken,
    a_watcher_sees_only_its_prefix,
    deleting_a_prefix_is_one_transaction_that_names_every_key,
    a_large_transaction_is_seen_whole,
    only_one_of_two_that_race_is_committed,
    the_keys_of_a_session_go_with_it,
    a_key_leaves_its_session_when_it_is_written_without,
    a_session_that_is_over_holds_no_keys,
    two_watchers_see_the_same,
]


async def expect_history_gone(watched: AsyncGenerator[Event, None]) -> None:
    """For stores that can be told to forget."""
    async with asyncio.timeout(WAIT_SECONDS_MAX), aclosing(watched):
        with pytest.raises(HistoryCompacted):
            await anext(watched)
