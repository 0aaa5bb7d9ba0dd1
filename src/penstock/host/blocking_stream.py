"""Blocking TCP connection, with TLS where it is configured.

Every exchange has a deadline: it starts with a send and lasts until the reply is complete, so that a peer
which sends a byte now and then cannot block the caller. A caller that sends one request and reads the reply
much later starts a new deadline with `allow`.
"""

import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, NamedTuple, Protocol

from penstock.host.sockets import keep_alive, peer_has_closed
from penstock.types import Buffer

# Larger buffers are sent as they are: joining them would copy them once more.
_JOINED_BYTES_MAX: Final = 64 * 1024


class TlsFiles(NamedTuple):
    """PEM files. Without `ca` the authorities of the system are trusted."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


class TlsContextSource(Protocol):
    def context(self) -> ssl.SSLContext: ...


class BlockingStream:
    """One connection."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def allow(self, timeout_s: float) -> None:
        """Set the timeout of this exchange, from now, and of every later one, from its send."""
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def send(self, buffers: Sequence[Buffer]) -> None:
        self._deadline = time.monotonic() + self._timeout_s
        self._connection.settimeout(self._timeout_s)
        for buffer in _joined(buffers):
            self._connection.sendall(buffer)

    def receive_into(self, room: memoryview) -> int:
        """Receive into the buffer. Returns the number of bytes; 0 once the peer has closed its side."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left_s)
        return self._connection.recv_into(room)

    def is_stale(self) -> bool:
        """Whether the peer has closed the connection since the last exchange."""
        return self._connection.fileno() < 0 or peer_has_closed(self._connection)

    def close(self) -> None:
        with suppress(OSError):  # the peer may have closed first
            self._connection.close()

    def __enter__(self) -> "BlockingStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_stream(
    host: str, port: int, *, timeout_s: float, tls: TlsContextSource | None = None
) -> BlockingStream:
    """Connect. Raises OSError, including ssl.SSLError and TimeoutError."""
    connection = socket.create_connection((host, port), timeout_s)
    try:
        # Requests are small and the caller waits for each reply: collecting bytes (Nagle) would only delay
        # them.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection)
        if tls is not None:
            connection = tls.context().wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise
    return BlockingStream(connection, timeout_s)


def _joined(buffers: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers, where joining costs little."""
    pieces: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) <= _JOINED_BYTES_MAX:
            small.append(buffer)
            continue
        pieces += [b"".join(small), buffer]
        small = []
    pieces.append(b"".join(small))
    return [piece for piece in pieces if piece]


class TcpNetwork:
    """Connections, and the pauses between attempts to open one."""

    def __init__(self, tls: TlsContextSource | None = None) -> None:
        self._tls = tls

    def connect(self, host: str, port: int, *, timeout_s: float) -> BlockingStream:
        """Connect. Raises OSError, which `connection_problem` explains."""
        return open_stream(host, port, timeout_s=timeout_s, tls=self._tls)

    def problem(self, error: OSError) -> "ConnectionProblem":
        return connection_problem(error, is_tls=self._tls is not None)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ConnectionProblem(NamedTuple):
    """Explanation of a connection error for the user."""

    what: str
    """A sentence without its full stop."""
    remedy: str
    """A whole sentence, or empty."""
    may_pass: bool
    """Whether a retry after a pause can succeed."""


def connection_problem(error: OSError, *, is_tls: bool) -> ConnectionProblem:
    """Explain an error of a connection."""
    match error:
        case ConnectionRefusedError():
            return ConnectionProblem("nothing listens there", "Check the address and the broker.", True)
        case TimeoutError():
            return ConnectionProblem("no answer came in time", "Check the network and the broker.", True)
        case ssl.SSLCertVerificationError():
            what = f"its certificate is not trusted ({error.verify_message})"
            remedy = "Give the certificate of the authority that signed it, and use a name that it is for."
            return ConnectionProblem(what, remedy, False)
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError() | ConnectionError() if is_tls:
            remedy = "If this goes on, it may want another client certificate, or speak no TLS on this port."
            return ConnectionProblem("it closed the connection", remedy, True)
        case ssl.SSLError():
            what = f"TLS failed ({error.reason or error})"
            return ConnectionProblem(what, "Check that this port is for TLS, and the certificates.", False)
        case ConnectionError():
            remedy = "If this goes on, it may expect TLS, or may not speak Kafka's protocol on this port."
            return ConnectionProblem("it closed the connection", remedy, True)
        case socket.gaierror():
            return ConnectionProblem("no such host is known", "Check the name.", True)
        case _:
            return ConnectionProblem(str(error.strerror or error), "", True)
