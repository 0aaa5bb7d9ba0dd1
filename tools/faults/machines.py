"""Machines of a cluster on one host, each with a network namespace and a disk of its own.

    this process, in its own namespace ── bridge ── one namespace for each machine

A namespace lives as long as a process in it: each machine has a sleeping process. These die with this
process, however it ends, so nothing is left behind.

To cut a machine off from another one, the lab gives it a wrong hardware address for the other: frames are
sent and not received. As with a pulled cable, neither side gets an error, and it works in one direction.
A slow machine is detached from the bridge, and a process forwards its frames in both directions
(`slow_link.py`).

Rule: every change is made in namespaces that this process created (`in_own_namespaces`).
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from tools.faults.disks import DISK_BYTES, make_disk, mount_tmpfs, unmount, why_no_images
from tools.faults.lab import (
    SLOW_BYTES_PER_S,
    SLOW_LATENCY_S,
    Ability,
    Disk,
    UnsupportedHost,
    die_with_parent,
    is_root,
    start_process,
)

PREFIX: Final = "10.77.0"
OWN_ADDRESS: Final = 254
UNUSED_HARDWARE: Final = "02:00:00:00:00:99"
MARK: Final = "PENSTOCK_FAULTS_INSIDE"
SLOW_NEAR, SLOW_FAR = "slow-near", "slow-far"


def in_own_namespaces(module: str, arguments: Sequence[str]) -> int | None:
    """Run this program again in its own namespaces and return its exit code. None: it runs in them."""
    if os.environ.get(MARK):
        return None
    require_possible()
    command = [*_unshare(), "--net", "--mount", sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(command, env={**os.environ, MARK: "1"}, preexec_fn=die_with_parent)
    with _signals_passed_to(process):
        return process.wait()


@contextmanager
def _signals_passed_to(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Pass SIGTERM on to the child. SIGINT needs no help: the terminal sends it to both processes."""
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, ignored)


def require_possible() -> None:
    missing = [program for program in ("ip", "unshare", "nsenter", "mount") if shutil.which(program) is None]
    if missing:
        raise UnsupportedHost(f"the program {missing[0]} is not installed (packages iproute2 and util-linux)")
    script = "ip link add v0 type veth peer name v1 && ip link add b0 type bridge && mount -t tmpfs none /mnt"
    tried = subprocess.run([*_unshare(), "--net", "--mount", "sh", "-c", script], capture_output=True)
    if tried.returncode != 0:
        raise UnsupportedHost(f"namespaces cannot be made here: {tried.stderr.decode().strip()}")


def _unshare() -> list[str]:
    return ["unshare"] if is_root() else ["unshare", "--user", "--map-root-user"]


def _ip(*words: str, inside: int | None = None) -> None:
    prefix = [] if inside is None else ["nsenter", "--target", str(inside), "--net"]
    subprocess.run([*prefix, "ip", *words], check=True, capture_output=True)


class NamespaceMachine:
    def __init__(self, number: int, name: str, disk: Disk) -> None:
        self.number = number
        self.name = name
        self.address = self.known_as = f"{PREFIX}.{number}"
        self.disk = disk
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], preexec_fn=die_with_parent)

    @property
    def hardware(self) -> str:
        return f"02:00:00:00:00:{self.number:02x}"

    @property
    def port(self) -> str:
        """Name of the machine's network device at the bridge."""
        return f"m{self.number}"

    def plug_in(self, bridge: str) -> None:
        inner, pid = "eth0", str(self._holder.pid)
        _wait_for_own_namespace(self._holder.pid)
        _ip("link", "add", self.port, "type", "veth", "peer", "name", inner, "netns", pid)
        _ip("link", "set", self.port, "master", bridge, "up")
        _ip("link", "set", "lo", "up", inside=self._holder.pid)
        _ip("link", "set", inner, "address", self.hardware, "up", inside=self._holder.pid)
        _ip("address", "add", f"{self.address}/24", "dev", inner, inside=self._holder.pid)

    def command(self, *words: str) -> list[str]:
        return ["nsenter", "--target", str(self._holder.pid), "--net", *words]

    def start(self, *words: str, log: Path) -> "subprocess.Popen[bytes]":
        return start_process(self.command(*words), log)

    def send_to(self, address: str, hardware: str) -> None:
        words = ("neighbour", "replace", address, "lladdr", hardware, "dev", "eth0", "nud", "permanent")
        _ip(*words, inside=self._holder.pid)

    def end(self) -> None:
        self._holder.kill()
        self._holder.wait()


def _wait_for_own_namespace(pid: int) -> None:
    """Wait until the process has left the namespace of this one: until then both share a network."""
    ours = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{pid}/ns/net") == ours:
        os.sched_yield()


