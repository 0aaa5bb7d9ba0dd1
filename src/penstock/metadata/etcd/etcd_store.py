"""The metadata store of a cluster: etcd, accessed through its JSON gateway.

Revisions are etcd's own, which also count the changes of other users of the same etcd. A session is an etcd
lease.

Rule 1: a snapshot shows one revision, however many pages it takes.
Rule 2: a conflict over a key that exists carries its revision. For a deleted key, etcd does not report the
        revision of the deletion, so the caller has to wait for the watch or to read again.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from penstock.host.http_endpoints import HttpEndpoints
from penstock.host.metadata_store import (
    CommittedTransaction,
    Compare,
    Conflict,
    Event,
    HistoryCompacted,
    SessionId,
    Snapshot,
    StoreChange,
    StoreEntry,
    StoreRejected,
    StoreUnavailable,
    require_well_formed,
)
from penstock.host.tls import ClientTls
from penstock.limits import ETCD_CALL_MS_MAX, ETCD_PAGE_ENTRIES
from penstock.metadata.etcd.client import EtcdClient, LeaseNotFound
from penstock.metadata.etcd.messages import (
    CHANGES_MAX,
    GRANT,
    KEEP_ALIVE,
    RANGE,
    REVOKE,
    TRANSACTION,
    WATCH,
    Lease,
    LeaseRenewal,
    MalformedAnswer,
    RangeResponse,
    TransactionResponse,
    decode,
    encode,
    probe_request,
    range_request,
    transaction_request,
    watch_request,
)
from penstock.metadata.etcd.url import EtcdUrl
from penstock.metadata.etcd.watch import WatchParser

T = TypeVar("T")

READ_ATTEMPTS_MAX = 3


class EtcdStore:
    """A MetadataStore. Must be created within a running event loop."""

    changes_max = CHANGES_MAX

    def __init__(
        self,
        url: EtcdUrl,
        *,
        page_entries: int = ETCD_PAGE_ENTRIES,
        call_ms_max: int = ETCD_CALL_MS_MAX,
    ) -> None:
        """ConfigError if a file named in the URL cannot be used."""
        tls = None if url.tls is None else ClientTls(*url.tls).context()
        endpoints = HttpEndpoints(url.base_urls, tls)
        self._client = EtcdClient(endpoints, url.user, url.password, call_ms_max)
        self._root = url.root
        self._page_entries = page_entries

    async def read(self, prefix: str) -> Snapshot:
        for _ in range(READ_ATTEMPTS_MAX):
            try:
                return await self._read(prefix)
            except HistoryCompacted as gone:
                problem = gone  # compacted between two pages
        raise StoreUnavailable(f"etcd compacts faster than it can be read: {problem}")

    async def _read(self, prefix: str) -> Snapshot:
        entries: dict[str, StoreEntry] = {}
        after: bytes | None = None
        revision: int | None = None
        skip = len(self._root)
        while True:
            request = range_request(
                self._root + prefix, after=after, revision=revision, limit=self._page_entries
            )
            page = _read_as(RangeResponse, await self._client.send(RANGE, request))
            # The first page fixes the revision that all further pages are read at.
            if revision is None:
                revision = page.header.revision
            for found in page.kvs:
                entries[found.key[skip:].decode("ascii")] = StoreEntry(found.value, found.mod_revision)
            if not page.more or not page.kvs:
                return Snapshot(revision, entries)
            after = page.kvs[-1].key

    async def transact(
        self, compares: Sequence[Compare], changes: Sequence[StoreChange]
    ) -> CommittedTransaction | Conflict:
        require_well_formed(compares, changes, CHANGES_MAX)
        request = transaction_request(self._root, compares, changes)
        try:
            body = await self._client.send(TRANSACTION, request, repeatable=False)
        except LeaseNotFound as problem:
            raise StoreRejected(f"the session is over; begin a new one ({problem})") from problem
        answer = _read_as(TransactionResponse, body)
        if answer.succeeded:
            return CommittedTransaction(answer.header.revision, has_changed=answer.has_changed)
        return Conflict(_conflict_revision(compares, answer))

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Event, None]:
        whole = self._root + prefix
        reading = WatchParser(self._root)
        request = watch_request(whole, after_revision + 1)
        async with aclosing(self._client.lines(WATCH, request, probe_request(whole))) as lines:
            async for line in lines:
                try:
                    for event in reading.take(line):
                        yield event
                except MalformedAnswer as problem:
                    raise StoreUnavailable(str(problem)) from problem

    async def begin_session(self, ttl_ms: int) -> SessionId:
        # The TTL has whole seconds: rounded up, never shorter than requested.
        request = encode({"TTL": str(-(-ttl_ms // 1000))})
        return SessionId(_read_as(Lease, await self._client.send(GRANT, request)).id)

    async def renew_session(self, session: SessionId) -> bool:
        try:
            body = await self._client.send(KEEP_ALIVE, encode({"ID": str(session)}))
        except LeaseNotFound:
            return False  # etcd usually replies with a TTL of 0 instead
        return _read_as(LeaseRenewal, body).result.ttl > 0

    async def end_session(self, session: SessionId) -> None:
        try:
            await self._client.send(REVOKE, encode({"ID": str(session)}))
        except LeaseNotFound:
            # The lease has expired already, and etcd has deleted its keys.
            return

    async def close(self) -> None:
        await self._client.close()


def _conflict_revision(compares: Sequence[Compare], answer: TransactionResponse) -> int | None:
    """The latest revision of the compared keys that exist and have changed; None if there are none."""
    moved = []
    for compare, response in zip(compares, answer.responses, strict=True):
        found = response.response_range.kvs if response.response_range is not None else []
        if found and found[0].mod_revision != compare.revision:
            moved.append(found[0].mod_revision)
    return max(moved, default=None)


def _read_as(kind: type[T], body: bytes) -> T:
    try:
        return decode(kind, body)
    except MalformedAnswer as problem:
        # A proxy replied instead of etcd: whether etcd executed the request is unknown.
        raise StoreUnavailable(str(problem)) from problem
