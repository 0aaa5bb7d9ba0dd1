"""What is asked of a socket directly, because the event loop does not say it."""

import select
import socket

# Linux tells that a peer has closed while nothing is read; elsewhere only a reset is seen.
_CLOSED = getattr(select, "POLLRDHUP", 0)


def keep_alive(sock: socket.socket | None) -> None:
    """So that a peer that vanished without a word is noticed at last."""
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def peer_has_closed(sock: socket.socket | None) -> bool:
    """Whether the peer sends no more, even if bytes of it are still unread."""
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), _CLOSED)
    return bool(poll.poll(0))
