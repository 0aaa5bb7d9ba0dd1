"""Asking etcd: which member, as whom, how long, and what its failures mean.

Rule 1: a question (anything that may be asked twice) is asked of one member after another until one
        answers or patience ends. A transaction is repeated only if no member can have received it,
        or the one that did says that it was not done.
Rule 2: a member without a leader answers nothing: it is asked to say so instead of waiting.
Rule 3: a token that is no longer good is renewed.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from penstock.host.http_endpoints import Answer, HttpEndpoints, NoAnswer
from penstock.host.metadata_store import HistoryGone, StoreAway, StoreFull, StoreRefuses
from penstock.limits import (
    ETCD_PATIENCE_MS_MAX,
    ETCD_PAUSE_MS,
    ETCD_QUESTION_MS_MAX,
    ETCD_TRANSACTION_MS_MAX,
)
from penstock.metadata.etcd.messages import (
    AUTHENTICATE,
    RANGE,
    Failure,
    Token,
    Trouble,
    Unreadable,
    decode,
    encode,
    refusal_of,
    trouble_of,
)

_OK = 200
_OF_THIS_MEMBER = (Trouble.NOT_DONE, Trouble.UNKNOWN)
_HEADERS = {"Content-Type": "application/json", "Grpc-Metadata-Hasleader": "true"}


class SessionOver(Exception):
    """etcd does not know the lease."""


class _AskAgain(Exception):
    """It was not done, or may be asked twice."""


class EtcdClient:
    def __init__(
        self,
        endpoints: HttpEndpoints,
        user: str | None,
        password: str,
        patience_ms_max: int = ETCD_PATIENCE_MS_MAX,
    ) -> None:
        self._endpoints = endpoints
        self._patience_ms_max = patience_ms_max
        self._user = user
        self._password = password
        self._token: str | None = None

    async def ask(self, path: str, request: bytes) -> bytes:
        """For what may be asked twice. StoreAway if nobody answers for as long as patience lasts."""
        return await self._ask(path, request, repeatable=True)

    async def transact(self, path: str, request: bytes) -> bytes:
        """For what may not. StoreAway if it is unknown whether it was done."""
        return await self._ask(path, request, repeatable=False)

    async def close(self) -> None:
        await self._endpoints.close()

    async def _ask(self, path: str, request: bytes, *, repeatable: bool) -> bytes:
        ends_at = self._endpoints.now() + self._patience_ms_max / 1000
        asked = 0
        while True:
            try:
                return await self._attempt(path, request, repeatable=repeatable)
            except _AskAgain as again:
                asked += 1
                if asked % len(self._endpoints) == 0:
                    await self._endpoints.pause(ETCD_PAUSE_MS / 1000)  # everybody has been asked
                if self._endpoints.now() >= ends_at:
                    raise StoreAway(str(again)) from again

    async def _attempt(self, path: str, request: bytes, *, repeatable: bool) -> bytes:
        url = self._endpoints.current
        timeout_s = (ETCD_QUESTION_MS_MAX if repeatable else ETCD_TRANSACTION_MS_MAX) / 1000
        try:
            headers = await self._headers(url)
            answer = await self._endpoints.post(url, path, request, headers, timeout_s)
        except NoAnswer as silence:
            self._endpoints.leave(url)
            if silence.may_be_received and not repeatable:
                raise StoreAway(str(silence)) from silence
            raise _AskAgain(str(silence)) from silence
        if answer.status == _OK:
            return answer.body
        failure = _failure(answer)
        trouble, said = trouble_of(answer.status, failure), f"{url}: {failure.text}"
        if trouble is Trouble.STRANGER and self._user is not None:
            self._forget(headers)
            raise _AskAgain(said)
        if trouble not in _OF_THIS_MEMBER:
            raise _exception(trouble, failure)
        self._endpoints.leave(url)
        if trouble is Trouble.UNKNOWN and not repeatable:
            raise StoreAway(said)
        raise _AskAgain(said)

    async def lines(self, path: str, request: bytes, probe: bytes) -> AsyncGenerator[bytes, None]:
        """An answer without end. StoreAway when it breaks, and the next one is of another member.

        `probe` is what the member is asked while it is silent.
        """
        url = self._endpoints.current

        async def is_alive() -> None:
            timeout_s = ETCD_QUESTION_MS_MAX / 1000
            answer = await self._endpoints.post(url, RANGE, probe, await self._headers(url), timeout_s)
            failure = _failure(answer)
            if answer.status != _OK and trouble_of(answer.status, failure) in _OF_THIS_MEMBER:
                raise NoAnswer(f"{url}: {failure.text}", may_be_received=True)

        headers: dict[str, str] = {}
        try:
            headers = await self._headers(url)
            async with aclosing(self._endpoints.stream(url, path, request, headers, is_alive)) as answers:
                async for answer in answers:
                    if answer.status != _OK:
                        failure = _failure(answer)
                        raise _exception(trouble_of(answer.status, failure), failure)
                    yield answer.body
            raise StoreAway(f"{url} ended the answer")
        except NoAnswer as silence:
            raise StoreAway(str(silence)) from silence
        finally:
            # However it ended, the next one begins with another member and a token that is good.
            self._forget(headers)
            self._endpoints.leave(url)

    def _forget(self, headers: Mapping[str, str]) -> None:
        """The token in these, if it is still the one in use."""
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
                url, AUTHENTICATE, request, _HEADERS, ETCD_QUESTION_MS_MAX / 1000
            )
        except NoAnswer as silence:
            # What was to be asked with the token has not been asked.
            raise NoAnswer(str(silence), may_be_received=False) from silence
        if answer.status == _OK:
            return _token(answer.body)
        failure = _failure(answer)
        trouble = trouble_of(answer.status, failure)
        if trouble in _OF_THIS_MEMBER:
            raise NoAnswer(f"{url}: {failure.text}", may_be_received=False)
        raise StoreRefuses(refusal_of(failure.text))


def _failure(answer: Answer) -> Failure:
    try:
        return decode(Failure, answer.body)
    except Unreadable:
        # Something between us and etcd answers in its stead.
        return Failure(message=f"HTTP status {answer.status}")


def _token(body: bytes) -> str:
    try:
        return decode(Token, body).token
    except Unreadable as problem:
        raise StoreAway(str(problem)) from problem


def _exception(trouble: Trouble, failure: Failure) -> Exception:
    match trouble:
        case Trouble.FULL:
            return StoreFull(
                f"etcd is full ({failure.text}): compact and defragment it, or raise --quota-backend-bytes, "
                "then clear the alarm with etcdctl alarm disarm"
            )
        case Trouble.COMPACTED:
            return HistoryGone(failure.text)
        case Trouble.NO_SESSION:
            return SessionOver(failure.text)
        case Trouble.REFUSED | Trouble.STRANGER:
            return StoreRefuses(refusal_of(failure.text))
        case Trouble.NOT_DONE | Trouble.UNKNOWN:
            return StoreAway(failure.text)
