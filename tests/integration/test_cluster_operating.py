"""Three real brokers are looked after: moving, draining, electing, emptying, by commands and by clients.

Brokers even nothing out by themselves here, so that what happens is what was asked for.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, Producer, TopicPartition
from confluent_kafka import admin as untyped
from kafka import KafkaAdminClient
from kafka import TopicPartition as PyTopicPartition

from penstock.errors import ErrorCode
from tests.integration.broker_process import eventually
from tests.integration.cluster_load import SteadyWriter, read_all, require_intact
from tests.integration.cluster_processes import ClusterProcesses
from tests.integration.test_cli import Cli

kafka: Any = untyped

CLUSTER_SETTINGS = {"auto.balance": "false", "auto.leader.rebalance.enable": "false"}
RATE = 200_000
RECORD = b"x" * 10_000
RECORDS = 400


@pytest.fixture
def cluster_cli(cluster: ClusterProcesses, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("PENSTOCK_URL", f"http://{cluster.brokers[1].http}")
    return Cli(cluster.bootstrap)


@pytest.fixture
def python_admin(cluster: ClusterProcesses) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    yield client
    client.close()


def create(cluster: ClusterProcesses, topic: str, *replicas: list[int]) -> None:
    admin = cluster.admin()
    wanted = kafka.NewTopic(topic, num_partitions=len(replicas), replica_assignment=list(replicas))
    admin.create_topics([wanted])[topic].result(20)


def placed(cluster: ClusterProcesses, topic: str, number: int = 0) -> list[int]:
    found = cluster.admin().list_topics(topic, timeout=10).topics[topic].partitions[number]
    return list(found.replicas)


def status(cli: Cli) -> Any:
    return json.loads(cli.ok("cluster", "status", "--json"))


def broker_of(cli: Cli, node_id: int) -> Any:
    return next(broker for broker in status(cli)["brokers"] if broker["id"] == node_id)


def fill(cluster: ClusterProcesses, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 100_000, "log_level": 0})
    for _ in range(RECORDS):
        producer.produce(topic, RECORD)
        producer.poll(0)
    assert producer.flush(30) == 0


def limit(cluster: ClusterProcesses, node_id: int, rate: int | None) -> None:
    operation = kafka.AlterConfigOpType.DELETE if rate is None else kafka.AlterConfigOpType.SET
    entry = kafka.ConfigEntry(
        "follower.replication.throttled.rate", str(rate or ""), incremental_operation=operation
    )
    resource = kafka.ConfigResource(kafka.ResourceType.BROKER, str(node_id), incremental_configs=[entry])
    admin = cluster.admin()
    admin.incremental_alter_configs([resource])[resource].result(20)


def test_a_partition_moves_under_load_and_nothing_is_lost(
    cluster: ClusterProcesses, cluster_cli: Cli
) -> None:
    create(cluster, "moved", [1, 2])
    with SteadyWriter(cluster.bootstrap, "moved") as writer:
        began = time.monotonic()
        out = cluster_cli.ok("cluster", "reassign", "--topic", "moved", "--to", "3,2", "--wait")
        print(f"moved within {time.monotonic() - began:.1f} s")
        assert "1,2" in out
        assert "3,2" in out
        written = len(writer.acknowledged)
        eventually(lambda: len(writer.acknowledged) > written + 50, seconds_max=20)
    assert placed(cluster, "moved") == [3, 2]
    assert cluster.leader("moved") in (2, 3)
    require_intact(writer, read_all(cluster.bootstrap, "moved"))
    eventually(lambda: cluster.log_of(1, "moved") == b"", seconds_max=10)


def test_what_is_being_copied_is_bounded_told_and_can_be_called_off(
    cluster: ClusterProcesses, cluster_cli: Cli, python_admin: KafkaAdminClient
) -> None:
    create(cluster, "large", [1])
    fill(cluster, "large")
    limit(cluster, 3, RATE)
    name = PyTopicPartition("large", 0)
    began = time.monotonic()
    assert python_admin.alter_partition_reassignments({name: [3, 1]}) == {name: None}
    time.sleep(3)
    moving = python_admin.list_partition_reassignments()
    took = time.monotonic() - began
    copied = len(cluster.log_of(3, "large"))
    assert moving == {name: {"replicas": [3, 1], "adding_replicas": [3], "removing_replicas": []}}
    # One answer, with a second's worth, comes before there is anything to pay off; the last batch whole.
    assert copied < RATE * (took + 1) + 100_000
    print(f"copied {copied / 1e6:.2f} MB in {took:.1f} s at a rate of {RATE / 1e6:.1f} MB/s")

    (entry,) = status(cluster_cli)["reassigning"]["partitions"]
    assert 0 < entry["records_left"]["3"] < RECORDS
    assert "on broker 3" in cluster_cli.ok("cluster", "status")

    assert "called off" in cluster_cli.ok("cluster", "reassign", "--topic", "large", "--cancel")
    assert placed(cluster, "large") == [1]
    assert "nothing of it" in cluster_cli.ok("cluster", "reassign", "--topic", "large", "--cancel")
    refusals = python_admin.alter_partition_reassignments({name: None})
    assert refusals[name].errno == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS

    limit(cluster, 3, None)
    plan = {"version": 1, "partitions": [{"topic": "large", "partition": 0, "replicas": [3, 1]}]}
    path = Path(cluster.folder / "plan.json")
    path.write_text(json.dumps(plan))
    done = json.loads(cluster_cli.ok("cluster", "reassign", "--file", str(path), "--wait", "--json"))
    assert done["is_done"]
    assert cluster.isr("large") == [1, 3]
    assert cluster.log_of(3, "large") == cluster.log_of(1, "large")


def test_a_move_goes_on_when_the_broker_that_was_killed_is_back(
    cluster: ClusterProcesses, cluster_cli: Cli
) -> None:
    create(cluster, "stubborn", [1])
    fill(cluster, "stubborn")
    limit(cluster, 3, RATE)
    cluster_cli.ok("cluster", "reassign", "--topic", "stubborn", "--to", "3")
    eventually(lambda: cluster.log_of(3, "stubborn"), seconds_max=10)
    cluster.brokers[3].kill()
    assert status(cluster_cli)["reassigning"]["count"] == 1
    assert placed(cluster, "stubborn") == [3, 1]
    cluster.brokers[3].start()
    limit(cluster, 3, None)
    cluster_cli.ok("cluster", "reassign", "--topic", "stubborn", "--wait")
    assert placed(cluster, "stubborn") == cluster.isr("stubborn") == [3]
    assert cluster.log_of(3, "stubborn").count(RECORD) == RECORDS


def test_a_drained_broker_leads_nothing_until_leaders_are_elected_again(
    cluster: ClusterProcesses, cluster_cli: Cli
) -> None:
    create(cluster, "led", [2, 1, 3], [2, 3, 1])
    assert broker_of(cluster_cli, 2)["leads"] >= 2
    assert "drained broker 2" in cluster_cli.ok("cluster", "drain", "2")
    drained = broker_of(cluster_cli, 2)
    assert (drained["state"], drained["leads"], drained["is_drained"]) == ("draining", 0, True)
    unbalanced = status(cluster_cli)["unbalanced"]
    assert unbalanced["count"] >= 2
    refused = cluster_cli.refused("cluster", "elect", "--topic", "led", "--partition", "0")
    assert "being drained" in refused

    assert "admitted" in cluster_cli.ok("cluster", "undrain", "2")
    admin = cluster.admin()
    outcome = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("led", 0)]).result(20)
    assert list(outcome.values()) == [None]
    # Any broker may answer, and another than the one that elected may hear of it some milliseconds later.
    eventually(lambda: cluster.leader("led", 0) == 2, seconds_max=10)
    assert "topic led" in cluster_cli.ok("cluster", "elect", "--preferred", "--all")
    assert status(cluster_cli)["unbalanced"]["count"] == 0
    assert "no partition needs one" in cluster_cli.ok("cluster", "elect", "--preferred", "--all")
    assert "2 partitions need none" in cluster_cli.ok("cluster", "elect", "--topic", "led")


def test_topics_that_one_lost_disk_would_lose_are_named(cluster: ClusterProcesses, cluster_cli: Cli) -> None:
    create(cluster, "alone", [2])
    create(cluster, "safe", [1, 2, 3])
    names = [topic["topic"] for topic in status(cluster_cli)["topics_at_risk"]]
    assert "alone" in names
    assert "safe" not in names
    assert "  alone  (one replica)" in cluster_cli.ok("cluster", "status")


def test_what_cannot_be_is_refused_with_a_sentence(cluster: ClusterProcesses, cluster_cli: Cli) -> None:
    create(cluster, "stays", [1])
    assert "broker 9" in cluster_cli.refused("cluster", "reassign", "--topic", "stays", "--to", "9")
    five = ("--topic", "stays", "--partition", "5", "--to", "1")
    assert "no partition 5" in cluster_cli.refused("cluster", "reassign", *five)
    assert "does not exist" in cluster_cli.refused("cluster", "reassign", "--topic", "nothing", "--to", "1")
    assert "no broker 9" in cluster_cli.refused("cluster", "drain", "9")
    assert "the command cannot ask" in cluster_cli.refused("cluster", "elect", "--unclean", "--all")


def everywhere(cluster: ClusterProcesses) -> list[str]:
    """Topics with a replica on each broker."""
    topics = cluster.admin().list_topics(timeout=10).topics
    return [name for name, topic in topics.items() if len(topic.partitions[0].replicas) == 3]


def test_a_broker_is_emptied_stopped_and_forgotten(cluster: ClusterProcesses, cluster_cli: Cli) -> None:
    """The last test: a broker is gone after it."""
    create(cluster, "leaves", [3, 1], [1, 3])
    create(cluster, "everywhere", [1, 2, 3])
    planned = json.loads(cluster_cli.ok("cluster", "balance", "--away-from", "3", "--dry-run", "--json"))
    assert [move["topic"] for move in planned["moves"]].count("leaves") == 2
    cluster_cli.ok("cluster", "drain", "3")
    stays = cluster_cli.refused("cluster", "balance", "--away-from", "3", "--wait")
    assert "no other broker can take" in stays
    for name in everywhere(cluster):
        # Three replicas have no place on two brokers.
        cluster_cli.ok("cluster", "reassign", "--topic", name, "--to", "1,2", "--wait")
    assert "nothing has to move" in cluster_cli.ok("cluster", "balance", "--away-from", "3", "--wait")
    assert broker_of(cluster_cli, 3)["holds"] == 0

    assert "Stop it first" in cluster_cli.refused("cluster", "unregister", "3")
    cluster.brokers[3].stop()
    assert broker_of(cluster_cli, 3)["state"] == "gone"
    assert "forgot broker 3" in cluster_cli.ok("cluster", "unregister", "3")
    assert "no broker 3" in cluster_cli.refused("cluster", "unregister", "3")
    assert [broker["id"] for broker in status(cluster_cli)["brokers"]] == [1, 2]
