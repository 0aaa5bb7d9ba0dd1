"""Socket options and checks that the event loop does not offer."""

import select
import socket

# Linux reports that a peer has closed while nothing is read; other systems report only a reset.
_CLOSED = getattr(select, "POLLRDHUP", 0)


def keep_alive(sock: socket.socket | None) -> None:
    """Enable TCP keepalive, so that a peer that vanished is noticed eventually."""
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def peer_has_closed(sock: socket.socket | None) -> bool:
    """Whether the peer sends no more, even if some of its bytes are still unread."""
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), _CLOSED)
    return bool(poll.poll(0))
