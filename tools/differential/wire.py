"""One connection to a broker, which sends and receives whole frames and interprets nothing."""

import socket
import struct
from types import TracebackType
from typing import Self

_SIZE = struct.Struct(">i")
_CONNECT_S_MAX = 5.0
_API_VERSIONS_V0 = bytes.fromhex("0000000a0012000000000001ffff")


class ConnectionClosed(Exception):
    """The broker closed the connection instead of replying."""


class NoReply(Exception):
    """The broker neither replied nor closed the connection in time."""


class Connection:
    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=_CONNECT_S_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def exchange(self, frame: bytes, timeout_s: float) -> bytes:
        """Send a frame, with its size, and return the response frame, without its size."""
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(frame)
            (size,) = _SIZE.unpack(self._receive(_SIZE.size))
            return self._receive(size)
        except TimeoutError as problem:
            raise NoReply from problem
        except (ConnectionResetError, BrokenPipeError) as problem:
            raise ConnectionClosed from problem

    def _receive(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            piece = self._socket.recv(count - len(received))
            if not piece:
                raise ConnectionClosed
            received += piece
        return bytes(received)


def is_answering(host: str, port: int) -> bool:
    """Whether a broker replies to a minimal request."""
    try:
        with Connection(host, port) as connection:
            connection.exchange(_API_VERSIONS_V0, _CONNECT_S_MAX)
    except (OSError, ConnectionClosed, NoReply):
        return False
    return True
