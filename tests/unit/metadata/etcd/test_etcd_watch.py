"""A stream of etcd becomes whole transactions, however it is cut; and what its failures mean."""

import json
from base64 import b64encode
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.host.metadata_store import (
    Delete,
    Event,
    HistoryCompacted,
    Put,
    SessionId,
    StoreRejected,
    StoreUnavailable,
)
from penstock.metadata.etcd.messages import EtcdError, FailureKind, MalformedAnswer, failure_kind
from penstock.metadata.etcd.watch import WatchParser


def line(*events: dict[str, Any], **more: Any) -> bytes:
    result = {"header": {"revision": "99"}, **more}
    if events:
        result["events"] = list(events)
    return json.dumps({"result": result}).encode()


def put(key: str, revision: int, value: bytes = b"v", lease: int = 0) -> dict[str, Any]:
    kv = {
        "key": b64encode(key.encode()).decode(),
        "mod_revision": str(revision),
        "value": b64encode(value).decode(),
    }
    if lease:
        kv["lease"] = str(lease)
    return {"kv": kv}


def delete(key: str, revision: int) -> dict[str, Any]:
    return {"type": "DELETE", "kv": {"key": b64encode(key.encode()).decode(), "mod_revision": str(revision)}}


def read(*lines: bytes, root: str = "") -> list[Event]:
    reading = WatchParser(root)
    return [event for each in lines for event in reading.take(each)]


def test_several_transactions_in_one_message_are_told_apart() -> None:
    found = read(
        line(created=True), line(put("/a", 5), delete("/b", 5), put("/a", 7, b"", lease=2**62)), line()
    )
    assert found == [
        Event(5, (Put("/a", b"v"), Delete("/b"))),
        Event(7, (Put("/a", b"", SessionId(2**62)),)),
    ]


def test_the_root_is_left_out() -> None:
    assert read(line(put("/root/k", 1)), root="/root") == [Event(1, (Put("/k", b"v"),))]


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    cuts=st.sets(st.integers(1, 35), max_size=8),
)
def test_fragments_are_put_together_wherever_they_are_cut(sizes: list[int], cuts: set[int]) -> None:
    changes = [put(f"/{index}", revision) for revision, size in enumerate(sizes, 1) for index in range(size)]
    bounds = sorted({0, len(changes), *(cut for cut in cuts if cut < len(changes))})
    pieces = [changes[start:end] for start, end in pairwise(bounds)]
    lines = [line(*piece, fragment=True) for piece in pieces[:-1]]
    assert read(*lines) == []
    found = read(*lines, line(*pieces[-1]))
    assert [(event.revision, len(event.changes)) for event in found] == list(enumerate(sizes, 1))


def test_a_sign_of_life_is_no_event() -> None:
    """Some versions of etcd send it before what happened up to its revision."""
    assert read(line()) == []


@pytest.mark.parametrize(
    ("said", "exception"),
    [
        (line(canceled=True, compact_revision="7"), HistoryCompacted),
        (line(canceled=True, cancel_reason="etcdserver: no leader"), StoreUnavailable),
        (line(canceled=True), StoreUnavailable),
        (line(canceled=True, cancel_reason="etcdserver: permission denied"), StoreRejected),
        (b'{"error":{"grpc_code":14,"message":"no leader"}}', StoreUnavailable),
        (b"<html>", MalformedAnswer),
    ],
)
def test_how_a_watch_ends(said: bytes, exception: type[Exception]) -> None:
    with pytest.raises(exception):
        read(said)


@pytest.mark.parametrize(
    ("status", "code", "text", "trouble"),
    [
        (503, 14, "etcdserver: no leader", FailureKind.NOT_DONE),
        (503, 14, "etcdserver: leader changed", FailureKind.UNKNOWN),
        (503, 14, "etcdserver: request timed out", FailureKind.UNKNOWN),
        (504, 4, "context deadline exceeded", FailureKind.UNKNOWN),
        (502, 0, "HTTP status 502", FailureKind.UNKNOWN),
        (429, 8, "etcdserver: too many requests", FailureKind.NOT_DONE),
        (429, 8, "etcdserver: mvcc: database space exceeded", FailureKind.FULL),
        (401, 16, "etcdserver: invalid auth token", FailureKind.UNAUTHENTICATED),
        (400, 3, "etcdserver: revision of auth store is old", FailureKind.UNAUTHENTICATED),
        (400, 11, "etcdserver: mvcc: required revision has been compacted", FailureKind.COMPACTED),
        (404, 5, "etcdserver: requested lease not found", FailureKind.NO_SESSION),
        (400, 3, "etcdserver: too many operations in txn request", FailureKind.REFUSED),
        (403, 7, "etcdserver: permission denied", FailureKind.REFUSED),
        (404, 0, "HTTP status 404", FailureKind.REFUSED),
    ],
)
def test_what_a_failure_means(status: int, code: int, text: str, trouble: FailureKind) -> None:
    assert failure_kind(status, EtcdError(code, text)) is trouble
