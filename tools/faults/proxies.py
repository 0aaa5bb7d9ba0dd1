"""A lab without namespaces: all processes use this host's loopback, with a proxy in front of each.

Each machine has two addresses of 127.0.0.0/8: its processes listen at one, and the proxy listens at the
other, which is advertised. Disks are folders, which have no faults.

Rule: other machines and clients know a machine only by `known_as`; only the lab uses `address`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.faults.disks import Folder
from tools.faults.lab import (
    SLOW_BYTES_PER_S,
    SLOW_LATENCY_S,
    Ability,
    UnsupportedHost,
    die_with_parent,
    start_process,
)
from tools.faults.proxy import CLIENTS

PORTS: Final = (9092, 2379)
"""Ports at which the machines reach each other."""
PROXY_HOST_OFFSET: Final = 100


class ProxyMachine:
    def __init__(self, number: int, name: str, prefix: str, folder: Path, lab: "ProxyLab") -> None:
        self.number = number
        self.name = name
        self.address = f"{prefix}.{number}"
        self.known_as = f"{prefix}.{PROXY_HOST_OFFSET + number}"
        self.disk = Folder(folder)
        self._lab = lab

    def command(self, *words: str) -> list[str]:
        return list(words)

    def start(self, *words: str, log: Path) -> "subprocess.Popen[bytes]":
        process = start_process(self.command(*words), log)
        self._lab.add_process(self, process.pid)
        return process


class ProxyLab:
    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        require_possible()
        self.folder = folder
        self.cannot = dict[Ability, str](Folder.cannot)
        # Another process of this host may run a lab, too.
        run = os.getpid() % (1 << 14)
        prefix = f"127.{64 + run // 256}.{run % 256}"
        self.machines = {
            name: ProxyMachine(number, name, prefix, folder / name, self)
            for number, name in enumerate(names, start=1)
        }
        parties = {
            machine.name: [((machine.known_as, port), (machine.address, port)) for port in PORTS]
            for machine in self.machines.values()
        }
        self._proxy = subprocess.Popen(
            [sys.executable, "-m", "tools.faults.proxy", json.dumps(parties)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        self.heal()

    def add_process(self, machine: ProxyMachine, pid: int) -> None:
        """Tell the proxy that connections of this process are connections of the machine."""
        self.order(do="add process", name=machine.name, pid=pid)

    def order(self, **order: object) -> None:
        """Send an order to the proxy, and return when it is carried out."""
        assert self._proxy.stdin is not None
        assert self._proxy.stdout is not None
        self._proxy.stdin.write(json.dumps(order) + "\n")
        self._proxy.stdin.flush()
        if not self._proxy.stdout.readline():
            raise RuntimeError("the proxy has ended")

    def close(self) -> None:
        self._proxy.kill()
        self._proxy.communicate()
        for machine in self.machines.values():
            machine.disk.remove()

    def __getitem__(self, name: str) -> ProxyMachine:
        return self.machines[name]

    def cut(self, name: str, others: Sequence[str] | None = None, *, one_way: bool = False) -> None:
        links = self._from(name, others)
        if not one_way:
            links += [(there, here) for here, there in links]
        self.order(do="cut", links=links)

    def slow(self, name: str) -> None:
        links = self._from(name)
        links += [(there, here) for here, there in links]
        self.order(do="slow", links=links, latency_s=SLOW_LATENCY_S, bytes_per_s=SLOW_BYTES_PER_S)

    def reset(self, name: str) -> None:
        self.order(do="reset", name=name)

    def heal(self) -> None:
        self.order(do="heal")

    def _from(self, name: str, others: Sequence[str] | None = None) -> list[tuple[str, str]]:
        ends = [*self.machines, CLIENTS] if others is None else others
        return [(name, other) for other in ends if other != name]


def require_possible() -> None:
    if not sys.platform.startswith("linux"):
        raise UnsupportedHost(
            "without namespaces, proxies find the sender of a connection in /proc, which only Linux has"
        )
    if not Path("/proc/net/tcp").exists():
        raise UnsupportedHost("there is no /proc/net/tcp, in which proxies find the sender of a connection")
