"""The store on a real etcd: every promise of a store, and what only etcd can do to us."""

import asyncio
import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from penstock.errors import ConfigError
from penstock.host.metadata_store import (
    CommittedTransaction,
    Compare,
    Conflict,
    Event,
    MetadataStore,
    Put,
    StoreEntry,
    StoreFull,
    StoreRejected,
    StoreUnavailable,
)
from penstock.metadata.etcd.etcd_store import EtcdStore
from penstock.metadata.etcd.url import parse_etcd_url
from tests.integration.etcd_process import Etcd, require_etcd, running_etcd
from tests.unit.metadata.store_conformance import CHECKS, Check, events, expect_history_gone, put


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """Shared: each test has keys under a root of its own."""
    with running_etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture
def url(etcd: Etcd, topic: str) -> str:
    return f"{etcd.url}/{topic}"


class Stores:
    """Every one that a test makes, closed in the end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._made: list[EtcdStore] = []

    def connect(self, **limits: int) -> MetadataStore:
        self._made.append(EtcdStore(parse_etcd_url(self._url), **limits))
        return self._made[-1]

    async def __aenter__(self) -> "Stores":
        return self

    async def __aexit__(self, *_: object) -> None:
        for store in self._made:
            await store.close()


def post(etcd: Etcd, path: str, message: dict[str, Any], member: int = 0) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://{etcd.members[member].endpoint}{path}", data=json.dumps(message).encode()
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_etcd_keeps_the_promises_of_a_store(check: Check, url: str) -> None:
    async with Stores(url) as stores:
        await check(stores.connect)


async def test_clusters_under_different_roots_do_not_see_each_other(url: str) -> None:
    async with Stores(f"{url}/one") as first, Stores(f"{url}/other") as second:
        one, other = first.connect(), second.connect()
        revision = await put(one, "/k", value=b"1")
        assert (await other.read("/")).entries == {}
        later = await put(other, "/k", value=b"2")
        assert (await one.read("")).entries == {"/k": StoreEntry(b"1", revision)}
        assert await events(other, "/", revision - 1, 1) == [Event(later, (Put("/k", b"2"),))]


async def test_many_pages_are_one_snapshot(url: str) -> None:
    """Somebody writes between the pages, and what is read shows none of it."""
    async with Stores(url) as stores:
        reader, writer = stores.connect(page_entries=7), stores.connect()
        keys = [f"/k/{number:03}" for number in range(100)]
        revision = await put(writer, *keys)
        stop = asyncio.Event()

        async def disturb() -> None:
            while not stop.is_set():
                await put(writer, *keys[::3], value=b"new")

        disturbing = asyncio.ensure_future(disturb())
        for _ in range(5):
            snapshot = await reader.read("/k/")
            assert list(snapshot.entries) == keys
            changed = {entry.revision for key, entry in snapshot.entries.items() if key in keys[::3]}
            assert len(changed) == 1
            assert max(changed) <= snapshot.revision
        stop.set()
        await disturbing
        assert snapshot.entries["/k/001"].revision == revision


async def test_a_watch_of_what_was_compacted_must_read_again(etcd: Etcd, url: str) -> None:
    async with Stores(url) as stores:
        store = stores.connect()
        first = await put(store, "/k")
        last = await put(store, "/k")
        post(etcd, "/v3/kv/compaction", {"revision": str(last)})
        await expect_history_gone(store.watch("/", first - 1))
        assert (await store.read("/")).entries == {"/k": StoreEntry(b"v", last)}


async def test_a_session_that_nobody_keeps_ends_and_one_that_is_kept_does_not(url: str) -> None:
    async with Stores(url) as stores:
        store = stores.connect()
        kept, left = await store.begin_session(2_000), await store.begin_session(1_500)
        outcome = await store.transact([], [Put("/kept", b"", kept), Put("/left", b"", left)])
        assert isinstance(outcome, CommittedTransaction)

        gone = asyncio.ensure_future(events(store, "/", outcome.revision, 1))
        while not gone.done():
            assert await store.renew_session(kept)
            await asyncio.wait([gone], timeout=0.5)
        assert [change.key for change in gone.result()[0].changes] == ["/left"]
        assert not await store.renew_session(left)
        assert list((await store.read("/")).entries) == ["/kept"]


async def test_a_watch_shows_which_keys_belong_to_a_session(url: str) -> None:
    async with Stores(url) as stores:
        store = stores.connect()
        session = await store.begin_session(60_000)
        start = (await store.read("/")).revision
        await store.transact([], [Put("/live", b"", session)])
        (event,) = await events(store, "/", start, 1)
        assert event.changes == (Put("/live", b"", session),)
        await store.end_session(session)


async def test_what_etcd_will_not_take_is_refused_with_a_remedy(url: str) -> None:
    async with Stores(url) as stores:
        store = stores.connect()
        with pytest.raises(StoreRejected, match="--max-request-bytes"):
            await store.transact([], [Put("/large", bytes(1_700_000))])
        with pytest.raises(StoreRejected, match="--max-request-bytes"):
            await store.transact([], [Put("/larger", bytes(3_000_000))])
        assert (await store.read("/")).entries == {}


async def test_an_etcd_without_space_says_so_and_can_be_read(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as etcd:
        member = etcd.members[0]
        member.stop()
        member.flags = ["--quota-backend-bytes", "100000"]
        member.start()
        member.wait_until_ready()
        async with Stores(etcd.url) as stores:
            store = stores.connect()
            with pytest.raises(StoreFull, match="--quota-backend-bytes"):
                await _fill(store)
            await store.read("/")


async def _fill(store: MetadataStore) -> None:
    """More than enough: etcd sees how large it is with what it next writes to its disk."""
    for number in range(1_000):
        await put(store, f"/k{number}", value=bytes(50_000))


# Members


LITTLE_PATIENCE_MS = 500


async def test_the_next_member_is_asked_when_one_is_gone(tmp_path: Path) -> None:
    with running_etcd(tmp_path, size=3) as etcd:
        async with Stores(etcd.url) as stores:
            store = stores.connect()
            start = await put(store, "/k")
            session = await store.begin_session(6_000)
            watched = store.watch("/", start)
            waiting = asyncio.ensure_future(anext(watched))
            await asyncio.sleep(0.1)
            etcd.members[0].kill()
            with pytest.raises(StoreUnavailable):
                await waiting
            assert await store.renew_session(session)
            assert (await store.read("/")).entries == {"/k": StoreEntry(b"v", start)}
            last = await put(store, "/k", value=b"2")
            assert await events(store, "/", start, 1) == [Event(last, (Put("/k", b"2"),))]


async def test_a_member_that_stalls_is_noticed_and_left(tmp_path: Path) -> None:
    """The kernel keeps its connections alive, so only an answer proves anything."""
    with running_etcd(tmp_path, size=3) as etcd:
        async with Stores(etcd.url) as stores:
            store = stores.connect()
            start = await put(store, "/k")
            waiting = asyncio.ensure_future(anext(store.watch("/", start)))
            await asyncio.sleep(0.1)
            etcd.members[0].pause()
            loop = asyncio.get_running_loop()
            began = loop.time()
            with pytest.raises(StoreUnavailable):
                await waiting
            assert loop.time() - began < 6.0
            assert "/k" in (await store.read("/")).entries
            etcd.members[0].resume()


async def test_a_transaction_at_a_member_that_stalls_is_unknown(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as etcd:
        async with Stores(etcd.url) as stores:
            store = stores.connect()
            revision = await put(store, "/k")
            etcd.members[0].pause()
            with pytest.raises(StoreUnavailable):
                await store.transact([Compare("/k", revision)], [Put("/k", b"2")])
            etcd.members[0].resume()
            # It was received, and nobody waited for the answer.
            outcome = await store.transact([Compare("/k", revision)], [Put("/k", b"3")])
            if isinstance(outcome, Conflict):
                assert (await store.read("/k")).entries["/k"].value == b"2"


async def test_without_a_majority_nothing_is_answered_and_the_watch_ends(tmp_path: Path) -> None:
    with running_etcd(tmp_path, size=3) as etcd:
        async with Stores(etcd.url) as stores:
            store = stores.connect(call_ms_max=LITTLE_PATIENCE_MS)
            start = await put(store, "/k")
            waiting = asyncio.ensure_future(anext(store.watch("/", start)))
            await asyncio.sleep(0.1)
            for member in etcd.members[1:]:
                member.kill()
            with pytest.raises(StoreUnavailable):
                await waiting
            with pytest.raises(StoreUnavailable):
                await store.read("/")
            with pytest.raises(StoreUnavailable):
                await store.transact([], [Put("/k", b"2")])
            for member in etcd.members[1:]:
                member.start()
            for member in etcd.members:
                member.wait_until_ready()
            await put(store, "/k", value=b"3")


async def test_an_etcd_that_is_not_there_is_away_within_seconds() -> None:
    async with Stores("etcd://127.0.0.1:1") as stores:
        store = stores.connect(call_ms_max=LITTLE_PATIENCE_MS)
        async with asyncio.timeout(8):
            with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
                await store.read("/")
            with pytest.raises(StoreUnavailable):
                await anext(store.watch("/", 0))


# Who may


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Etcd]:
    """Users that may use keys under /mine, with tokens that soon expire."""
    with running_etcd(tmp_path) as etcd:
        member = etcd.members[0]
        member.stop()
        member.flags = ["--auth-token-ttl", "1"]
        member.start()
        member.wait_until_ready()
        post(etcd, "/v3/auth/user/add", {"name": "root", "password": "secret"})
        post(etcd, "/v3/auth/user/grant", {"user": "root", "role": "root"})
        post(etcd, "/v3/auth/user/add", {"name": "penstock", "password": "p@ss:word/1"})
        post(etcd, "/v3/auth/role/add", {"name": "mine"})
        permission = {
            "permType": "READWRITE",
            "key": base64.b64encode(b"/mine/").decode(),
            "range_end": base64.b64encode(b"/mine0").decode(),
        }
        post(etcd, "/v3/auth/role/grant", {"name": "mine", "perm": permission})
        post(etcd, "/v3/auth/user/grant", {"user": "penstock", "role": "mine"})
        post(etcd, "/v3/auth/enable", {})
        yield etcd


async def test_a_user_is_authenticated_again_when_the_token_has_expired(guarded: Etcd) -> None:
    endpoint = guarded.members[0].endpoint
    async with Stores(f"etcd://penstock:p%40ss%3Aword%2F1@{endpoint}/mine") as stores:
        # A store each: the first call that finds the token expired renews it for all later ones.
        writer, reader, watcher, member = (stores.connect() for _ in range(4))
        start = await put(writer, "/k")
        await reader.read("/")
        await watcher.read("/")
        session = await member.begin_session(60_000)
        await asyncio.sleep(2.5)
        last = await put(writer, "/k", value=b"2")
        assert (await reader.read("/")).entries == {"/k": StoreEntry(b"2", last)}
        assert await events(watcher, "/", start, 1) == [Event(last, (Put("/k", b"2"),))]
        assert await member.renew_session(session)


async def test_who_may_not_is_told_what_to_do(guarded: Etcd) -> None:
    endpoint = guarded.members[0].endpoint
    refusals = {
        f"etcd://{endpoint}/mine": "give user:password@",
        f"etcd://penstock:wrong@{endpoint}/mine": "password .* is wrong",
        f"etcd://penstock:p%40ss%3Aword%2F1@{endpoint}/yours": "needs a role",
    }
    for url, remedy in refusals.items():
        async with Stores(url) as stores:
            store = stores.connect()
            with pytest.raises(StoreRejected, match=remedy):
                await store.read("/")
            with pytest.raises(StoreRejected, match=remedy):
                await store.transact([], [Put("/k", b"")])
            with pytest.raises(StoreRejected, match=r"needs a role|password"):
                await anext(store.watch("/", 1))


async def test_a_password_that_nobody_asks_for_is_refused(etcd: Etcd) -> None:
    async with Stores(f"etcd://user:password@{etcd.members[0].endpoint}") as stores:
        with pytest.raises(StoreRejected, match="authentication is not enabled"):
            await stores.connect().read("/")


# TLS


class Secured(NamedTuple):
    etcd: Etcd
    options: dict[str, str]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    """It shows a certificate and wants one."""
    authority = trustme.CA()
    ours = authority.issue_cert("penstock")
    theirs = authority.issue_cert("127.0.0.1")
    files = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key", "server", "server-key")}
    authority.cert_pem.write_to_path(files["ca"])
    ours.cert_chain_pems[0].write_to_path(files["cert"])
    ours.private_key_pem.write_to_path(files["key"])
    theirs.cert_chain_pems[0].write_to_path(files["server"])
    theirs.private_key_pem.write_to_path(files["server-key"])
    require_etcd()
    etcd = Etcd(tmp_path)
    (member,) = etcd.members
    member.scheme = "https"
    member.flags = ["--cert-file", files["server"], "--key-file", files["server-key"]]
    member.flags += ["--trusted-ca-file", files["ca"], "--client-cert-auth"]
    try:
        etcd.start()
        yield Secured(etcd, files)
    finally:
        etcd.stop()


async def test_etcd_is_reached_over_tls_with_a_certificate_of_ours(secured: Secured) -> None:
    paths = secured.options
    url = f"{secured.etcd.url}?ca={paths['ca']}&cert={paths['cert']}&key={paths['key']}"
    async with Stores(url) as stores:
        store = stores.connect()
        start = await put(store, "/k")
        last = await put(store, "/k", value=b"2")
        assert await events(store, "/", start, 1) == [Event(last, (Put("/k", b"2"),))]


async def test_without_trust_on_both_sides_etcd_is_away(secured: Secured) -> None:
    for options in (f"ca={secured.options['ca']}", "tls=true", "tls=false"):
        async with Stores(f"{secured.etcd.url}?{options}") as stores:
            with pytest.raises(StoreUnavailable):
                await stores.connect(call_ms_max=LITTLE_PATIENCE_MS).read("/")


async def test_a_certificate_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no file /absent/ca\.pem"):
        EtcdStore(parse_etcd_url("etcd://localhost?ca=/absent/ca.pem"))
