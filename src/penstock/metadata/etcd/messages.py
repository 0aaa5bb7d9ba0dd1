"""Requests to etcd and its replies: the JSON form of its gRPC messages.

Keys and values are base64 and large numbers are text, as etcd's gateway writes them. msgspec converts both to
bytes and numbers.

Rule: nothing here waits, and nothing here interprets a key.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import msgspec

from penstock.host.metadata_store import Compare, Delete, Put, StoreChange, prefix_end

CHANGES_MAX = 128
"""Operations that etcd accepts in one transaction by default (--max-txn-ops)."""
NO_END = b"\0"
"""As the end of a range: no end, every key from the beginning on."""

RANGE, TRANSACTION, WATCH = "/v3/kv/range", "/v3/kv/txn", "/v3/watch"
GRANT, KEEP_ALIVE, REVOKE = "/v3/lease/grant", "/v3/lease/keepalive", "/v3/lease/revoke"
AUTHENTICATE = "/v3/auth/authenticate"

T = TypeVar("T")


class Header(msgspec.Struct, frozen=True):
    revision: int = 0


class KeyValue(msgspec.Struct, frozen=True):
    key: bytes
    mod_revision: int = 0
    value: bytes = b""
    lease: int = 0


class RangeResponse(msgspec.Struct, frozen=True):
    header: Header
    kvs: list[KeyValue] = []
    more: bool = False


class DeleteRangeResponse(msgspec.Struct, frozen=True):
    deleted: int = 0


class PutResponse(msgspec.Struct, frozen=True):
    pass


class RangeOpResponse(msgspec.Struct, frozen=True):
    kvs: list[KeyValue] = []


class ResponseOp(msgspec.Struct, frozen=True):
    response_put: PutResponse | None = None
    response_delete_range: DeleteRangeResponse | None = None
    response_range: RangeOpResponse | None = None


class TransactionResponse(msgspec.Struct, frozen=True):
    header: Header
    succeeded: bool = False
    responses: list[ResponseOp] = []

    @property
    def has_changed(self) -> bool:
        return any(
            response.response_put is not None
            or (response.response_delete_range is not None and response.response_delete_range.deleted > 0)
            for response in self.responses
        )


class WatchedEvent(msgspec.Struct, frozen=True):
    kv: KeyValue
    type: str = "PUT"


class WatchResponse(msgspec.Struct, frozen=True):
    header: Header = Header()
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    fragment: bool = False
    events: list[WatchedEvent] = []


class EtcdError(msgspec.Struct, frozen=True):
    """An error reply of etcd."""

    code: int = 0
    message: str = ""
    error: str = ""

    @property
    def text(self) -> str:
        return self.message or self.error


class StreamError(msgspec.Struct, frozen=True):
    """The error that ends a stream. etcd 3.5 and older call the code `grpc_code`."""

    code: int = 0
    grpc_code: int = 0
    message: str = ""


class StreamFailure(msgspec.Struct, frozen=True):
    """The form of an error reply where etcd's reply is a stream: a watch, or the renewal of a lease."""

    error: StreamError


class WatchLine(msgspec.Struct, frozen=True):
    result: WatchResponse | None = None
    error: Any = None


class Lease(msgspec.Struct, frozen=True):
    id: int = msgspec.field(name="ID", default=0)
    ttl: int = msgspec.field(name="TTL", default=0)


class LeaseRenewal(msgspec.Struct, frozen=True):
    result: Lease


class AuthenticateResponse(msgspec.Struct, frozen=True):
    token: str


class MalformedAnswer(Exception):
    """The body is not a reply of etcd."""


def decode(kind: type[T], body: bytes) -> T:
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise MalformedAnswer(f"{body[:200]!r} is not an answer of etcd ({error})") from error


def decode_failure(body: bytes) -> EtcdError:
    """Decode an error reply, of a request or of a stream. MalformedAnswer: etcd did not send it."""
    try:
        return decode(EtcdError, body)
    except MalformedAnswer:
        error = decode(StreamFailure, body).error
        return EtcdError(error.code or error.grpc_code, error.message)


