"""Several listeners: a client is told addresses of the listener it came through, and no other."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from penstock.protocol.messages.describe_cluster import DESCRIBE_CLUSTER, DescribeClusterRequest
from penstock.protocol.messages.find_coordinator import FIND_COORDINATOR, FindCoordinatorRequest
from penstock.protocol.messages.metadata import METADATA, MetadataRequest
from penstock.testing import Broker, broker
from tests.integration.messages import QUIET
from tests.integration.raw_client import RawClient, batch_of, connected

SETTINGS = {
    "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
    "advertised.listeners": "OUTSIDE://broker.example.com:19092",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
}


class AdvertisedAddresses(NamedTuple):
    """host:port of the only broker, as each API names it."""

    metadata: str
    cluster: str
    coordinator: str


@pytest.fixture
def two_doors() -> Iterator[Broker]:
    with broker(**SETTINGS) as running:
        yield running


def ask(client: RawClient) -> AdvertisedAddresses:
    (node,) = client.ask(METADATA, 12, MetadataRequest(topics=None)).brokers
    (described,) = client.ask(DESCRIBE_CLUSTER, 1, DescribeClusterRequest()).brokers
    found = client.ask(FIND_COORDINATOR, 2, FindCoordinatorRequest(key="some-group"))
    coordinator = f"{found.host}:{found.port}" if found.error_code == 0 else ""
    return AdvertisedAddresses(f"{node.host}:{node.port}", f"{described.host}:{described.port}", coordinator)


def test_each_listener_names_its_own_address(two_doors: Broker) -> None:
    inside, outside = two_doors.address("inside"), two_doors.address("outside")
    assert inside != outside

    for address, expected in ((inside, inside), (outside, "broker.example.com:19092")):
        with connected(address) as client:
            told = ask(client)
        assert told.metadata == told.cluster == expected
        assert told.coordinator in (expected, ""), "a coordinator is named by this listener or not yet"


def test_a_client_comes_in_by_the_listener_it_can_reach(two_doors: Broker) -> None:
    inside, outside = two_doors.address("inside"), two_doors.address("outside")
    with connected(inside) as writer, connected(outside) as reader:
        writer.create_topic("shared")
        assert writer.produce("shared", batch_of(b"through the other door")).error_code == 0
        assert reader.fetch("shared", 0).responses[0].partitions[0].high_watermark == 1

    admin = AdminClient({"bootstrap.servers": inside, **QUIET})
    cluster = admin.describe_cluster().result(20)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [inside]


def test_a_broker_that_moves_tells_its_new_address(tmp_path: Path) -> None:
    for advertised in ("first.example.com:1", "second.example.com:2"):
        settings = {"advertised.listeners": f"PLAINTEXT://{advertised}"}
        with broker(tmp_path, **settings) as running, connected(running.bootstrap) as client:
            assert ask(client).metadata == advertised


def test_ipv6_is_served_and_told_without_brackets() -> None:
    with broker(listeners="PLAINTEXT://[::1]:0") as running:
        port = running.bootstrap.rpartition(":")[2]
        assert running.bootstrap == f"[::1]:{port}"
        with connected(f"::1:{port}") as client:
            assert ask(client).metadata == f"::1:{port}"
