"""Who may become a broker of a cluster, and who is told why not. Real processes over a real etcd."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.broker_process import ON_FREE_PORTS, BrokerProcess, penstock, serving
from tests.integration.cluster_processes import ClusterProcesses, running_cluster
from tests.integration.etcd_process import running_etcd
from tests.integration.free_ports import free_ports
from tests.integration.test_tls import Certificates


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), 2) as cluster:
        yield cluster


def refused(broker: BrokerProcess) -> str:
    """What a broker says that does not start."""
    with pytest.raises(AssertionError, match="did not become ready"):
        broker.start()
    return broker.stderr


def identity(folder: Path) -> dict[str, object]:
    found = json.loads((folder / "penstock.json").read_text())
    assert isinstance(found, dict)
    return found


def test_brokers_that_share_a_store_are_one_cluster(cluster: ClusterProcesses) -> None:
    metadata = cluster.admin().list_topics(timeout=10)
    assert sorted(metadata.brokers) == [1, 2]
    assert metadata.controller_id in (1, 2)
    ids = {identity(broker.data_dir)["cluster_id"] for broker in cluster.brokers.values()}
    assert ids == {metadata.cluster_id}


def test_a_living_brokers_id_is_refused_with_who_has_it(cluster: ClusterProcesses) -> None:
    said = refused(cluster.broker(2, folder="impostor", port=free_ports(1)[0]))
    assert "node id 2 is taken" in said
    assert cluster.brokers[2].bootstrap in said
    assert sorted(cluster.admin().list_topics(timeout=10).brokers) == [1, 2]


def test_a_data_directory_of_another_cluster_is_refused(cluster: ClusterProcesses, tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd") as other:
        flags = ("--node-id", "3", "--metadata", other.url)
        with serving(tmp_path / "broker-3", *flags) as stranger:
            assert stranger.stop() == 0
    flags = ("--node-id", "3", "--metadata", cluster.etcd.url)
    said = refused(BrokerProcess(tmp_path / "broker-3", *flags))
    assert f"belongs to cluster {identity(tmp_path / 'broker-3')['cluster_id']}" in said
    assert "--data-dir" in said


def test_a_broker_that_was_alone_does_not_slip_into_a_cluster(tmp_path: Path) -> None:
    with serving(tmp_path / "alone") as alone:
        alone.stop()
    with running_etcd(tmp_path / "etcd") as empty:
        said = refused(BrokerProcess(tmp_path / "alone", "--metadata", empty.url))
    assert "belongs to a broker that is alone" in said
    assert "penstock cluster adopt" in said


def test_a_member_of_a_cluster_does_not_begin_a_life_alone(tmp_path: Path) -> None:
    with (
        running_etcd(tmp_path / "etcd") as etcd,
        serving(tmp_path / "member", "--metadata", etcd.url) as member,
    ):
        member.stop()
    said = refused(BrokerProcess(tmp_path / "member"))
    assert "belongs to a broker of a cluster" in said
    assert "--metadata" in said


def test_a_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    store = f"etcd://127.0.0.1:{port}"
    done = penstock("serve", "--data-dir", str(tmp_path / "data"), "--metadata", store, *ON_FREE_PORTS)
    assert done.exit_code != 0
    assert f"127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr
    done = penstock("check-config", "--metadata", "etcd://:2379")
    assert done.exit_code != 0
    assert "names no host" in done.stderr
    assert "Traceback" not in done.stderr


def test_brokers_reach_each_other_over_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    tls = certificates.settings(ssl_truststore_location=certificates.authority_path)
    client: dict[str, str | int] = {
        "security.protocol": "ssl",
        "ssl.ca.location": certificates.authority_path,
        "log_level": 0,
    }
    brokers = []
    with running_etcd(tmp_path / "etcd") as etcd, ExitStack() as stack:
        for node_id, port in enumerate(free_ports(2), start=1):
            settings = {**tls, "listeners": f"TLS://127.0.0.1:{port}"}
            flags = ("--node-id", str(node_id), "--metadata", etcd.url, "--http", "127.0.0.1:0")
            folder = tmp_path / f"broker-{node_id}"
            broker = stack.enter_context(serving(folder, *flags, settings=settings, addresses=()))
            brokers.append(broker)
        errors: list[object] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", **client})
        for number in range(10):
            producer.produce("orders", b"%d" % number, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(30) == 0
        assert errors == [None] * 10
        metadata = AdminClient({"bootstrap.servers": broker.bootstrap, **client}).list_topics(timeout=10)
        assert sorted(metadata.topics["orders"].partitions[0].isrs) == [1, 2]
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", **client})
        consumer.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)
        consumer.close()
        for each in brokers:
            status, group = each.get("/v1/groups/g")
            assert (status, json.loads(group)["records_behind"]) == (200, 6), group


def test_a_password_in_the_address_of_the_store_is_not_shown(cluster: ClusterProcesses) -> None:
    from penstock.config.describe import describe_broker
    from penstock.config.sources import load

    config = load({"metadata": "etcd://penstock:secret@one:2379,two:2379/root"})
    shown = {entry.name: entry for entry in describe_broker(config)}["metadata.store"]
    assert shown.value == "etcd://penstock:***@one:2379,two:2379/root"
    assert "secret" not in repr(shown)