def encode(message: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(message)


# Requests


def range_request(prefix: str, *, after: bytes | None, revision: int | None, limit: int) -> bytes:
    """Request for a page of the entries under `prefix`: those after a key, as of a revision."""
    begin, end = _range(prefix)
    message: dict[str, object] = {"key": begin, "range_end": end, "limit": str(limit)}
    if after is not None:
        # The zero byte makes the range begin just after the last key of the previous page.
        message["key"] = after + b"\0"
    if revision is not None:
        message["revision"] = str(revision)
    return encode(message)


def probe_request(key: str) -> bytes:
    """The cheapest request that a member can serve only while it has a leader."""
    return encode({"key": key.encode("ascii") or NO_END, "count_only": True})


def transaction_request(root: str, compares: Sequence[Compare], changes: Sequence[StoreChange]) -> bytes:
    """Request for a transaction. If the compares fail, the reply contains the current revisions of the
    keys.
    """
    keys = [(root + compare.key).encode("ascii") for compare in compares]
    return encode(
        {
            "compare": [
                {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(compare.revision)}
                for key, compare in zip(keys, compares, strict=True)
            ],
            "success": [_change(root, change) for change in changes],
            "failure": [{"request_range": {"key": key, "keys_only": True}} for key in keys],
        }
    )


def _change(root: str, change: StoreChange) -> dict[str, object]:
    if isinstance(change, Put):
        put: dict[str, object] = {"key": (root + change.key).encode("ascii"), "value": change.value}
        if change.session is not None:
            put["lease"] = str(change.session)
        return {"request_put": put}
    if isinstance(change, Delete):
        return {"request_delete_range": {"key": (root + change.key).encode("ascii")}}
    begin, end = _range(root + change.prefix)
    return {"request_delete_range": {"key": begin, "range_end": end}}


def watch_request(prefix: str, start_revision: int) -> bytes:
    begin, end = _range(prefix)
    create = {
        "key": begin,
        "range_end": end,
        # Long messages come in fragments instead of exceeding gRPC's limit on message size.
        "start_revision": str(start_revision),
        "progress_notify": True,
        "fragment": True,
    }
    return encode({"create_request": create})


def _range(prefix: str) -> tuple[bytes, bytes]:
    if not prefix:
        return NO_END, NO_END
    return prefix.encode("ascii"), prefix_end(prefix).encode("ascii")


# Failures


class FailureKind(Enum):
    """What a failure means for the caller."""

    NOT_DONE = "the member cannot process the request now, and did not apply it"
    UNKNOWN = "the member does not know whether the request was applied"
    UNAUTHENTICATED = "etcd no longer accepts the token; the request was not applied"
    FULL = "etcd has no space; the request that first hit the quota may have been applied"
    COMPACTED = "the revision was compacted"
    NO_SESSION = "the lease has ended; the request was not applied"
    REFUSED = "every member rejects the request"


_BY_TEXT = (
    ("no leader", FailureKind.NOT_DONE),
    ("too many requests", FailureKind.NOT_DONE),
    ("not capable", FailureKind.NOT_DONE),
    ("rpc not supported for learner", FailureKind.NOT_DONE),
    ("invalid auth token", FailureKind.UNAUTHENTICATED),
    ("revision of auth store is old", FailureKind.UNAUTHENTICATED),
    ("database space exceeded", FailureKind.FULL),
    ("has been compacted", FailureKind.COMPACTED),
    ("requested lease not found", FailureKind.NO_SESSION),
)
_UNAUTHENTICATED = 16
# Cancelled, unknown, deadline exceeded, aborted, internal, unavailable, data loss.
_OUTCOME_UNKNOWN = {1, 2, 4, 10, 13, 14, 15}

_REMEDIES = (
    ("request is too large", "etcd takes requests of --max-request-bytes, 1.5 MiB by default: raise it"),
    ("larger than max", "etcd takes requests of --max-request-bytes, 1.5 MiB by default: raise it"),
    ("too many operations", f"etcd must take {CHANGES_MAX} operations in a transaction (--max-txn-ops)"),
    ("user name is empty", "etcd asks who we are: give user:password@ in the address of the metadata store"),
    ("authentication failed", "the user or the password in the address of the metadata store is wrong"),
    ("authentication is not enabled", "leave out user:password@ or enable authentication in etcd"),
    ("permission denied", "the user needs a role in etcd that may read and write the keys of this cluster"),
)


def failure_kind(status: int, failure: EtcdError) -> FailureKind:
    text = failure.text
    for part, trouble in _BY_TEXT:
        if part in text:
            return trouble
    if failure.code == _UNAUTHENTICATED:
        return FailureKind.UNAUTHENTICATED
    # A reply without a gRPC code comes from the gateway or a proxy: a 5xx leaves the outcome unknown.
    if failure.code in _OUTCOME_UNKNOWN or (failure.code == 0 and status >= 500):
        return FailureKind.UNKNOWN
    return FailureKind.REFUSED


def is_permanent_rejection(text: str) -> bool:
    """Whether a retry cannot succeed, on any member."""
    return any(part in text for part, _ in _REMEDIES)


def rejection_text(text: str) -> str:
    """A sentence about the rejection for the operator of the cluster."""
    for part, remedy in _REMEDIES:
        if part in text:
            return f"etcd rejects the request: {text}; {remedy}"
    return f"etcd rejects the request: {text}"
