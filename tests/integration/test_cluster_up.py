"""`penstock cluster up` as a developer uses it: real processes, signals, kills."""

import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from penstock.cli.local_cluster.checks import is_running
from tests.integration.broker_process import eventually, penstock
from tests.integration.free_ports import free_port_range
from tests.integration.local_cluster import ClusterUp, cluster_up


def produce(cluster: ClusterUp, topic: str, value: str) -> None:
    done = penstock("produce", topic, "--value", value, "--bootstrap", cluster.bootstrap)
    assert done.exit_code == 0, done.stderr


def values(cluster: ClusterUp, topic: str) -> list[str]:
    done = penstock("consume", topic, "--format", "%v", "--bootstrap", cluster.bootstrap)
    assert done.exit_code == 0, done.stderr
    return done.stdout.split()


def test_a_cluster_starts_loses_a_broker_stops_and_resumes(tmp_path: Path) -> None:
    with cluster_up(tmp_path / "cluster", 3) as cluster:
        ready = {int(line["id"]): line for line in cluster.ready()}
        for node in range(3):
            assert ready[node]["kafka"] == f"127.0.0.1:{cluster.kafka_port + node}"
            assert ready[node]["http"] == f"127.0.0.1:{cluster.http_port + node}"
            assert int(ready[node]["pid"]) == cluster.pid(node)
        assert f"--bootstrap {cluster.bootstrap}" in cluster.until_said("cluster ready")
        assert "penstock.log" in cluster.until_said("logs:")

        done = penstock("topic", "create", "orders", "--bootstrap", cluster.bootstrap)
        assert "replication factor 3" in done.stdout, done
        produce(cluster, "orders", "apples")
        os.kill(cluster.pid(1), signal.SIGKILL)
        told = cluster.until_said("node 1 ended")
        assert "killed by SIGKILL" in told
        assert "stays so" in told
        assert not cluster.pid_path(1).exists()
        produce(cluster, "orders", "plums")

        pids = [cluster.pid(node) for node in ("etcd", 0, 2)]
        assert cluster.end() == 0, cluster.lines
        assert not any(map(is_running, pids))
        assert not list(cluster.folder.rglob("*.pid"))
        assert not [line for line in cluster.lines if "cleanly" in line or "Traceback" in line]

        cluster.start()
        cluster.until_ready()
        assert values(cluster, "orders") == ["apples", "plums"]
        assert cluster.end(signal.SIGTERM) == 0


def test_with_restart_what_dies_comes_back(tmp_path: Path) -> None:
    with cluster_up(tmp_path / "cluster", 1, "--restart") as cluster:
        produce(cluster, "orders", "apples")
        before = cluster.pid(0)
        os.kill(before, signal.SIGKILL)
        cluster.until_ready(2)
        assert cluster.pid(0) != before
        address = cluster.until_said("etcd ready")
        os.kill(cluster.pid("etcd"), signal.SIGKILL)
        eventually(lambda: sum("etcd ready" in line for line in cluster.lines) == 2, seconds_max=30)
        assert cluster.lines[-1].partition(" pid=")[0] == address.partition(" pid=")[0]
        produce(cluster, "payments", "cash")
        assert values(cluster, "orders") == ["apples"]
        assert cluster.end() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere children outlive a parent that is killed")
def test_nothing_outlives_a_command_that_is_killed(tmp_path: Path) -> None:
    with cluster_up(tmp_path / "cluster", 1) as cluster:
        pids = cluster.pids()
        cluster.kill()
        eventually(lambda: not any(map(is_running, pids)))
        # What it left behind is no obstacle.
        cluster.start()
        cluster.until_ready()
        assert cluster.end() == 0


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    with cluster_up(tmp_path / "cluster", 1) as cluster:
        pids = cluster.pids()
        os.kill(cluster.pid("etcd"), signal.SIGSTOP)  # so that brokers take long to say goodbye
        cluster.process.send_signal(signal.SIGINT)
        cluster.until_said("Ctrl-C again")
        assert cluster.end() == 130
        assert not any(map(is_running, pids))


def test_a_broker_that_does_not_start_ends_everything_with_its_reason(tmp_path: Path) -> None:
    with cluster_up(tmp_path / "cluster", 1) as cluster:
        pids = cluster.pids()
        assert cluster.end() == 0
        identity = cluster.folder / "broker-0" / "penstock.json"
        identity.write_text(json.dumps(json.loads(identity.read_text()) | {"node_id": 7}))
        cluster.start()
        assert cluster.ended() == 1
        said = "\n".join(cluster.lines)
        assert "node 0 did not start" in said
        assert "belongs to node 7" in said
        assert str(cluster.folder / "broker-0" / "penstock.log") in said
        assert not any(map(is_running, pids))
        assert not list(cluster.folder.rglob("*.pid"))


def test_a_port_that_is_taken_is_told_before_anything_starts(tmp_path: Path) -> None:
    kafka = free_port_range(2)
    with socket.create_server(("127.0.0.1", kafka + 1)):
        flags = ("--data-dir", str(tmp_path / "cluster"), "--kafka-port", str(kafka), "--brokers", "2")
        done = penstock("cluster", "up", *flags, "--http-port", str(free_port_range(2)))
    assert done.exit_code == 1
    assert f"port {kafka + 1}" in done.stderr
    assert not (tmp_path / "cluster").exists()


def test_brokers_are_added_to_a_cluster_and_none_is_left_out(tmp_path: Path) -> None:
    with cluster_up(tmp_path / "cluster", 1) as cluster:
        assert cluster.end() == 0
    with cluster_up(tmp_path / "cluster", 2) as cluster:
        assert cluster.end() == 0
    done = penstock("cluster", "up", "--data-dir", str(tmp_path / "cluster"), "--brokers", "1")
    assert done.exit_code == 2
    assert "has 2 brokers" in done.stderr
