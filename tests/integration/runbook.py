"""Types the commands of a page as a reader would: each line after a `$`, one after the other.

    # in a terminal of its own    it is started, and the next line is typed when it says that it is ready, if
                                  it is a server
    # until IN SYNC shows all ... it is typed again until it does
    kill ...                      the next line is typed when the process has ended

Rule 1: what is typed is what the page says, but for the numbers of ports, of which others take their place,
        also where a command has the usual ports by default.
Rule 2: what was started here is ended here, however the test ends.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from penstock.cli.local_cluster.checks import is_running
from tests.integration.broker_process import eventually
from tests.integration.etcd_process import require_etcd
from tests.integration.free_ports import free_port_range

SECONDS_MAX = 60.0
BLOCK = re.compile(r"^ *```console\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
IN_OWN_TERMINAL = "# in a terminal of its own"
UNTIL_IN_SYNC = "# until IN SYNC shows all of REPLICAS"
KAFKA, HTTP, ETCD = (9092, 4), (8080, 4), (2379, 2)
PORTS_BY_DEFAULT = {
    "penstock serve": "--kafka 127.0.0.1:9092 --http 127.0.0.1:8080",
    "penstock cluster up": "--kafka-port 9092 --http-port 8080",
}


def commands_of(page: Path, heading: str) -> list[str]:
    """Those of one section, which is named by its heading."""
    sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    (section,) = [text for text in sections if text.startswith(f"{heading}\n")]
    lines = [line.strip() for block in BLOCK.findall(section) for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


class Reader:
    def __init__(self, folder: Path, *, with_etcd: bool = True, seconds_max: float = SECONDS_MAX) -> None:
        self._seconds_max = seconds_max
        self._folder = folder
        self._terminals: list[subprocess.Popen[bytes]] = []
        self._ports = {
            str(first + number): str(free + number)
            for first, count in (KAFKA, HTTP, ETCD)
            for free in (free_port_range(count),)
            for number in range(count)
        }
        programs = folder / "programs"
        programs.mkdir()
        _shim(programs / "penstock", shlex.join([sys.executable, "-m", "penstock"]))
        _shim(programs / "python", shlex.quote(sys.executable))
        if with_etcd:
            _shim(programs / "etcd", shlex.quote(require_etcd()))
        self._environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
        self.type("export PENSTOCK_BOOTSTRAP=127.0.0.1:9092")
        self.type("export PENSTOCK_URL=http://127.0.0.1:8080")
        self.output = ""
        """Output of the last command that ended."""

    def type_section(self, page: Path, heading: str) -> None:
        commands = commands_of(page, heading)
        assert commands
        for command in commands:
            self.type(command)

    def type(self, command: str) -> None:
        for beginning, ports in PORTS_BY_DEFAULT.items():
            if command.startswith(beginning) and ports.split()[0] not in command:
                command = f"{beginning} {ports}{command.removeprefix(beginning)}"
        command = self._on_free_ports(command)
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self._environment[name] = value
        elif command.endswith(IN_OWN_TERMINAL):
            self._open_terminal(command.removesuffix(IN_OWN_TERMINAL).strip())
        elif command.endswith(UNTIL_IN_SYNC):
            eventually(lambda: self._is_in_sync(command), seconds_max=SECONDS_MAX, every=0.3)
        elif command.startswith("kill "):
            self._kill(command)
        else:
            self._run(command)

    def put(self, port: int, *, for_port: int) -> None:
        """Another port that only the page has."""
        self._ports[str(for_port)] = str(port)

    def save(self, name: str, code: str) -> None:
        """A file that the page tells the reader to write."""
        (self._folder / name).write_text(self._on_free_ports(code))

    def press_ctrl_c(self) -> None:
        """In the terminal that was opened last."""
        process = self._terminals.pop()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0

    def wait(self) -> str:
        """What the terminal that was opened last printed until its command ended."""
        return self._terminals.pop().communicate(timeout=SECONDS_MAX)[0].decode()

    def _on_free_ports(self, text: str) -> str:
        return re.sub(r"\b\d{4,5}\b", lambda found: self._ports.get(found[0], found[0]), text)

    def _run(self, command: str) -> str:
        process = self._started(f"set -o pipefail; {command}")
        self.output = process.communicate(timeout=self._seconds_max)[0].decode()
        assert process.returncode == 0, f"{command}\n{self.output}"
        return self.output

    def _started(self, script: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            ["bash", "-c", script],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def _open_terminal(self, command: str) -> None:
        is_server = command.startswith((*PORTS_BY_DEFAULT, "etcd "))
        process = self._started(f"exec {command}" if is_server else command)
        self._terminals.append(process)
        if not is_server:
            return
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        wanted = int((re.search(r"--brokers (\d+)", command) or ["", "1"])[1])
        said = b""

        def is_ready() -> bool:
            nonlocal said
            assert process.stdout is not None
            said += process.stdout.read() or b""
            assert process.poll() is None, said.decode()
            if command.startswith("etcd "):
                return self._answers(command)
            return len(re.findall(rb"^(?:penstock|node \d+) ready ", said, re.MULTILINE)) == wanted

        eventually(is_ready, seconds_max=SECONDS_MAX)

    def _answers(self, command: str) -> bool:
        found = re.search(r"client-urls http://127\.0\.0\.1:(\d+)", command)
        assert found
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", int(found[1]))) == 0

    def _is_in_sync(self, command: str) -> bool:
        lines = self._run(command).splitlines()
        titles = next((number for number, line in enumerate(lines) if "IN SYNC" in line), None)
        if titles is None:
            return False
        rows = [line.split() for line in lines[titles + 1 :]]
        return all(len(row) == 5 and sorted(row[3].split(",")) == sorted(row[4].split(",")) for row in rows)

    def _kill(self, command: str) -> None:
        words = command.split(" ", 2 if " -9 " in command else 1)
        pid = int(self._run(f"echo {words[-1]}"))
        self._run(command)

        def has_ended() -> bool:
            for process in self._terminals:
                process.poll()
            return not is_running(pid)

        eventually(has_ended, seconds_max=SECONDS_MAX)

    def close(self) -> None:
        """Ctrl-C everywhere, and no patience."""
        for process in reversed(self._terminals):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + 20
            while process.poll() is None and time.monotonic() < deadline:
                if process.stdout is not None:
                    process.stdout.read()
                time.sleep(0.05)
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _shim(path: Path, command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
