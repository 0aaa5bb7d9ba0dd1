"""Who may change something over HTTP, and who is kept from it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.http.tokens import Token, read_tokens
from tests.unit.broker.support import HandlerHarness, running_cluster
from tests.unit.http.http_support import JSON, client_of

DRAIN = "/v1/cluster/brokers/2/drain"
SECRET = "c0ffee" * 8


@pytest.fixture
async def asker() -> AsyncIterator[HandlerHarness]:
    async with running_cluster() as asker:
        yield asker


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# who may\n\n{digest('another')}  someone\n{digest(SECRET).upper()} alice at work\n")
    return path


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def bearing(token: str) -> dict[str, str]:
    return JSON | {"Authorization": f"Bearer {token}"}


async def refused(client: Any, headers: dict[str, str], path: str = DRAIN) -> tuple[int, str]:
    """The status and the code, after which nothing has changed."""
    reply = await client.post(path, headers=headers)
    error = (await reply.json())["error"]
    assert error["message"].endswith(".")
    page = await (await client.get("/v1/cluster")).json()
    assert {broker["state"] for broker in page["brokers"]} == {"admitted"}
    return reply.status, error["code"]


@pytest.mark.parametrize("path", [DRAIN, "/v1/cluster/brokers/2/undrain", "/v1/cluster/balance"])
async def test_beyond_loopback_nothing_changes_without_tokens(asker: HandlerHarness, path: str) -> None:
    async with client_of(asker.cluster, host="0.0.0.0") as client:
        assert await refused(client, JSON, path) == (403, "no_tokens")
        assert await refused(client, bearing(SECRET), path) == (403, "no_tokens")
        assert (await client.get("/v1/cluster/balance")).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
async def test_with_tokens_a_change_needs_one_of_them(asker: HandlerHarness, tokens: Path, host: str) -> None:
    async with client_of(asker.cluster, host=host, tokens=tokens) as client:
        assert await refused(client, JSON) == (401, "token_required")
        assert await refused(client, JSON | {"Authorization": f"Basic {SECRET}"}) == (401, "token_required")
        for wrong in ("c0ffee", SECRET + "0", digest(SECRET), "é"):
            assert await refused(client, bearing(wrong)) == (401, "token_unknown")
        reply = await client.post(DRAIN, headers=JSON)
        assert reply.headers["WWW-Authenticate"] == "Bearer"
        assert (await client.post(DRAIN, headers=bearing(SECRET))).status == 200


async def test_a_token_that_was_removed_counts_no_more(asker: HandlerHarness, tokens: Path) -> None:
    async with client_of(asker.cluster, host="0.0.0.0", tokens=tokens) as client:
        await asyncio.to_thread(tokens.write_text, f"{digest('another')} someone")
        assert await refused(client, bearing(SECRET)) == (401, "token_unknown")
        await asyncio.to_thread(tokens.unlink)
        assert await refused(client, bearing(SECRET)) == (503, "tokens_unreadable")


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Content-Type": "text/plain"}, 415, "not_json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "not_json"),
        (JSON | {"Origin": "http://evil.example"}, 403, "from_a_page"),
        (JSON | {"Origin": "http://127.0.0.1:8080"}, 403, "from_a_page"),
        (JSON | {"Origin": "null"}, 403, "from_a_page"),
        (JSON | {"Host": "evil.example:8080"}, 403, "wrong_host"),
        (JSON | {"Host": "127.0.0.1.evil.example"}, 403, "wrong_host"),
        (JSON | {"Host": "localhost.evil.example:8080"}, 403, "wrong_host"),
        (JSON | {"Host": "[::2]:8080"}, 403, "wrong_host"),
    ],
)
async def test_a_page_in_a_browser_changes_nothing_on_loopback(
    asker: HandlerHarness, headers: dict[str, str], status: int, code: str
) -> None:
    async with client_of(asker.cluster) as client:
        assert await refused(client, headers) == (status, code)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8080", "localhost:1", "[::1]:8080", "LOCALHOST"])
async def test_on_loopback_everybody_of_this_machine_may_change(asker: HandlerHarness, host: str) -> None:
    async with client_of(asker.cluster) as client:
        assert (await client.post(DRAIN, headers=JSON | {"Host": host})).status == 200


async def test_what_is_not_there_is_answered_as_such(asker: HandlerHarness) -> None:
    async with client_of(asker.cluster, host="0.0.0.0") as client:
        assert (await client.post("/v1/nothing", headers=JSON)).status == 404
        assert (await client.post("/v1/cluster", headers=JSON)).status == 405


def test_a_file_of_tokens_is_read_with_its_names(tokens: Path) -> None:
    assert read_tokens(str(tokens)) == [
        Token("someone", digest("another")),
        Token("alice at work", digest(SECRET)),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# nobody\n", "holds no token"),
        (f"{SECRET} alice\n", "line 1"),
        ("\nalice " + "a" * 64, "line 2"),
        ("a" * 64, "line 1"),
        ("a" * 70_000, "has more than 65536 bytes"),
    ],
)
def test_a_file_that_is_no_file_of_tokens_is_rejected(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read_tokens(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tokens(str(tmp_path / "elsewhere"))
