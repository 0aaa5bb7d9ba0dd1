"""How the planner of a stream learns the name of its query.

Spark tells it to tasks only, and the planner runs in a process of its own on the driver. So a task of
the first micro-batch sends it there, in one datagram.

Rule 1: a datagram counts only with the token that the planner gave to its own tasks.
Rule 2: nobody waits for one. If none arrives, because a firewall is between, tasks go on to do what
        they can do themselves (offset_mirror.py).
"""

import secrets
import socket
from typing import Final, NamedTuple

from penstock.config.listeners import Address

_TOKEN_BYTES: Final = 16
_DATAGRAM_BYTES_MAX: Final = 1024
_DATAGRAMS_AT_ONCE_MAX: Final = 16


class QueryNameAddress(NamedTuple):
    """Where to send, and what makes it believable."""

    host: str
    port: int
    token: bytes


class QueryNameReceiver:
    """Held by the planner. OSError if this machine gives no socket."""

    def __init__(self, towards: Address) -> None:
        """It listens on the address by which this machine reaches the cluster, as its executors do."""
        family, *_, target = socket.getaddrinfo(towards.host, towards.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing: it only chooses the way
            host = probe.getsockname()[0]
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.bind((host, 0))
        self._socket.setblocking(False)
        self.address = QueryNameAddress(
            host, self._socket.getsockname()[1], secrets.token_bytes(_TOKEN_BYTES)
        )

    def received_name(self) -> str | None:
        """What a task has sent, if one has."""
        for _ in range(_DATAGRAMS_AT_ONCE_MAX):
            try:
                datagram = self._socket.recv(_DATAGRAM_BYTES_MAX)
            except OSError:  # nothing there
                return None
            token, text = datagram[:_TOKEN_BYTES], datagram[_TOKEN_BYTES:]
            if secrets.compare_digest(token, self.address.token):
                return text.decode("utf-8", "replace")
        return None

    def close(self) -> None:
        self._socket.close()


def send_query_name(address: QueryNameAddress, text: str) -> None:
    """OSError if there is no way there; that it arrives is not promised."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.sendto(address.token + text.encode(), (address.host, address.port))
