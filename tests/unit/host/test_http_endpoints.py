"""What is said of a server that does not answer: what is wrong, in words that need no library's source."""

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
import trustme

from penstock.host.http_endpoints import HttpEndpoints, HttpUnavailable
from penstock.host.tls import ClientTls


@asynccontextmanager
async def serving(answer: bytes | None, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Where. Whoever asks is told this, and the connection ends; None: nothing, and it stays."""
    asked = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(asyncio.current_task())
        with suppress(OSError):
            await reader.read(1 << 16)
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*filter(None, asked))


async def silence(url: str, tls: ssl.SSLContext | None = None, timeout_s: float = 10) -> HttpUnavailable:
    """What is said of it, once asked."""
    endpoints = HttpEndpoints([url], tls)
    try:
        with pytest.raises(HttpUnavailable) as raised:
            await endpoints.post(url, "/", b"{}", {}, timeout_s)
    finally:
        await endpoints.close()
    assert not re.search(r"aiohttp|Error|ssl:|\[|<", str(raised.value))
    return raised.value


async def test_an_address_at_which_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
    said = await silence(url)
    assert str(said) == f"nothing listens at {url}"
    assert not said.may_be_received


async def test_a_host_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = await silence("http://etcd-9.invalid:2379")
    assert str(said) == "no address is known for the host of http://etcd-9.invalid:2379"
    assert not said.may_be_received


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
async def test_a_server_that_goes_away_before_it_has_answered(answer: bytes) -> None:
    async with serving(answer) as url:
        said = await silence(url)
    assert str(said) == f"the connection to {url} broke before the answer was complete"
    assert said.may_be_received


async def test_a_server_that_is_silent() -> None:
    async with serving(None) as url:
        said = await silence(url, timeout_s=0.05)
    assert str(said) == f"{url} does not answer in time"
    assert said.may_be_received


async def test_a_server_of_something_else() -> None:
    async with serving(b"220 mail.example.com ESMTP\r\n") as url:
        said = await silence(url)
    assert str(said) == f"what answers at {url} does not speak HTTP"


class Certified:
    """A server's certificate, and what it takes to trust it."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.authority_path = str(folder / "authority.pem")
        authority.cert_pem.write_to_path(self.authority_path)
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self.server)


async def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    async with serving(b"", Certified(tmp_path).server) as url:
        said = await silence(url, ClientTls().context())
    assert str(said).startswith(f"the certificate of {url} is not trusted: ")


async def test_a_server_without_tls_is_asked_with_it(tmp_path: Path) -> None:
    async with serving(b"HTTP/1.0 400 Bad Request\r\n\r\n") as url:
        url = url.replace("http:", "https:")
        said = await silence(url, ClientTls(Certified(tmp_path).authority_path).context())
    assert str(said).startswith(f"{url} agrees to no TLS with us: it is served without TLS")


async def test_a_server_that_wants_a_certificate_and_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """With TLS 1.3 the alert comes when the client believes the connection made, and it may be lost."""

    def refused(*_: object, **__: object) -> None:
        raise aiohttp.ClientOSError(1, "alert") from ssl.SSLError(1, "[SSL: TLSV13_ALERT] (_ssl.c:2580)")

    monkeypatch.setattr(aiohttp.ClientSession, "post", refused)
    said = await silence("https://127.0.0.1:2379")
    assert str(said).endswith("or wants another certificate")
