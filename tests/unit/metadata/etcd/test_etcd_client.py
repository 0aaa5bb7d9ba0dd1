"""Whom to ask again, and what must never be asked twice."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from penstock.host.http_endpoints import HttpEndpoints, HttpReply, HttpUnavailable
from penstock.host.metadata_store import SessionId, StoreFull, StoreRejected, StoreUnavailable
from penstock.metadata.etcd.client import EtcdClient
from penstock.metadata.etcd.etcd_store import EtcdStore
from penstock.metadata.etcd.url import parse_etcd_url

ONE, TWO = "http://one", "http://two"
DONE = HttpReply(200, b"done")
NOT_SENT = HttpUnavailable("refused", may_be_received=False)
SILENT = HttpUnavailable("silence", may_be_received=True)


def failure(status: int, code: int, text: str) -> HttpReply:
    return HttpReply(status, json.dumps({"code": code, "message": text}).encode())


NO_LEADER = failure(503, 14, "etcdserver: no leader")
TIMED_OUT = failure(503, 14, "etcdserver: request timed out")
UNAUTHENTICATED = failure(401, 16, "etcdserver: invalid auth token")
DENIED = failure(403, 7, "etcdserver: permission denied")


def stream_failure(status: int, code_name: str, code: int, text: str) -> HttpReply:
    """As etcd replies to the renewal of a lease, which is a stream to it."""
    return HttpReply(status, json.dumps({"error": {code_name: code, "message": text}}).encode())


class FakeEndpoints(HttpEndpoints):
    """Says what it is told to, in turn, and remembers what it was asked. Waiting takes no time."""

    def __init__(self, *says: HttpReply | HttpUnavailable) -> None:
        self._urls = (ONE, TWO)
        self._current = 0
        self._says = list(says)
        self._now = 0.0
        self.asked: list[tuple[str, str]] = []
        self.tokens: list[str | None] = []
        self.stream_tokens: list[str | None] = []
        self._tokens_given = 0

    def now(self) -> float:
        return self._now

    async def pause(self, seconds: float) -> None:
        self._now += seconds

    async def post(
        self, url: str, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> HttpReply:
        if path == "/v3/auth/authenticate":
            self._tokens_given += 1
            return HttpReply(200, b'{"token":"t%d"}' % self._tokens_given)
        self.asked.append((url, path))
        self.tokens.append(headers.get("Authorization"))
        said = self._says.pop(0) if len(self._says) > 1 else self._says[0]
        if isinstance(said, HttpUnavailable):
            raise said
        return said

    async def stream(
        self,
        url: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        is_alive: Callable[[], Awaitable[None]],
    ) -> AsyncGenerator[HttpReply, None]:
        self.stream_tokens.append(headers.get("Authorization"))
        yield DONE


async def outcome(
    says: Sequence[HttpReply | HttpUnavailable], *, repeatable: bool, user: str | None = None
) -> tuple[Any, FakeEndpoints]:
    endpoints = FakeEndpoints(*says)
    client = EtcdClient(endpoints, user, "password")
    try:
        result: Any = await client.send("/path", b"", repeatable=repeatable)
    except (StoreUnavailable, StoreRejected) as problem:
        result = type(problem)
    return result, endpoints


@pytest.mark.parametrize("unknown", [SILENT, TIMED_OUT, HttpReply(502, b"<html>")])
async def test_a_transaction_whose_fate_is_unknown_is_never_sent_again(
    unknown: HttpReply | HttpUnavailable,
) -> None:
    result, endpoints = await outcome([unknown, DONE], repeatable=False)
    assert result is StoreUnavailable
    assert [url for url, _ in endpoints.asked] == [ONE]
    assert endpoints.current == TWO


@pytest.mark.parametrize("unknown", [SILENT, TIMED_OUT, NOT_SENT, NO_LEADER])
async def test_a_question_goes_to_the_next_member(unknown: HttpReply | HttpUnavailable) -> None:
    result, endpoints = await outcome([unknown, DONE], repeatable=True)
    assert result == b"done"
    assert [url for url, _ in endpoints.asked] == [ONE, TWO]
    assert endpoints.current == TWO


@pytest.mark.parametrize("not_done", [NOT_SENT, NO_LEADER])
async def test_a_transaction_that_was_not_done_goes_to_the_next_member(
    not_done: HttpReply | HttpUnavailable,
) -> None:
    result, endpoints = await outcome([not_done, DONE], repeatable=False)
    assert result == b"done"
    assert [url for url, _ in endpoints.asked] == [ONE, TWO]


async def test_a_call_that_no_member_answers_ends() -> None:
    result, endpoints = await outcome([NO_LEADER], repeatable=True)
    assert result is StoreUnavailable
    assert {url for url, _ in endpoints.asked} == {ONE, TWO}
    assert endpoints.now() == pytest.approx(5.0, abs=0.2)


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize(
    "rejection",
    [
        UNAUTHENTICATED,
        stream_failure(401, "grpc_code", 16, "etcdserver: invalid auth token"),
        stream_failure(401, "code", 16, "etcdserver: invalid auth token"),
        stream_failure(400, "code", 3, "etcdserver: revision of auth store is old"),
    ],
)
async def test_a_token_that_is_no_longer_good_is_renewed(rejection: HttpReply, repeatable: bool) -> None:
    result, endpoints = await outcome([rejection, DONE], repeatable=repeatable, user="user")
    assert result == b"done"
    assert endpoints.tokens == ["t1", "t2"]
    assert endpoints.current == ONE


async def first_line(client: EtcdClient) -> bytes:
    async with aclosing(client.lines("/path", b"", b"probe")) as lines:
        return await anext(lines)


async def test_a_stream_begins_with_a_token_that_is_still_good() -> None:
    endpoints = FakeEndpoints(UNAUTHENTICATED, DONE)
    assert await first_line(EtcdClient(endpoints, "user", "password")) == b"done"
    assert endpoints.tokens == ["t1", "t2"]
    assert endpoints.stream_tokens == ["t2"]


async def test_a_stream_without_a_user_needs_no_request_before() -> None:
    endpoints = FakeEndpoints(SILENT)
    assert await first_line(EtcdClient(endpoints, None, "")) == b"done"
    assert endpoints.asked == []


async def test_a_user_without_permission_is_not_authenticated_again() -> None:
    endpoints = FakeEndpoints(DENIED)
    client = EtcdClient(endpoints, "user", "password")
    for _ in range(3):
        with pytest.raises(StoreRejected):
            await client.send("/path", b"")
        with pytest.raises(StoreRejected):
            await first_line(client)
    assert endpoints.tokens == ["t1"] * 6
    assert endpoints.stream_tokens == []


async def test_a_token_that_is_never_good_is_renewed_with_pauses() -> None:
    result, endpoints = await outcome([UNAUTHENTICATED], repeatable=True, user="user")
    assert result is StoreUnavailable
    assert len(endpoints.tokens) <= 2 * 51  # both members in each tenth of a second of five


async def test_a_session_whose_lease_is_gone_is_over() -> None:
    store = EtcdStore(parse_etcd_url("etcd://one"))
    await store.close()
    gone = stream_failure(404, "grpc_code", 5, "etcdserver: requested lease not found")
    store._client = EtcdClient(FakeEndpoints(gone), None, "")
    assert not await store.renew_session(SessionId(1))


async def test_a_late_refusal_does_not_spoil_a_new_token() -> None:
    endpoints = FakeEndpoints(DONE)
    client = EtcdClient(endpoints, "user", "password")
    await client.send("/path", b"")
    client._discard_token({"Authorization": "an older one"})
    await client.send("/path", b"")
    assert endpoints.tokens == ["t1", "t1"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (failure(429, 8, "etcdserver: mvcc: database space exceeded"), StoreFull),
        (failure(400, 3, "etcdserver: request is too large"), StoreRejected),
        (DENIED, StoreRejected),
    ],
)
async def test_what_no_member_will_do_is_asked_once(said: HttpReply, expected: type[Exception]) -> None:
    for repeatable in (True, False):
        result, endpoints = await outcome([said, DONE], repeatable=repeatable)
        assert result is expected
        assert len(endpoints.asked) == 1


def test_two_who_find_a_member_silent_leave_it_once() -> None:
    endpoints = FakeEndpoints(DONE)
    endpoints.fail_over_from(ONE)
    endpoints.fail_over_from(ONE)
    assert endpoints.current == TWO
