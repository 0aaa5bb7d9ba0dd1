"""`penstock cluster up` from its first process to its last, with scripts in the place of etcd and brokers."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from penstock.cli.local_cluster import local_cluster
from penstock.cli.local_cluster.local_cluster import DidNotStart, LocalCluster
from penstock.cli.local_cluster.plan import LocalBroker, LocalClusterPlan, LocalEtcd
from tests.unit.broker.waiting import until

SECONDS_MAX = 20.0
OBEDIENT = "echo ready; exec sleep 60"
DEAF = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
REFUSING = "sleep 0.3; echo no >&2; exit 1"
REFUSING_LATE = "trap 'exit 1' TERM; while :; do sleep 0.05; done"


class ScriptedNode(LocalBroker):
    script = ""

    def command(self, store: str) -> list[str]:
        return ["/bin/sh", "-c", self.script]


class ScriptedEtcd(LocalEtcd):
    def command(self) -> list[str]:
        return ["/bin/sh", "-c", OBEDIENT]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is told on stderr. The etcd of these clusters answers at once."""
    lines: list[str] = []

    async def answers(_: LocalCluster) -> bool:
        return True

    monkeypatch.setattr(LocalCluster, "_etcd_answers", answers)
    monkeypatch.setattr(local_cluster, "print_stderr", lines.append)
    return lines


def cluster_of(folder: Path, *scripts: str) -> LocalCluster:
    nodes = tuple(
        type("Scripted", (ScriptedNode,), {"script": script})(number, f"{folder}/broker-{number}", 0, 0)
        for number, script in enumerate(scripts)
    )
    return LocalCluster(
        LocalClusterPlan(str(folder), nodes, ScriptedEtcd("etcd", str(folder), 0, 0)), restarts=False
    )


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def kill(pid_path: Path) -> None:
    os.kill(int(pid_path.read_text()), signal.SIGKILL)


def process_ids(folder: Path) -> list[Path]:
    return list(folder.rglob("*.pid"))


async def until_said(said: list[str], words: str) -> str:
    def found() -> list[str]:
        return [line for line in said if words in line]

    await until(lambda: bool(found()), seconds_max=SECONDS_MAX)
    return found()[0]


async def test_what_dies_is_told_with_what_that_leaves_and_what_to_do(
    tmp_path: Path, said: list[str]
) -> None:
    task = asyncio.create_task(cluster_of(tmp_path, OBEDIENT, OBEDIENT).run())
    await until_said(said, "cluster ready")

    kill(tmp_path / "broker-0/penstock.pid")
    assert "the others go on without it" in await until_said(said, "node 0 ended")
    kill(tmp_path / "broker-1/penstock.pid")
    last = await until_said(said, "node 1 ended")
    assert "no broker is left; Ctrl-C and the same command" in last
    kill(tmp_path / "etcd.pid")
    assert "Ctrl-C and the same command" in await until_said(said, "etcd ended")

    ctrl_c()
    await task
    assert said[-1].startswith("all stopped; the same command goes on")


async def test_what_was_killed_is_said_to_be_and_leaves_no_process_ids(
    tmp_path: Path, said: list[str]
) -> None:
    cluster = cluster_of(tmp_path, DEAF)
    task = asyncio.create_task(cluster.run())
    await until_said(said, "cluster ready")

    ctrl_c()
    await until_said(said, "Ctrl-C again")
    ctrl_c()
    await task
    assert cluster.was_killed
    assert said[-1].startswith("all killed; ")
    assert not process_ids(tmp_path)


async def test_of_a_start_that_failed_only_the_reason_is_told(tmp_path: Path, said: list[str]) -> None:
    with pytest.raises(DidNotStart, match="node 0 did not start"):
        await cluster_of(tmp_path, REFUSING, REFUSING_LATE).run()
    assert not [line for line in said if "cleanly" in line or "goes on" in line]
    assert not process_ids(tmp_path)
