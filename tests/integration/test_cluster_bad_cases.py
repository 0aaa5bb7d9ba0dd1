"""Brokers that come back wrong, and what is asked for and cannot be: refused clearly, or safe.

| Case | What becomes of it | Where |
|---|---|---|
| wiped disk, others have the records | rejoins, copies everything | test_cluster_failover |
| wiped disk, nobody else has them | rejoins; what is lost is offline, not empty | here |
| older copy of its disk | rejoins, copies what it lacks; what is lost is offline | here |
| the folder of one partition is gone | copies it from others, who cut nothing | here |
| copy of the folder of a living broker | refused | here |
| another cluster's data | refused | test_cluster_joining |
| duplicate node id | refused | test_cluster_joining |
| duplicate node id, the other process wakes | stays out until its id is free | here |
| clock an hour off | rejoins; timestamps beyond the topic's bound are refused | here |
| old incarnation's lease, same disk | rejoins at once | here |
| old incarnation's lease, another disk | waits for its end, rejoins as wiped | test_cluster_failover |
| topic deleted and made anew while away | has nothing of the old one | test_cluster_changes |
| replication factor beyond the cluster | INVALID_REPLICATION_FACTOR | here |
"""

import os
import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.limits import BROKER_SESSION_MS
from tests.integration.broker_process import BrokerProcess, eventually
from tests.integration.cluster_load import read_all
from tests.integration.cluster_processes import ClusterProcesses
from tests.integration.free_ports import free_ports

EVERYBODY = [1, 2, 3]
HOUR_MS = 3_600_000
SHORTER_THAN_A_SESSION_MS = 3_500
# Found by every Python that has its folder on its path, before anything else is imported.
CLOCK_MOVED = """
import time

now, now_ns = time.time, time.time_ns
time.time = lambda: now() + {hours} * 3600
time.time_ns = lambda: now_ns() + {hours} * 3600 * 10**9
"""


def test_what_only_a_wiped_disk_had_is_offline_and_not_empty(cluster: ClusterProcesses) -> None:
    """It rejoins safely; what is lost is not shown as if it had never been."""
    cluster.create("single", factor=1)
    cluster.create("safe", factor=3)
    assert cluster.write("single", range(10)) == [None] * 10
    assert cluster.write("safe", range(10)) == [None] * 10
    wiped = cluster.leader("single")
    cluster.brokers[wiped].kill()
    shutil.rmtree(cluster.brokers[wiped].data_dir)
    cluster.brokers[wiped].start()
    cluster.until_in_sync("safe", EVERYBODY)
    assert read_all(cluster.bootstrap, "safe") == list(range(10))
    assert cluster.leader("single") == -1
    assert cluster.write("single", range(1), timeout_ms=2000) == ["_MSG_TIMED_OUT"]
    admin = cluster.admin()
    admin.delete_topics(["single"])["single"].result(20)  # a person says that it may be lost


def test_one_folder_that_is_gone_costs_no_record(cluster: ClusterProcesses) -> None:
    """All had it and are killed; the one without it is the first to be back, and does not lead."""
    cluster.create_led_by("holed", 1)
    assert cluster.write("holed", range(10)) == [None] * 10
    cluster.until_in_sync("holed", EVERYBODY)
    data = cluster.brokers[1].data_dir
    topic_id = (data / "logs" / "holed-0" / "partition.metadata").read_text().split()[-1]
    listed = data / "partitions.json"
    eventually(lambda: listed.exists() and topic_id in listed.read_text(), seconds_max=5)
    for broker in cluster.brokers.values():
        broker.kill()
    shutil.rmtree(data / "logs" / "holed-0")
    cluster.brokers[1].start()
    eventually(lambda: cluster.leader("holed") == -1, seconds_max=15)  # when the others are known to be dead
    for node_id in (2, 3):
        cluster.brokers[node_id].start()
    cluster.until_in_sync("holed", EVERYBODY)
    assert read_all(cluster.bootstrap, "holed") == list(range(10))


