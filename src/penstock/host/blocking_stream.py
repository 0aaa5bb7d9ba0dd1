"""A TCP connection for code that may wait, with TLS where it is asked for.

Every exchange has a deadline: it starts when something is sent and counts until the answer is whole,
so that a peer which sends a byte now and then cannot hold its caller.
"""

import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, NamedTuple

from penstock.types import Buffer

_RECEIVE_BYTES: Final = 64 * 1024


class TlsFiles(NamedTuple):
    """PEM files. Without `ca` the system's own authorities are trusted."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


class BlockingStream:
    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def send(self, buffers: Sequence[Buffer]) -> None:
        self._deadline = time.monotonic() + self._timeout_s
        self._connection.settimeout(self._timeout_s)
        self._connection.sendall(b"".join(buffers))

    def receive(self) -> bytes:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left_s)
        return self._connection.recv(_RECEIVE_BYTES)

    def close(self) -> None:
        with suppress(OSError):  # the peer may have gone first; there is nothing left to tell it
            self._connection.close()

    def __enter__(self) -> "BlockingStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_stream(host: str, port: int, *, timeout_s: float, tls: TlsFiles | None = None) -> BlockingStream:
    """Raises OSError, of which ssl.SSLError is one kind and TimeoutError another."""
    connection = socket.create_connection((host, port), timeout_s)
    try:
        # Questions are small and their answers are waited for: nothing is gained by collecting bytes.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            connection = tls.context().wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise
    return BlockingStream(connection, timeout_s)
