"""What `produce` and `consume` say of partitions that nobody leads, of which librdkafka says nothing."""

import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from penstock.cli.broker_connector import BrokerConnector
from penstock.cli.records.failure_reasons import diagnose_write_failure
from penstock.cli.records.readers import AssignedReader, PartitionRange
from penstock.cli.records.record_output import IncomingRecord
from penstock.config.listeners import Address
from penstock.errors import CommandFailed
from tests.unit.wire.fake_cluster import OTHER, FakeCluster

TIMEOUT_S = 1.0
NOBODY = -1


class Answerer(socketserver.StreamRequestHandler):
    server: Any

    def handle(self) -> None:
        with suppress(KeyError, ConnectionError):  # asked for what it has no answer to, it hangs up
            while size := self.rfile.read(4):
                self.wfile.write(self.server.broker.answer(self.rfile.read(int.from_bytes(size))))


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


@pytest.fixture
def reached() -> Iterator[BrokerConnector]:
    cluster = FakeCluster(1)
    cluster.leaders = {0: 0, 1: NOBODY}
    with Server(("127.0.0.1", 0), Answerer) as server:
        server.broker = cluster.brokers[0]  # type: ignore[attr-defined]
        address = cluster.brokers[0].address = Address("127.0.0.1", server.server_address[1])
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        try:
            yield BrokerConnector((address,), TIMEOUT_S)
        finally:
            server.shutdown()


def test_who_writes_learns_which_partition_nobody_leads(reached: BrokerConnector) -> None:
    failure = diagnose_write_failure(reached, OTHER)
    assert failure is not None
    told = "no broker leads orders-1: `penstock cluster status` shows which brokers are away"
    assert failure.reason == told
    assert not failure.is_rejection, "the leader that was lost may have stored the records"


def test_who_reads_to_the_end_learns_which_partition_nobody_leads(reached: BrokerConnector) -> None:
    reader = AssignedReader(reached, "orders", {1: PartitionRange(0, 5)}, None)
    with closing(reader), pytest.raises(CommandFailed, match=r"^no broker leads orders-1:"):
        read_longer_than_the_time_out(reader)


def test_who_follows_waits_until_somebody_leads(reached: BrokerConnector) -> None:
    with closing(AssignedReader(reached, "orders", {1: PartitionRange(0, None)}, None)) as reader:
        assert not read_longer_than_the_time_out(reader)


def read_longer_than_the_time_out(reader: AssignedReader) -> list[IncomingRecord]:
    deadline = time.monotonic() + TIMEOUT_S * 1.5
    records = []
    while time.monotonic() < deadline:
        records += reader.next_records()
    return records