def test_a_copy_of_the_folder_of_a_living_broker_does_not_take_its_place(cluster: ClusterProcesses) -> None:
    living = cluster.brokers[2]
    shutil.copytree(living.data_dir, living.data_dir.with_name("twin"))
    twin = cluster.broker(2, folder="twin", port=free_ports(1)[0])
    try:
        with pytest.raises(AssertionError, match="node id 2 is taken"):
            twin.start()
    finally:
        twin.kill()
    assert living.get("/health/ready")[0] == 200


@pytest.mark.parametrize("clean", [True, False])
def test_an_older_copy_of_a_disk_is_not_taken_for_the_disk(cluster: ClusterProcesses, clean: bool) -> None:
    """It rejoins safely: what it acknowledged since the copy was made is not claimed to be there."""
    lone, shared = f"lone-{clean}", f"shared-{clean}"
    cluster.create(lone, factor=1)
    cluster.create(shared, factor=3)
    broker = cluster.brokers[cluster.leader(lone)]
    for topic in (lone, shared):
        assert cluster.write(topic, range(10)) == [None] * 10
    if clean:
        assert broker.stop() == 0
    else:
        broker.kill()
    copy = broker.data_dir.with_name("copy")
    shutil.copytree(broker.data_dir, copy)
    broker.start()
    for topic in (lone, shared):
        assert cluster.write(topic, range(10)) == [None] * 10
    cluster.until_in_sync(shared, EVERYBODY)
    broker.kill()
    shutil.rmtree(broker.data_dir)
    copy.rename(broker.data_dir)
    broker.start()
    cluster.until_in_sync(shared, EVERYBODY)
    assert read_all(cluster.bootstrap, shared) == [*range(10), *range(10)]
    assert cluster.leader(lone) == -1
    admin = cluster.admin()
    admin.delete_topics([lone])[lone].result(20)


def test_the_lease_of_a_killed_process_does_not_hold_up_the_next_one(cluster: ClusterProcesses) -> None:
    """The old incarnation's lease still runs: on the same disk it rejoins at once."""
    cluster.create("leased")
    killed = cluster.leader("leased")
    cluster.brokers[killed].kill()
    started_at = time.monotonic()
    cluster.brokers[killed].start()
    took_ms = (time.monotonic() - started_at) * 1000
    print(f"ready {took_ms:.0f} ms after the kill, with a lease of {BROKER_SESSION_MS} ms")
    assert took_ms < BROKER_SESSION_MS
    cluster.until_in_sync("leased", EVERYBODY)
    assert cluster.write("leased", range(10)) == [None] * 10


def test_a_process_that_wakes_and_finds_its_id_taken_stays_out(cluster: ClusterProcesses) -> None:
    """Two processes with one id: whoever has the lease counts, and the other serves nobody."""
    cluster.create("doubled")
    assert cluster.write("doubled", range(10)) == [None] * 10
    sleeper = cluster.brokers[3]
    sleeper.pause()
    successor = cluster.broker(3, folder="successor", port=free_ports(1)[0])
    try:
        successor.start()  # when the lease is over, with a disk of its own
        cluster.until_in_sync("doubled", EVERYBODY)
        sleeper.resume()
        # First it hears that it is not admitted any more, then it asks to be, and is told why it is not.
        eventually(lambda: "another process has node id 3" in sleeper.get("/health/ready")[1])
        assert sleeper.get("/health/ready")[0] == 503
        assert cluster.write("doubled", range(10)) == [None] * 10
        _require_that_only_the_member_counts(cluster, successor)
        addresses = {
            f"{broker.host}:{broker.port}"
            for broker in cluster.admin().list_topics(timeout=10).brokers.values()
        }
        assert successor.bootstrap in addresses
        assert sleeper.bootstrap not in addresses
        assert successor.get("/health/ready")[0] == 200
        assert successor.stop() == 0
        # Its id is free again: it comes back, as a broker that has been away.
        eventually(lambda: sleeper.get("/health/ready")[0] == 200, seconds_max=20)
        cluster.until_in_sync("doubled", EVERYBODY)
        assert read_all(cluster.bootstrap, "doubled") == [*range(10), *range(10)]
    finally:
        successor.kill()