class NamespaceLab:
    """All machines, and the network between them."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self._images = folder / "images"
        self._images.mkdir()
        mount_tmpfs(self._images, DISK_BYTES * len(names))
        self.cannot: dict[Ability, str] = {}
        if reason := why_no_images(self._images):
            self.cannot[Ability.POWER_LOSS] = reason
        _ip("link", "set", "lo", "up")
        if reason := _why_no_resets():
            self.cannot[Ability.RESET] = reason
        _ip("link", "add", "bridge", "type", "bridge")
        _ip("link", "set", "bridge", "address", f"02:00:00:00:00:{OWN_ADDRESS:02x}", "up")
        _ip("address", "add", f"{PREFIX}.{OWN_ADDRESS}/24", "dev", "bridge")
        _ip("link", "add", SLOW_NEAR, "type", "veth", "peer", "name", SLOW_FAR)
        _ip("link", "set", SLOW_FAR, "master", "bridge", "up")
        _ip("link", "set", SLOW_NEAR, "up")
        self.machines = {name: self._machine(number, name) for number, name in enumerate(names, start=1)}
        self._slow: tuple[NamespaceMachine, subprocess.Popen[bytes]] | None = None
        self.heal()

    def _machine(self, number: int, name: str) -> NamespaceMachine:
        image = None if Ability.POWER_LOSS in self.cannot else self._images / f"{name}.image"
        machine = NamespaceMachine(number, name, make_disk(self.folder / name, image))
        machine.plug_in("bridge")
        return machine

    def close(self) -> None:
        """End all machines and remove their disks."""
        self._end_slowness()
        for machine in self.machines.values():
            machine.end()
            machine.disk.remove()
        unmount(self._images)
        self._images.rmdir()

    def __getitem__(self, name: str) -> NamespaceMachine:
        return self.machines[name]

    def cut(self, name: str, others: Sequence[str] | None = None, *, one_way: bool = False) -> None:
        machine = self.machines[name]
        for other in (each for each in self.machines.values() if each is not machine):
            if others is None or other.name in others:
                machine.send_to(other.address, UNUSED_HARDWARE)
                if not one_way:
                    other.send_to(machine.address, UNUSED_HARDWARE)
        if others is None:  # clients too: they are in the namespace of this process
            machine.send_to(f"{PREFIX}.{OWN_ADDRESS}", UNUSED_HARDWARE)
            if not one_way:
                self._set_own_neighbour(machine, UNUSED_HARDWARE)

    def slow(self, name: str) -> None:
        assert self._slow is None, "one machine at a time"
        machine = self.machines[name]
        words = [machine.port, SLOW_NEAR, str(SLOW_LATENCY_S), str(SLOW_BYTES_PER_S)]
        carrier = subprocess.Popen(
            [sys.executable, "-m", "tools.faults.slow_link", *words],
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )
        self._slow = (machine, carrier)
        assert carrier.stdout is not None
        if not carrier.stdout.readline():
            raise RuntimeError("the process that forwards frames has ended")
        _ip("link", "set", machine.port, "nomaster")

    def _end_slowness(self) -> None:
        if self._slow is not None:
            machine, carrier = self._slow
            carrier.kill()
            carrier.wait()
            assert carrier.stdout is not None
            carrier.stdout.close()
            _ip("link", "set", machine.port, "master", "bridge")
            self._slow = None

    def reset(self, name: str) -> None:
        words = self.machines[name].command("ss", "--kill", "--tcp", "state", "established")
        subprocess.run(words, check=True, capture_output=True)

    def heal(self) -> None:
        self._end_slowness()
        for machine in self.machines.values():
            for other in self.machines.values():
                if other is not machine:
                    machine.send_to(other.address, other.hardware)
            machine.send_to(f"{PREFIX}.{OWN_ADDRESS}", f"02:00:00:00:00:{OWN_ADDRESS:02x}")
            self._set_own_neighbour(machine, machine.hardware)

    def _set_own_neighbour(self, machine: NamespaceMachine, hardware: str) -> None:
        words = ("neighbour", "replace", machine.address, "lladdr", hardware, "dev", "bridge")
        _ip(*words, "nud", "permanent")


def _why_no_resets() -> str | None:
    """Try to reset a connection of this process. Returns the reason why that fails; None: it works."""
    if shutil.which("ss") is None:
        return "the program ss is not installed (package iproute2)"
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as server,
        closing(socket.create_connection(server.getsockname())) as line,
        closing(server.accept()[0]),
    ):
        subprocess.run(["ss", "--kill", "--tcp", "state", "established"], check=False, capture_output=True)
        line.setblocking(False)
        with suppress(BlockingIOError):
            try:
                line.recv(1)
            except ConnectionError:
                return None
    return "this kernel does not reset connections of other processes (CONFIG_INET_DIAG_DESTROY)"
