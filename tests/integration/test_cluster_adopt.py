"""`penstock cluster adopt` with a real etcd, and killed at every step."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

from tests.integration.broker_process import BrokerProcess, eventually, penstock, serving
from tests.integration.etcd_process import Etcd, running_etcd

RECORDS = 50
GROUP = "billing"
# `penstock`, which dies at a step as by signal 9: a transaction of the store, or the file that is the mark.
DYING = """
import os, runpy, sys
from penstock.host.os_disk import OsDisk
from penstock.metadata.etcd.etcd_store import EtcdStore

left = int(sys.argv.pop(1))
commit, store = EtcdStore.transact, OsDisk.store

def step():
    global left
    left -= 1
    if left < 0:
        os._exit(137)

async def transact(self, compares, changes):
    step()
    return await commit(self, compares, changes)

def put(self, writes):
    step()
    store(self, writes)

EtcdStore.transact, OsDisk.store = transact, put
runpy.run_module("penstock", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that was alone, with records, settings and a group."""
    path = tmp_path_factory.mktemp("alone") / "data"
    with serving(path) as alone:
        servers: dict[str, str | int | float | bool] = {"bootstrap.servers": alone.bootstrap}
        admin = AdminClient(servers)
        wanted = [NewTopic("orders", num_partitions=2, config={"retention.ms": "-1"}), NewTopic("many", 140)]
        for created in admin.create_topics(wanted).values():
            created.result(20)
        producer = Producer(servers | {"enable.idempotence": True})
        for number in range(RECORDS):
            producer.produce("orders", b"%d" % number, partition=number % 2)
        assert producer.flush(20) == 0
        consumer = Consumer(servers | {"group.id": GROUP, "enable.auto.commit": False})
        consumer.commit(offsets=[TopicPartition("orders", 0, 17)], asynchronous=False)
        consumer.close()
        assert alone.stop() == 0
    return path


@pytest.fixture
def folder(origin: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(origin, tmp_path / "data"))


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with running_etcd(tmp_path / "etcd") as etcd:
        yield etcd


def adopt(folder: Path, etcd: Etcd, *flags: str) -> str:
    done = penstock("cluster", "adopt", "--data-dir", str(folder), "--metadata", etcd.url, *flags)
    assert done.exit_code == 0, done.stderr
    return done.stdout + done.stderr


def require_everything(bootstrap: str) -> None:
    servers: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap}
    consumer = Consumer(servers | {"group.id": GROUP, "enable.auto.commit": False})
    found: list[int] = []
    for partition in range(2):
        consumer.assign([TopicPartition("orders", partition, 0)])
        while len(found) < RECORDS // 2 * (partition + 1):
            message = consumer.poll(20)
            assert message is not None
            assert message.error() is None
            found.append(int(message.value() or b""))
    (committed,) = consumer.committed([TopicPartition("orders", 0)], timeout=20)
    consumer.close()
    assert sorted(found) == list(range(RECORDS))
    assert committed.offset == 17
    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    admin = AdminClient(servers)  # held: it ends with its last reference
    (described,) = admin.describe_configs([resource]).values()
    assert described.result(20)["retention.ms"].value == "-1"


def copies(bootstrap: str, topic: str) -> int:
    """In sync, of its first partition."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=10).topics[topic]
    return len(found.partitions[0].isrs)


def test_an_adopted_broker_keeps_everything_and_others_join_it(folder: Path, etcd: Etcd) -> None:
    said = adopt(folder, etcd)
    assert "node 1 is the first of cluster" in said
    assert f"--metadata {etcd.url}" in said
    alone = penstock("serve", "--data-dir", str(folder))
    assert alone.exit_code == 2
    assert "start it with --metadata" in alone.stderr
    assert "nothing was done" in adopt(folder, etcd)
    with (
        serving(folder, "--metadata", etcd.url) as first,
        serving(folder.parent / "second", "--node-id", "2", "--metadata", etcd.url) as second,
    ):
        require_everything(second.bootstrap)
        # New topics are replicated, as in any cluster.
        producer = Producer({"bootstrap.servers": first.bootstrap})
        producer.produce("orders", b"%d" % RECORDS, partition=0)
        producer.produce("fresh", b"1")
        assert producer.flush(20) == 0
        eventually(lambda: copies(first.bootstrap, "fresh") == 2)
        # And where groups are kept, without being asked.
        eventually(lambda: copies(first.bootstrap, "__consumer_offsets") == 2, seconds_max=60, every=0.2)
        assert copies(first.bootstrap, "orders") == 1
        undone = penstock("cluster", "adopt", "--data-dir", str(folder), "--metadata", etcd.url, "--undo")
        assert undone.exit_code == 1
        assert "in use by process" in undone.stderr
        second.stop()
        first.stop()
    undone = penstock("cluster", "adopt", "--data-dir", str(folder), "--metadata", etcd.url, "--undo")
    assert undone.exit_code == 2
    assert "used it since" in undone.stderr


@pytest.mark.timeout(300)
def test_killed_at_every_step_the_broker_is_alone_or_a_member(folder: Path, etcd: Etcd) -> None:
    """Never both and never neither, and the command can be run again. Four processes for each step: 13 s."""
    steps = 0
    while True:
        command = [sys.executable, "-c", DYING, str(steps), "cluster", "adopt", "--data-dir", str(folder)]
        done = subprocess.run([*command, "--metadata", etcd.url], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == 137, done.stderr
        assert "is_member" not in json.loads((folder / "penstock.json").read_text())
        joining = penstock("serve", "--data-dir", str(folder), "--metadata", etcd.url)
        assert joining.exit_code == 2
        assert "penstock cluster adopt" in joining.stderr
        with serving(folder) as alone:  # as it was, which also changes what is to be adopted
            admin = AdminClient({"bootstrap.servers": alone.bootstrap})
            admin.create_topics([NewTopic(f"step-{steps}", 1)])[f"step-{steps}"].result(20)
            assert alone.stop() == 0
        steps += 1
    assert steps >= 4, "leftovers, two transactions, the cluster's id, and the mark"
    with serving(folder, "--metadata", etcd.url) as member:
        require_everything(member.bootstrap)
        topics = AdminClient({"bootstrap.servers": member.bootstrap}).list_topics(timeout=10).topics
        assert {f"step-{number}" for number in range(steps)} < set(topics)


def test_an_undone_adoption_leaves_a_broker_alone_and_the_store_empty(folder: Path, etcd: Etcd) -> None:
    adopt(folder, etcd)
    assert "node 1 is alone again" in adopt(folder, etcd, "--undo")
    with serving(folder) as alone:
        require_everything(alone.bootstrap)
        assert alone.stop() == 0
    with serving(folder.parent / "other", "--metadata", etcd.url):  # an empty store takes any cluster
        said = penstock("cluster", "adopt", "--data-dir", str(folder), "--metadata", etcd.url)
    assert said.exit_code == 2
    assert "holds another cluster already" in said.stderr


def test_a_broker_that_runs_is_not_adopted(folder: Path, etcd: Etcd) -> None:
    with serving(folder) as alone:
        said = penstock("cluster", "adopt", "--data-dir", str(folder), "--metadata", etcd.url)
        assert said.exit_code == 1
        assert f"in use by process {alone.pid}" in said.stderr


def test_a_broker_that_crashed_is_adopted_with_what_it_acknowledged(folder: Path, etcd: Etcd) -> None:
    broker = BrokerProcess(folder)
    broker.start()
    broker.kill()
    assert not os.path.exists(folder / "clean-shutdown")
    adopt(folder, etcd)
    with serving(folder, "--metadata", etcd.url) as member:
        require_everything(member.bootstrap)
