"""Commands that ask the leaders of a topic as the first thing on a new connection.

librdkafka asks who they are once in three seconds. It loses that question if it falls just before it
leaves the address it was given for the one that the broker goes by: without help, one time in six.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli.admin_client import Admin
from penstock.cli.broker_connector import BrokerConnector
from penstock.cli.positions import PositionKind, PositionSpec
from penstock.config.listeners import Address
from penstock.errors import CommandFailed
from tests.integration.broker_process import serving
from tests.integration.test_cli import Cli

LESS_THAN_ITS_PAUSE_S = 2.5
PATIENCE_S = 10.0


class UnluckyAddress:
    """Leads to a broker, and answers who that is only when the client has asked something more.

    By then the client hears where the broker really is, and comes no more: what it asked is lost.
    """

    def __init__(self, broker: str) -> None:
        host, port = broker.rsplit(":", 1)
        self._broker = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE_S)
        self.address = Address(*self._listener.getsockname())
        self.is_asked = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    @contextmanager
    def serving(self) -> Iterator["UnluckyAddress"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._thread.join(PATIENCE_S)
            self._listener.close()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(self._broker, PATIENCE_S) as broker:
            client.settimeout(PATIENCE_S)
            broker.sendall(frame_from(client))
            client.sendall(frame_from(broker))
            who_are_you = frame_from(client)
            self.is_asked.set()
            frame_from(client)
            broker.sendall(who_are_you)
            client.sendall(frame_from(broker))
            while client.recv(65_536):
                pass


def frame_from(peer: socket.socket) -> bytes:
    """The next frame, with its size in front."""
    prefix = peer.recv(4, socket.MSG_WAITALL)
    return prefix + peer.recv(int.from_bytes(prefix), socket.MSG_WAITALL)


@pytest.mark.parametrize("question", ["offsets", "deletion"])
def test_leaders_are_asked_again_where_librdkafka_lost_the_question(data_dir: Path, question: str) -> None:
    with serving(data_dir) as served:
        Cli(served.bootstrap).ok("topic", "create", "k")
        with UnluckyAddress(served.bootstrap).serving() as unlucky:
            admin = Admin(BrokerConnector((unlucky.address,), LESS_THAN_ITS_PAUSE_S))
            assert unlucky.is_asked.wait(PATIENCE_S)

            if question == "offsets":
                assert admin.span("k", [0]) == {0: (0, 0)}
            else:
                assert admin.delete_records("k", {0: 0}) == {0: 0}


def test_asking_for_the_offsets_of_a_topic_that_is_gone_does_not_make_it(data_dir: Path) -> None:
    with serving(data_dir, settings={"auto.create.topics.enable": "true"}) as served:
        host, port = served.bootstrap.rsplit(":", 1)
        admin = Admin(BrokerConnector((Address(host, int(port)),), LESS_THAN_ITS_PAUSE_S))

        with pytest.raises(CommandFailed, match="the offsets of topic gone cannot be read: "):
            admin.offsets("gone", [0], PositionSpec(PositionKind.LATEST))

        assert "gone" not in Cli(served.bootstrap).ok("topic", "list")
