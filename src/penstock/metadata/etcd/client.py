"""Requests to etcd: choice of the member, authentication, time limits, and the meaning of failures.

Rule 1: an idempotent request is sent to one member after another until one replies or the time limit of the
        call is over. A transaction is repeated only if no member can have received it, or if the member that
        received it replied that it was not executed.
Rule 2: a member that has no leader must fail a request at once (the `hasleader` header) instead of waiting.
Rule 3: a token that a member rejects is discarded, and the next request authenticates again. A stream cannot
        find this out, so a request precedes it.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from penstock.host.http_endpoints import HttpEndpoints, HttpReply, HttpUnavailable
from penstock.host.metadata_store import HistoryCompacted, StoreFull, StoreRejected, StoreUnavailable
from penstock.limits import (
    ETCD_CALL_MS_MAX,
    ETCD_PAUSE_MS,
    ETCD_REQUEST_MS_MAX,
    ETCD_TRANSACTION_MS_MAX,
)
from penstock.metadata.etcd.messages import (
    AUTHENTICATE,
    RANGE,
    AuthenticateResponse,
    EtcdError,
    FailureKind,
    MalformedAnswer,
    decode,
    decode_failure,
    encode,
    failure_kind,
    rejection_text,
)

_OK = 200
_RETRY_WITH_OTHER_MEMBER = (FailureKind.NOT_DONE, FailureKind.UNKNOWN)
_HEADERS = {"Content-Type": "application/json", "Grpc-Metadata-Hasleader": "true"}


class LeaseNotFound(Exception):
    """The lease does not exist in etcd, or has expired."""


class _Retry(Exception):
    """The request was not executed, or is idempotent: it may be sent again."""


class EtcdClient:
    def __init__(
        self,
        endpoints: HttpEndpoints,
        user: str | None,
        password: str,
        call_ms_max: int = ETCD_CALL_MS_MAX,
    ) -> None:
        self._endpoints = endpoints
        self._call_ms_max = call_ms_max
        self._user = user
        self._password = password
        self._token: str | None = None

    async def send(self, path: str, request: bytes, *, repeatable: bool = True) -> bytes:
        """Send a request. StoreUnavailable: no member replied within the time limit of the call; or, for a
        request that may not be repeated, its outcome is unknown.
        """
        ends_at = self._endpoints.now() + self._call_ms_max / 1000
        attempts = 0
        while True:
            try:
                return await self._attempt(path, request, repeatable=repeatable)
            except _Retry as again:
                attempts += 1
                if attempts % len(self._endpoints) == 0:
                    await self._endpoints.pause(ETCD_PAUSE_MS / 1000)  # a full round of members has failed
                if self._endpoints.now() >= ends_at:
                    raise StoreUnavailable(str(again)) from again

    async def close(self) -> None:
        await self._endpoints.close()

    async def _attempt(self, path: str, request: bytes, *, repeatable: bool) -> bytes:
        url = self._endpoints.current
        timeout_s = (ETCD_REQUEST_MS_MAX if repeatable else ETCD_TRANSACTION_MS_MAX) / 1000
        try:
            headers = await self._headers(url)
            answer = await self._endpoints.post(url, path, request, headers, timeout_s)
        except HttpUnavailable as silence:
            self._endpoints.fail_over_from(url)
            # The member may have executed the transaction: sending it again could apply it twice.
            if silence.may_be_received and not repeatable:
                raise StoreUnavailable(str(silence)) from silence
            raise _Retry(str(silence)) from silence
        if answer.status == _OK:
            return answer.body
        kind, failure = self._failure(answer, headers)
        detail = f"{url}: {failure.text}"
        if kind is FailureKind.UNAUTHENTICATED and self._user is not None:
            raise _Retry(detail)
        if kind not in _RETRY_WITH_OTHER_MEMBER:
            raise _exception(kind, failure)
        self._endpoints.fail_over_from(url)
        # The same without a lost connection: the member itself does not know the outcome.
        if kind is FailureKind.UNKNOWN and not repeatable:
            raise StoreUnavailable(detail)
        raise _Retry(detail)

    async def lines(self, path: str, request: bytes, probe: bytes) -> AsyncGenerator[bytes, None]:
        """The lines of an endless reply (a watch). StoreUnavailable when the connection breaks; the next call
        uses another member.

        `probe` is a request that needs no other permission than the stream. It renews the token before the
        stream begins (Rule 3), and checks whether the member is alive while it sends nothing.
        """
        if self._user is not None:
            # etcd before 3.5.6 cancels a watch with an expired token as it does the watch of a user without
            # a role, with "permission denied". Its reply to a request tells the two apart.
            await self.send(RANGE, probe)
        url = self._endpoints.current

        async def is_alive() -> None:
            timeout_s = ETCD_REQUEST_MS_MAX / 1000
            answer = await self._endpoints.post(url, RANGE, probe, await self._headers(url), timeout_s)
            failure = _parse_failure(answer)
            if answer.status != _OK and failure_kind(answer.status, failure) in _RETRY_WITH_OTHER_MEMBER:
                raise HttpUnavailable(f"{url}: {failure.text}", may_be_received=True)

        try:
            headers = await self._headers(url)
            async with aclosing(self._endpoints.stream(url, path, request, headers, is_alive)) as answers:
                async for answer in answers:
                    if answer.status != _OK:
                        raise _exception(*self._failure(answer, headers))
                    yield answer.body
            raise StoreUnavailable(f"{url} ended the answer")
        except HttpUnavailable as silence:
            raise StoreUnavailable(str(silence)) from silence
        finally:
            # However the stream ended, the next one begins with another member.
            self._endpoints.fail_over_from(url)

    def _failure(self, answer: HttpReply, headers: Mapping[str, str]) -> tuple[FailureKind, EtcdError]:
        """Parse the failure of a request with these headers. A token that was rejected is discarded."""
        failure = _parse_failure(answer)
        kind = failure_kind(answer.status, failure)
        if kind is FailureKind.UNAUTHENTICATED:
            self._discard_token(headers)
        return kind, failure

    def _discard_token(self, headers: Mapping[str, str]) -> None:
        """Discard the token in these headers, if it is still the current one."""
        # A concurrent request may have renewed the token already.
        if self._token == headers.get("Authorization"):
            self._token = None

    async def _headers(self, url: str) -> dict[str, str]:
        if self._user is None:
            return _HEADERS
        if self._token is None:
            self._token = await self._authenticate(url, self._user)
        return {**_HEADERS, "Authorization": self._token}

    async def _authenticate(self, url: str, user: str) -> str:
        request = encode({"name": user, "password": self._password})
        try:
            answer = await self._endpoints.post(
                url, AUTHENTICATE, request, _HEADERS, ETCD_REQUEST_MS_MAX / 1000
            )
        except HttpUnavailable as silence:
            # The request that needed the token was never sent.
            raise HttpUnavailable(str(silence), may_be_received=False) from silence
        if answer.status == _OK:
            return _token(answer.body)
        failure = _parse_failure(answer)
        if failure_kind(answer.status, failure) in _RETRY_WITH_OTHER_MEMBER:
            raise HttpUnavailable(f"{url}: {failure.text}", may_be_received=False)
        raise StoreRejected(rejection_text(failure.text))


def _parse_failure(answer: HttpReply) -> EtcdError:
    try:
        return decode_failure(answer.body)
    except MalformedAnswer:
        # A proxy between the broker and etcd replied instead of etcd.
        return EtcdError(message=f"HTTP status {answer.status}")


def _token(body: bytes) -> str:
    try:
        return decode(AuthenticateResponse, body).token
    except MalformedAnswer as problem:
        raise StoreUnavailable(str(problem)) from problem


def _exception(kind: FailureKind, failure: EtcdError) -> Exception:
    match kind:
        case FailureKind.FULL:
            return StoreFull(
                f"etcd is full ({failure.text}): compact and defragment it, or raise --quota-backend-bytes, "
                "then clear the alarm with etcdctl alarm disarm"
            )
        case FailureKind.COMPACTED:
            return HistoryCompacted(failure.text)
        case FailureKind.NO_SESSION:
            return LeaseNotFound(failure.text)
        case FailureKind.REFUSED | FailureKind.UNAUTHENTICATED:
            return StoreRejected(rejection_text(failure.text))
        case FailureKind.NOT_DONE | FailureKind.UNKNOWN:
            return StoreUnavailable(failure.text)
