"""The simulated store: its faults happen, and never break a promise."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from random import Random

import pytest

from penstock.host.metadata_store import (
    CommittedTransaction,
    Compare,
    Conflict,
    Event,
    HistoryCompacted,
    Put,
    StoreChange,
    StoreUnavailable,
)
from penstock.sim.scheduler import VirtualTimeLoop
from penstock.sim.store import RequestFault, SimStore, SimStoreClient, StoreFaults

Scene = Callable[[SimStore], Awaitable[None]]


def play(scene: Scene, faults: StoreFaults | None = None, seed: int = 1) -> SimStore:
    loop = VirtualTimeLoop(Random(seed))
    store = SimStore(loop, Random(seed), faults)

    async def run() -> None:
        await scene(store)

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    return store


def test_a_lost_request_does_nothing_and_a_lost_answer_does_all() -> None:
    async def scene(store: SimStore) -> None:
        client = store.client()
        store.faults.lost_requests = 1.0
        with pytest.raises(StoreUnavailable):
            await client.transact([], [Put("/a", b"")])
        assert store.entries == {}
        store.faults.lost_requests, store.faults.lost_replies = 0.0, 1.0
        with pytest.raises(StoreUnavailable):
            await client.transact([], [Put("/a", b"")])
        assert list(store.entries) == ["/a"]

    play(scene)


def test_a_transaction_may_happen_after_it_was_given_up() -> None:
    async def scene(store: SimStore) -> None:
        client = store.client()
        store.faults.delay_seconds = (6.0, 6.0)
        with pytest.raises(StoreUnavailable):
            await client.transact([], [Put("/a", b"")])
        assert store.entries == {}
        await asyncio.sleep(3)
        assert list(store.entries) == ["/a"]

    play(scene)


def test_while_it_is_away_nobody_is_answered_and_no_session_ends() -> None:
    async def scene(store: SimStore) -> None:
        client = store.client()
        session = await client.begin_session(6_000)
        await client.transact([], [Put("/live", b"", session)])
        store.become_unavailable()
        with pytest.raises(StoreUnavailable):
            await client.read("/")
        await asyncio.sleep(60)
        store.become_available()
        await asyncio.sleep(5)
        assert await client.renew_session(session)
        await asyncio.sleep(7)
        assert not await client.renew_session(session)
        assert store.entries == {}

    play(scene)


def test_a_client_that_is_cut_off_loses_its_session_and_its_watch() -> None:
    async def scene(store: SimStore) -> None:
        client, other = store.client(), store.client()
        session = await client.begin_session(6_000)
        outcome = await client.transact([], [Put("/live", b"", session)])
        assert isinstance(outcome, CommittedTransaction)
        client.is_disconnected = True
        async with aclosing(client.watch("/", outcome.revision)) as watched:
            with pytest.raises(StoreUnavailable):
                await anext(watched)
        async with aclosing(other.watch("/", outcome.revision)) as watched:
            assert (await anext(watched)).revision == outcome.revision + 1
        assert (await other.read("/")).entries == {}

    play(scene)


def test_what_was_compacted_cannot_be_watched() -> None:
    async def scene(store: SimStore) -> None:
        client = store.client()
        for _ in range(3):
            await client.transact([], [Put("/a", b"")])
        store.compact()
        with pytest.raises(HistoryCompacted):
            await anext(client.watch("/", 1))
        waiting = client.watch("/", store.revision)
        await client.transact([], [Put("/b", b"")])
        assert [change.key for change in (await anext(waiting)).changes] == ["/b"]

    play(scene)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_fails_every_watcher_sees_every_transaction_once_and_in_order(seed: int) -> None:
    faults = StoreFaults(
        delay_seconds=(0.0, 0.3),
        stalls=0.05,
        lost_requests=0.05,
        lost_replies=0.05,
        broken_watches=0.1,
        foreign_changes=0.3,
    )
    happened: list[Event] = []
    seen: list[Event] = []

    async def follow(client: SimStoreClient) -> None:
        after = 1
        while True:
            try:
                async with aclosing(client.watch("/", after)) as watched:
                    async for event in watched:
                        seen.append(event)
                        after = event.revision
            except StoreUnavailable:
                continue

    async def scene(store: SimStore) -> None:
        store.on_commit = happened.append
        following = asyncio.ensure_future(follow(store.client()))
        await asyncio.gather(*(increment(store.client(), 15) for _ in range(3)))
        await asyncio.sleep(60)
        following.cancel()

    store = play(scene, faults, seed)
    assert seen == happened
    # Every increment that was acknowledged counts, and none counts twice.
    assert int(store.entries["/counter"].value) >= 45


async def increment(client: SimStoreClient, times: int) -> None:
    done = 0
    while done < times:
        try:
            entry = (await client.read("/counter")).entries.get("/counter")
            value, revision = (int(entry.value), entry.revision) if entry else (0, 0)
            put = Put("/counter", b"%d" % (value + 1))
            outcome = await client.transact([Compare("/counter", revision)], [put])
        except StoreUnavailable:
            continue
        if isinstance(outcome, Conflict):
            continue
        done += 1


def test_one_seed_is_one_story() -> None:
    stories: list[list[Event]] = []
    for _ in range(2):
        happened: list[Event] = []

        async def scene(store: SimStore, happened: list[Event] = happened) -> None:
            store.on_commit = happened.append
            await asyncio.gather(*(increment(store.client(), 5) for _ in range(3)))

        play(scene, StoreFaults(delay_seconds=(0.0, 1.0), lost_replies=0.2, foreign_changes=0.5), seed=7)
        stories.append(happened)
    assert stories[0] == stories[1]


def test_who_is_held_back_is_answered_and_shown_nothing() -> None:
    async def scene(store: SimStore) -> None:
        client = store.client()
        client.watch_events_flow.clear()
        async with aclosing(client.watch("/", store.revision)) as events:
            shown = asyncio.ensure_future(anext(events))
            assert isinstance(await client.transact([], [Put("/a", b"")]), CommittedTransaction)
            await asyncio.sleep(60)
            assert not shown.done()
            client.watch_events_flow.set()
            assert (await shown).changes == (Put("/a", b""),)

    play(scene)


@pytest.mark.parametrize("loses_reply", [True, False])
def test_what_is_ambushed_happens_after_it_was_given_up_or_unsaid(loses_reply: bool) -> None:
    async def scene(store: SimStore) -> None:
        client = store.client()

        def ambush(changes: Sequence[StoreChange]) -> RequestFault | None:
            if changes != [Put("/b", b"")]:
                return None
            return (
                RequestFault(0.0, loses_reply=True) if loses_reply else RequestFault(5.0, loses_reply=False)
            )

        store.ambush = ambush
        assert isinstance(await client.transact([], [Put("/a", b"")]), CommittedTransaction)
        with pytest.raises(StoreUnavailable):
            await client.transact([], [Put("/b", b"")])
        assert ("/b" in store.entries) is loses_reply
        await asyncio.sleep(2)
        assert "/b" in store.entries

    play(scene)
