"""The kinds of faults, and the order in which a run injects them, drawn from a seed."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from tools.faults.cluster import ETCD, Cluster
from tools.faults.history import FaultSpan
from tools.faults.lab import Ability

CALM_S: Final = (0.5, 2.0)
"""Pause between two faults, from and to."""
ALL_BROKERS: Final = "all brokers"


class Fault(NamedTuple):
    kind: str
    seconds: float
    """How long the fault lasts."""
    inject: Callable[[Cluster, str], None]
    """Injects the fault on the broker of this name."""
    needs: Ability | None = None


def _reset(cluster: Cluster, name: str) -> None:
    cluster.lab.reset(name)


def _disk_full(cluster: Cluster, name: str) -> None:
    cluster.lab[name].disk.fill()


def _power_loss(cluster: Cluster, name: str) -> None:
    """Cut the network first: a machine without power sends no FIN or RST."""
    cluster.lab.cut(name)
    cluster.brokers[name].kill()
    cluster.lab[name].disk.lose_power()


def _power_loss_of_all(cluster: Cluster, name: str) -> None:
    cluster.kill_all()
    for process in cluster.processes:
        process.machine.disk.lose_power()


def _etcd_paused(cluster: Cluster, name: str) -> None:
    cluster.etcd.pause()


def _etcd_killed(cluster: Cluster, name: str) -> None:
    cluster.etcd.kill()


FAULTS: Final = (
    Fault("kill", 2.0, lambda cluster, name: cluster.brokers[name].kill()),
    Fault("pause", 9.0, lambda cluster, name: cluster.brokers[name].pause()),
    Fault("cut off", 9.0, lambda cluster, name: cluster.lab.cut(name)),
    Fault("cut off, one way", 9.0, lambda cluster, name: cluster.lab.cut(name, one_way=True)),
    Fault("cut off from etcd", 9.0, lambda cluster, name: cluster.lab.cut(name, [ETCD])),
    Fault("cut off from brokers", 9.0, lambda cluster, name: cluster.lab.cut(name, list(cluster.brokers))),
    Fault("slow link", 9.0, lambda cluster, name: cluster.lab.slow(name), Ability.SLOW_LINK),
    Fault("connections reset", 0.5, _reset, Ability.RESET),
    Fault("disk full", 4.0, _disk_full, Ability.DISK_FULL),
    Fault("power loss", 9.0, _power_loss, Ability.POWER_LOSS),
    Fault("power loss of all", 1.0, _power_loss_of_all, Ability.POWER_LOSS),
    Fault("etcd paused", 8.0, _etcd_paused),
    Fault("etcd killed", 3.0, _etcd_killed),
)
OF_ETCD: Final = ("etcd paused", "etcd killed")
OF_ALL: Final = ("power loss of all",)


class Step(NamedTuple):
    fault: Fault
    calm_s: float
    """Pause before the fault."""
    draw: float
    """Selects the broker, from 0 to 1."""


def draw_steps(seed: int, faults: Sequence[Fault]) -> Iterator[Step]:
    """Endless steps: every fault about equally often, in an order that depends only on the seed."""
    assert faults, "there is something to draw from"
    random_source = random.Random(seed)
    while True:
        for fault in random_source.sample(faults, len(faults)):
            yield Step(fault, random_source.uniform(*CALM_S), random_source.random())


def carry_out(step: Step, cluster: Cluster, leaders: dict[int, str]) -> FaultSpan:
    """Inject the fault on a broker that leads a partition, so that clients are affected; wait; heal."""
    candidates = sorted(set(leaders.values()))
    name = candidates[int(step.draw * len(candidates))]
    began = time.monotonic()
    step.fault.inject(cluster, name)
    time.sleep(step.fault.seconds)
    ended = time.monotonic()
    cluster.heal()
    if step.fault.kind in (*OF_ETCD, *OF_ALL):
        what = ETCD if step.fault.kind in OF_ETCD else ALL_BROKERS
        return FaultSpan(step.fault.kind, what, began, ended, tuple(leaders))
    led = tuple(partition for partition, leader in leaders.items() if leader == name)
    return FaultSpan(step.fault.kind, name, began, ended, led)
