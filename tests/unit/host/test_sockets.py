"""A peer that has closed is noticed although nothing is read."""

import socket
import sys

import pytest

from penstock.host.sockets import peer_has_closed


def test_a_peer_that_is_there_has_not_closed_whether_or_not_it_sent_something() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not peer_has_closed(ours)
        theirs.sendall(b"unread")
        assert not peer_has_closed(ours)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells while bytes are unread")
def test_a_peer_that_left_has_closed_even_if_what_it_sent_is_unread() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(b"unread")
        theirs.close()
        assert peer_has_closed(ours)


def test_what_has_no_socket_has_no_peer_to_leave() -> None:
    assert not peer_has_closed(None)
