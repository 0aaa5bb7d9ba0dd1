"""Errors over HTTP: a status, a code for programs and a sentence for people, always as JSON."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import web

from penstock.broker.groups.cluster_groups import GroupsUnavailable
from penstock.errors import ApiError, ErrorCode

HttpHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_JSON: Final = "application/json"
_UNAUTHORISED: Final = 401
_RETRIABLE: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class HttpError(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def json_reply(content: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type=_JSON)


@web.middleware
async def errors_as_json(request: web.Request, handler: HttpHandler) -> web.StreamResponse:
    try:
        return await handler(request)
    except HttpError as rejection:
        return _error_reply(rejection.status, rejection.code, str(rejection))
    except ApiError as rejection:
        if rejection.code not in _RETRIABLE:
            raise
        sentence = "The groups are being loaded from the log. Try again in a moment."
        return _error_reply(503, "loading", sentence)
    except GroupsUnavailable as problem:
        return _error_reply(503, "coordinator_unavailable", str(problem))
    except web.HTTPNotFound:
        return _error_reply(404, "not_found", f"There is nothing at {request.path}. See docs/http.md.")
    except web.HTTPMethodNotAllowed as rejection:
        allowed = ", ".join(sorted(rejection.allowed_methods))
        sentence = f"{request.path} takes {allowed}, not {request.method}."
        reply = _error_reply(405, "method_not_allowed", sentence)
        reply.headers["Allow"] = allowed
        return reply


def _error_reply(status: int, code: str, message: str) -> web.Response:
    reply = json_reply({"error": {"code": code, "message": message}}, status)
    if status == _UNAUTHORISED:
        reply.headers["WWW-Authenticate"] = "Bearer"
    return reply
