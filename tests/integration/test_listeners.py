"""Several listeners: a client is told addresses of the listener it came through, and no other."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient
from tests.integration.broker_process import BrokerProcess, serving
from tests.integration.messages import QUIET
from tests.integration.raw_client import RawClient, batch_of, connected

from penstock.protocol.messages.describe_cluster import DESCRIBE_CLUSTER, DescribeClusterRequest
from penstock.protocol.messages.find_coordinator import FIND_COORDINATOR, FindCoordinatorRequest
from penstock.protocol.messages.metadata import METADATA, MetadataRequest

SETTINGS = {
    "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
    "advertised.listeners": "OUTSIDE://broker.example.com:19092",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
}


class Told(NamedTuple):
    """host:port of the only broker, as each API names it."""

    metadata: str
    cluster: str
    coordinator: str


@pytest.fixture
def two_doors(data_dir: Path) -> Iterator[BrokerProcess]:
    with serving(data_dir, settings=SETTINGS, addresses=("--http", "127.0.0.1:0")) as broker:
        yield broker


def ask(client: RawClient) -> Told:
    (node,) = client.ask(METADATA, 12, MetadataRequest(topics=None)).brokers
    (described,) = client.ask(DESCRIBE_CLUSTER, 1, DescribeClusterRequest()).brokers
    found = client.ask(FIND_COORDINATOR, 2, FindCoordinatorRequest(key="some-group"))
    coordinator = f"{found.host}:{found.port}" if found.error_code == 0 else ""
    return Told(f"{node.host}:{node.port}", f"{described.host}:{described.port}", coordinator)


def test_each_listener_names_its_own_address(two_doors: BrokerProcess) -> None:
    inside, outside = two_doors.addresses
    assert inside != outside

    for address, expected in ((inside, inside), (outside, "broker.example.com:19092")):
        with connected(address) as client:
            told = ask(client)
        assert told.metadata == told.cluster == expected
        assert told.coordinator in (expected, ""), "a coordinator is named by this listener or not yet"


def test_a_client_comes_in_by_the_listener_it_can_reach(two_doors: BrokerProcess) -> None:
    inside, outside = two_doors.addresses
    with connected(inside) as writer, connected(outside) as reader:
        writer.create_topic("shared")
        assert writer.produce("shared", batch_of(b"through the other door")).error_code == 0
        assert reader.fetch("shared", 0).responses[0].partitions[0].high_watermark == 1

    admin = AdminClient({"bootstrap.servers": inside, **QUIET})
    cluster = admin.describe_cluster().result(20)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [inside]


def test_a_broker_that_moves_tells_its_new_address(data_dir: Path) -> None:
    for advertised in ("first.example.com:1", "second.example.com:2"):
        with (
            serving(data_dir, "--advertised", advertised) as broker,
            connected(broker.bootstrap) as client,
        ):
            assert ask(client).metadata == advertised
            assert broker.stop() == 0


def test_ipv6_is_served_and_told_without_brackets(data_dir: Path) -> None:
    addresses = ("--kafka", "[::1]:0", "--http", "127.0.0.1:0")
    with serving(data_dir, addresses=addresses) as broker:
        port = broker.bootstrap.rpartition(":")[2]
        assert broker.bootstrap == f"[::1]:{port}"
        with connected(f"::1:{port}") as client:
            assert ask(client).metadata == f"::1:{port}"
