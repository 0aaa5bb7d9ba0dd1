"""HTTP requests to one broker at --url, for functions that Kafka's protocol does not have."""

import http.client
import json
import os
import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import typer

from penstock.errors import CommandFailed

# Limit for the reply of an arbitrary server at the given address.
_BODY_BYTES_MAX: Final = 256 * 1024 * 1024


def get_json(url: str, path: str, timeout_s: float) -> Any:
    """Request a JSON document; raise CommandFailed with the broker's error message, or with a remedy."""
    return _ask("GET", url, path, timeout_s, {})


def post_json(url: str, path: str, timeout_s: float, token: str | None = None) -> Any:
    """Send a change. A token is needed unless the broker listens on a loopback address."""
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return _ask("POST", url, path, timeout_s, headers)


def token_of(path: Path | None) -> str | None:
    """Read the token from --token-file, else from PENSTOCK_TOKEN; None if neither is given."""
    if path is None:
        return _checked_token(os.environ.get("PENSTOCK_TOKEN", ""), "PENSTOCK_TOKEN") or None
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is no text"
        raise CommandFailed(f"cannot read --token-file {path}: {reason}.") from problem
    token = _checked_token(text, f"--token-file {path}")
    if not token:
        raise CommandFailed(f"--token-file {path} is empty.")
    return token


def _checked_token(text: str, source: str) -> str:
    token = text.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise CommandFailed(f"{source} must hold one token: printable ASCII characters on one line.")
    return token


def _ask(method: str, url: str, path: str, timeout_s: float, headers: dict[str, str]) -> Any:
    connection = _connection(url, timeout_s)
    try:
        connection.request(method, urlsplit(url).path.rstrip("/") + path, headers=headers)
        response = connection.getresponse()
        status, body = response.status, response.read(_BODY_BYTES_MAX)
    except (OSError, http.client.HTTPException) as problem:
        raise CommandFailed(_unreachable(url, problem, timeout_s)) from problem
    finally:
        connection.close()
    try:
        content = json.loads(body)
    except ValueError as problem:
        raise CommandFailed(
            f"what answers at {url} is no Penstock broker (status {status}). {_REMEDY}"
        ) from problem
    if status != http.client.OK:
        raise CommandFailed(_sentence(content) or f"the broker at {url} answered {status}. {_REMEDY}")
    return content


_REMEDY: Final = (
    "Name its HTTP address, which `penstock serve` prints when it is ready, with --url or PENSTOCK_URL."
)


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https"):
        raise typer.BadParameter(f"{url!r} is not http://host:port", param_hint="--url")
    if parts.scheme == "https":
        return http.client.HTTPSConnection(
            host, port, timeout=timeout_s, context=ssl.create_default_context()
        )
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


def _unreachable(url: str, problem: Exception, timeout_s: float) -> str:
    match problem:
        case ConnectionRefusedError():
            what = "nothing listens there"
        case TimeoutError():
            what = f"no answer within {timeout_s:g} s"
        case http.client.HTTPException():
            what = "what answers there does not speak HTTP"
        case _:
            what = str(getattr(problem, "strerror", None) or problem)
    return f"cannot reach a broker's HTTP side at {url}: {what}. {_REMEDY}"


def _sentence(content: Any) -> str | None:
    """Return the error message of the broker's reply, in the form of docs/http.md."""
    error = content.get("error") if isinstance(content, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else None