def _require_that_only_the_member_counts(cluster: ClusterProcesses, member: BrokerProcess) -> None:
    """A new leader knows of nobody's fetches yet: those of the sleeper are not those of a stopped member."""
    cluster.create_led_by("counted", 1)
    cluster.until_in_sync("counted", EVERYBODY)
    member.pause()
    try:
        cluster.brokers[1].kill()
        assert cluster.write("counted", range(1), timeout_ms=SHORTER_THAN_A_SESSION_MS) != [None]
    finally:
        member.resume()
    cluster.brokers[1].start()
    cluster.until_in_sync("counted", EVERYBODY)
    cluster.until_in_sync("doubled", EVERYBODY)


def test_clocks_that_are_an_hour_off_cost_nothing(
    cluster: ClusterProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rejoins safely: nothing that brokers agree on rests on what their clocks say."""
    path = os.environ.get("PYTHONPATH", "")
    for node_id, hours in ((2, 1), (3, -1)):
        folder = tmp_path / f"clock-{node_id}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(CLOCK_MOVED.format(hours=hours))
        monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{path}")
        assert cluster.brokers[node_id].stop() == 0
        cluster.brokers[node_id].start()
    monkeypatch.setenv("PYTHONPATH", path)
    first = {node_id: len(cluster.brokers[node_id].stderr) for node_id in EVERYBODY}
    for leader in EVERYBODY:
        topic = f"led-by-{leader}"
        cluster.create_led_by(topic, leader)
        # Who is an hour behind takes what others wrote now for the future, as any Kafka broker does.
        now_ms = time.time_ns() // 1_000_000
        stamp = now_ms - HOUR_MS if leader == 3 else now_ms
        assert cluster.write(topic, range(10), timestamp_ms=stamp) == [None] * 10
        if leader == 3:
            assert cluster.write(topic, range(1), timestamp_ms=now_ms + HOUR_MS) == ["INVALID_TIMESTAMP"]
        cluster.until_in_sync(topic, EVERYBODY)
        logs = {cluster.log_of(node_id, topic) for node_id in EVERYBODY}
        assert len(logs) == 1, "replicas differ"
        assert first_timestamp(cluster, topic) == stamp
    # Longer than a lease: nobody was taken for dead.
    time.sleep(BROKER_SESSION_MS / 1000)
    for node_id, size in first.items():
        assert "broker.session_over" not in cluster.brokers[node_id].stderr[size:]
    cluster.brokers[2].kill()
    cluster.until_led_by_another("led-by-2", 2, seconds_max=10)
    assert cluster.write("led-by-2", range(10)) == [None] * 10
    for node_id in (2, 3):
        cluster.brokers[node_id].kill()
        cluster.brokers[node_id].start()
    cluster.until_in_sync("led-by-2", EVERYBODY)
    assert read_all(cluster.bootstrap, "led-by-2") == [*range(10), *range(10)]


def first_timestamp(cluster: ClusterProcesses, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(20)
    consumer.close()
    assert message is not None
    return message.timestamp()[1]


def test_more_replicas_than_brokers_are_refused(cluster: ClusterProcesses) -> None:
    """INVALID_REPLICATION_FACTOR, and nothing is made."""
    with pytest.raises(KafkaException) as refused:
        cluster.create("broad", factor=4)
    error = refused.value.args[0]
    assert error.code() == KafkaError.INVALID_REPLICATION_FACTOR
    assert "needs 4 brokers; 3 are registered" in error.str()
    assert "broad" not in cluster.admin().list_topics(timeout=10).topics
