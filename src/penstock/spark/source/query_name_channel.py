"""The channel by which a stream's planner receives the name of its query.

Spark gives the name to tasks only, and the planner runs in a process of its own on the driver. So a task of
the first micro-batch sends the name to the planner, in one datagram.

Rule 1: A datagram counts only with the token that the planner gave to its own tasks.
Rule 2: No code waits for a datagram. If none arrives, for example because of a firewall, tasks commit the
        position themselves (offset_mirror.py).
"""

import secrets
import socket
from typing import Final, NamedTuple

from penstock.config.listeners import Address

_TOKEN_BYTES: Final = 16
_DATAGRAM_BYTES_MAX: Final = 1024
_DATAGRAMS_AT_ONCE_MAX: Final = 16


class QueryNameReceiverAddress(NamedTuple):
    """The planner's address, and the token that authenticates a datagram."""

    host: str
    port: int
    token: bytes


class QueryNameReceiver:
    """The planner's end of the channel. OSError if this machine gives no socket."""

    def __init__(self, towards: Address) -> None:
        """Bind to the address from which this machine reaches the cluster: executors use that network too."""
        family, *_, target = socket.getaddrinfo(towards.host, towards.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # connect on a UDP socket sends nothing: it only selects the local address
            host = probe.getsockname()[0]
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.bind((host, 0))
        self._socket.setblocking(False)
        self.address = QueryNameReceiverAddress(
            host, self._socket.getsockname()[1], secrets.token_bytes(_TOKEN_BYTES)
        )

    def received_name(self) -> str | None:
        """The name that a task has sent, if any."""
        for _ in range(_DATAGRAMS_AT_ONCE_MAX):
            try:
                datagram = self._socket.recv(_DATAGRAM_BYTES_MAX)
            except OSError:  # no datagram is there
                return None
            token, text = datagram[:_TOKEN_BYTES], datagram[_TOKEN_BYTES:]
            # Any host may send datagrams here. The comparison takes constant time, so that the token does
            # not leak.
            if secrets.compare_digest(token, self.address.token):
                return text.decode("utf-8", "replace")
        return None

    def close(self) -> None:
        self._socket.close()


def send_query_name(address: QueryNameReceiverAddress, text: str) -> None:
    """Send the name. OSError if there is no route; delivery is not guaranteed."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.sendto(address.token + text.encode(), (address.host, address.port))
