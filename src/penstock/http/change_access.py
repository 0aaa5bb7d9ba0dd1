"""Authorizes changes over HTTP: all requests but GET and HEAD.

A listener on a loopback address accepts changes from every process that reaches it, which is every process on
this machine, unless the broker has tokens. On any other listener a change needs a bearer token. Tokens are
kept as SHA-256 in a file (`http.tokens.file`), one line with a name for each. The file is read again for
every change, so a token whose line was removed is no longer valid.

A web page must not change anything without the consent of the person who views it. Such a request carries an
Origin, or has a form's content type, or reaches a loopback address under a name that the page's owner chose
(DNS rebinding). Each of these is rejected where no token is needed. Where a token is needed, the page does
not have it.

Rule: this is a middleware, so that it also protects routes that are added later.
"""

import asyncio
import hashlib
import hmac
import socket
from ipaddress import ip_address
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from penstock.config.listeners import Address
from penstock.errors import ConfigError
from penstock.http.errors import HttpError, HttpHandler
from penstock.http.tokens import Token, read_tokens
from penstock.observability.logs import Log

_READING: Final = ("GET", "HEAD")
_BEARER: Final = "bearer "
_REMEDY: Final = "Give one of those in http.tokens.file, with --token-file or PENSTOCK_TOKEN"


class ChangeAccess:
    def __init__(self, listening: socket.socket, tokens_path: str | None, log: Log) -> None:
        self._is_loopback = is_loopback(listening)
        self._tokens_path = tokens_path
        self._log = log

    async def require(self, request: web.Request) -> None:
        """Raise HttpError unless the client may change something."""
        # A form cannot send this content type, so a page in a browser needs a CORS preflight, which no route
        # allows.
        if request.content_type != "application/json":
            detail = "Send Content-Type: application/json with what changes something."
            raise HttpError(415, "not_json", detail)
        if self._tokens_path is not None:
            token = await self._known_token(request, self._tokens_path)
            self._log.info("http.change", by=token.name, method=request.method, path=request.path)
            return
        if not self._is_loopback:
            raise HttpError(
                403,
                "no_tokens",
                "Other machines reach this listener, so changes need a token, and this broker has none: name "
                "a file of tokens with http.tokens.file, or send the request to a listener on 127.0.0.1.",
            )
        _require_no_browser(request)

    async def _known_token(self, request: web.Request, path: str) -> Token:
        try:
            tokens = await asyncio.to_thread(read_tokens, path)
        except ConfigError as problem:
            # The path of the file goes to the log only, not to an unauthenticated client.
            self._log.error("http.tokens_unreadable", reason=str(problem))
            detail = (
                "The file of tokens cannot be used, so nothing can be changed. The broker's log says why."
            )
            raise HttpError(503, "tokens_unreadable", detail) from problem
        given = request.headers.get("Authorization", "")
        if given[: len(_BEARER)].lower() != _BEARER:
            raise HttpError(401, "token_required", f"Changes need a token. {_REMEDY}.")
        digest = hashlib.sha256(given[len(_BEARER) :].strip().encode(errors="surrogateescape")).hexdigest()
        # All tokens are compared, and each in constant time, so that the duration reveals nothing about any
        # of them.
        found = [token for token in tokens if hmac.compare_digest(token.digest, digest)]
        if not found:
            raise HttpError(401, "token_unknown", f"This broker does not know the token. {_REMEDY}.")
        return found[0]


def access_middleware(access: ChangeAccess) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: HttpHandler) -> web.StreamResponse:
        # An unknown path or method changes nothing, and keeps its own error (404 or 405).
        if request.method not in _READING and request.match_info.http_exception is None:
            await access.require(request)
        return await handler(request)

    return middleware


def is_loopback(listening: socket.socket) -> bool:
    """Whether only processes of this machine reach the socket."""
    host = str(listening.getsockname()[0])
    return ip_address(host.partition("%")[0]).is_loopback


def _require_no_browser(request: web.Request) -> None:
    # Browsers send an Origin with every POST. No other client has a reason to.
    if "Origin" in request.headers:
        detail = "A request with an Origin comes from a page in a browser, which may change nothing here."
        raise HttpError(403, "from_a_page", detail)
    # DNS rebinding: the browser connects to a loopback address, but names the host of the page.
    host = _host_of(request.host)
    if not Address(host, 0).is_loopback:
        detail = (
            f"The request names the host {host!r}. Name the broker by 127.0.0.1, [::1] or localhost, or give "
            "it tokens with http.tokens.file."
        )
        raise HttpError(403, "wrong_host", detail)


def _host_of(text: str) -> str:
    """The host without the port, and without the brackets of IPv6."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] or text
