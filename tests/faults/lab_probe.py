"""`python -m tests.faults.lab_probe LAB`: does to machines what a lab can, and says in JSON what came of it.

Each machine has a server that answers what it is told. Asked are: from here, and from one machine to another.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tools.faults.lab import Ability, Lab, Machine, UnsupportedHost
from tools.faults.machines import NamespaceLab, in_own_namespaces
from tools.faults.proxies import ProxyLab

PORT = 9092
SILENCE_S = 0.8
TRIES = 3
ECHO = """
import socket, sys, threading
def answer(line):
    try:
        while words := line.recv(1 << 16):
            line.sendall(words)
    except ConnectionError:
        pass
server = socket.create_server((sys.argv[1], 9092))
while True:
    threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
"""
ASK = """
import socket, sys
sys.stdin.readline()
line = socket.create_connection((sys.argv[1], 9092), timeout=float(sys.argv[2]))
while True:
    try:
        line.sendall(b"?")
        print("answered" if line.recv(1) else "ended", flush=True)
    except TimeoutError:
        print("silent", flush=True)
    except ConnectionError:
        print("broken", flush=True)
    sys.stdin.readline()
"""


CUTS: dict[str, Callable[[Lab], None]] = {
    "cut from all": lambda lab: lab.cut("two"),
    "cut from one": lambda lab: lab.cut("two", ["one"]),
    "cut one way": lambda lab: lab.cut("one", ["two"], one_way=True),
}


class EchoConnection:
    """A connection of one machine to another."""

    def __init__(self, lab: Lab, here: str, there: str) -> None:
        words = lab[here].command(sys.executable, "-c", ASK, lab[there].known_as, str(SILENCE_S))
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if isinstance(lab, ProxyLab):
            lab.add_process(lab[here], self._process.pid)

    def ask(self) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def best_round_trip(machine: Machine) -> float | str:
    """How long an answer takes at best, or what happens instead: others may keep this host busy."""
    found = [round_trip(machine) for _ in range(TRIES)]
    return min((each for each in found if isinstance(each, float)), default=found[-1])


def round_trip(machine: Machine) -> float | str:
    began = time.monotonic()
    try:
        with closing(socket.create_connection((machine.known_as, PORT), timeout=SILENCE_S)) as line:
            line.sendall(b"?")
            if not line.recv(1):
                return "ended"
    except TimeoutError:
        return "silent"
    except ConnectionRefusedError:
        return "refused"
    except ConnectionError:
        return "broken"
    return time.monotonic() - began


def eventually(machine: Machine) -> float | str:
    deadline = time.monotonic() + 10
    while isinstance(found := round_trip(machine), str) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found if isinstance(found, str) else best_round_trip(machine)


def probe_lab(lab: Lab) -> dict[str, object]:
    one, two = lab["one"], lab["two"]
    log = lab.folder / "log"
    servers = [machine.start(sys.executable, "-c", ECHO, machine.address, log=log) for machine in (one, two)]
    found: dict[str, object] = {"cannot": [str(ability) for ability in lab.cannot]}
    found["well"] = [eventually(one), eventually(two)]
    connection = EchoConnection(lab, "one", "two")
    found["one to two"] = connection.ask()
    for name in CUTS:
        CUTS[name](lab)
        found[name] = [connection.ask(), best_round_trip(one), best_round_trip(two)]
        lab.heal()
        found[f"{name}, healed"] = [eventually(one), eventually(two)]
        connection.end()
        connection = EchoConnection(lab, "one", "two")
        connection.ask()
    if Ability.SLOW_LINK not in lab.cannot:
        lab.slow("two")
        found["slow"] = [best_round_trip(one), best_round_trip(two)]
        lab.heal()
        found["slow, healed"] = eventually(two)
    if Ability.RESET not in lab.cannot:
        lab.reset("two")
        found["reset"] = [connection.ask(), eventually(two)]
    connection.end()
    servers[1].kill()
    servers[1].wait()
    time.sleep(0.1)
    found["killed"] = best_round_trip(two)
    servers[0].kill()
    servers[0].wait()
    found["disk"] = probe_disk(one, lab)
    return found


def probe_disk(machine: Machine, lab: Lab) -> dict[str, object]:
    found: dict[str, object] = {}
    path = machine.disk.path / "file"
    if Ability.DISK_FULL not in lab.cannot:
        machine.disk.fill()
        try:
            path.write_bytes(bytes(1 << 20))
            found["full"] = "took it"
        except OSError as problem:
            found["full"] = problem.strerror
        machine.disk.free()
    if Ability.POWER_LOSS not in lab.cannot:
        with path.open("wb") as file:
            file.write(b"synced")
            file.flush()
            os.fsync(file.fileno())
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
            file.write(b" and not synced")
        machine.disk.lose_power()
        machine.disk.restore_power()
        found["after power loss"] = path.read_text()
    return found


if __name__ == "__main__":
    try:
        if sys.argv[1] == "namespaces":
            outside = in_own_namespaces("tests.faults.lab_probe", sys.argv[1:])
            if outside is not None:
                sys.exit(outside)
        make = NamespaceLab if sys.argv[1] == "namespaces" else ProxyLab
        with (
            tempfile.TemporaryDirectory() as temporary,
            closing(make(Path(temporary), ["one", "two"])) as LAB,
        ):
            print(json.dumps(probe_lab(LAB)))
    except UnsupportedHost as problem:
        print(problem, file=sys.stderr)
        sys.exit(2)
