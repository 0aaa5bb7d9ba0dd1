"""The metadata store has no room, is put back from an older copy, or holds what nobody can read."""

import base64
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from penstock.limits import BROKER_SESSION_MS
from tests.integration.broker_process import eventually
from tests.integration.cluster_load import SteadyWriter, read_all, require_intact
from tests.integration.cluster_processes import ClusterProcesses

EVERYBODY = [1, 2, 3]


def ask(cluster: ClusterProcesses, path: str, **body: Any) -> dict[str, Any]:
    (member,) = cluster.etcd.members
    request = urllib.request.Request(f"http://{member.endpoint}{path}", data=json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as refusal:
        with refusal:
            return dict(json.load(refusal))


def put(cluster: ClusterProcesses, key: str, value: bytes) -> dict[str, Any]:
    encoded = base64.b64encode(value).decode()
    return ask(cluster, "/v3/kv/put", key=base64.b64encode(key.encode()).decode(), value=encoded)


def fill(cluster: ClusterProcesses) -> None:
    (member,) = cluster.etcd.members
    member.stop()
    member.flags = ("--quota-backend-bytes", "4000000")
    member.start()
    member.wait_until_ready()
    while "error" not in put(cluster, "filler", os.urandom(200_000)):
        pass


def make_room(cluster: ClusterProcesses) -> None:
    revision = ask(cluster, "/v3/kv/range", key="AA==", limit="1")["header"]["revision"]
    ask(cluster, "/v3/kv/compaction", revision=revision, physical=True)
    ask(cluster, "/v3/maintenance/defragment")
    for alarm in ask(cluster, "/v3/maintenance/alarm", action="GET").get("alarms", []):
        ask(cluster, "/v3/maintenance/alarm", action="DEACTIVATE", **alarm)


def test_a_store_that_was_full_ends_no_failover(cluster: ClusterProcesses, topic: str) -> None:
    asked, victim = 1, 3 if cluster.controller() != 3 else 2
    cluster.create_led_by(topic, victim)
    with SteadyWriter(cluster.bootstrap, topic) as writer:
        time.sleep(0.5)
        fill(cluster)
        cluster.brokers[victim].kill()
        time.sleep(BROKER_SESSION_MS / 1000 + 1.5)  # until its session is over
        assert cluster.leader(topic) in (-1, victim), "nothing can be changed"
        others = [node for node in EVERYBODY if node != victim]
        make_room(cluster)
        cluster.until_led_by_another(topic, victim, seconds_max=10)
        assert cluster.brokers[asked].get("/health/ready")[0] == 200
        cluster.until_in_sync(topic, others)
        cluster.brokers[victim].start()
        cluster.until_in_sync(topic, EVERYBODY)
    require_intact(writer, read_all(cluster.bootstrap, topic))


def test_brokers_of_a_store_that_was_put_back_stop_and_say_why(cluster: ClusterProcesses, topic: str) -> None:
    (member,) = cluster.etcd.members
    cluster.create_led_by(topic, 1)
    member.stop()
    copy = member.folder.with_name("copy")
    shutil.copytree(member.folder, copy)
    member.start()
    member.wait_until_ready()
    eventually(lambda: _has_created(cluster, "later"), seconds_max=20, every=0.2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for number in range(20):
        producer.produce("later", b"%d" % number, partition=number)
    assert producer.flush(20) == 0
    member.stop()
    shutil.rmtree(member.folder)
    shutil.copytree(copy, member.folder)
    member.start()
    member.wait_until_ready()
    brokers = cluster.brokers.values()
    eventually(lambda: not any(broker.is_running for broker in brokers), seconds_max=30, every=0.1)
    for broker in brokers:
        assert broker.stop() == 1
        last = broker.stderr.splitlines()[-1]
        assert "put back from an older copy. Put back the one that these brokers followed" in last
    for broker in brokers:
        with pytest.raises(AssertionError, match="it was put back from an older copy"):
            broker.start()
        assert [folder.name for folder in broker.data_dir.glob("logs/later-*")], "nothing is moved away"
        (broker.data_dir / "store-revision").unlink()  # as the sentence says
    cluster.start()
    cluster.until_in_sync(topic, EVERYBODY)
    assert all(list(broker.data_dir.glob("strays/later-*")) for broker in brokers)


def test_a_document_that_nobody_can_read_stops_brokers_by_its_name(
    cluster: ClusterProcesses, topic: str
) -> None:
    cluster.create(topic)
    found = ask(cluster, "/v3/kv/range", key="AA==", range_end="AA==", keys_only=True)["kvs"]
    keys = [base64.b64decode(entry["key"]).decode() for entry in found]
    document = next(key for key in keys if key.endswith(f"/topics/{topic}"))
    put(cluster, f"{document}-2", b'{"version":99}')
    brokers = cluster.brokers.values()
    eventually(lambda: not any(broker.is_running for broker in brokers), seconds_max=30, every=0.1)
    for broker in brokers:
        assert broker.stop() == 1
        assert f"{document}-2" in broker.stderr.splitlines()[-1]
    ask(cluster, "/v3/kv/deleterange", key=base64.b64encode(f"{document}-2".encode()).decode())
    cluster.start()
    cluster.until_in_sync(topic, EVERYBODY)


def _has_created(cluster: ClusterProcesses, topic: str) -> bool:
    try:
        cluster.create(topic, partitions=20)
    except KafkaException:
        return False
    return True
