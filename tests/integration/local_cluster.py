"""A real `penstock cluster up` in a process of its own, as a developer would run it.

Rule: whatever it started ends with it, and it ends with the test.
"""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.broker_process import eventually
from tests.integration.etcd_process import require_etcd
from tests.integration.free_ports import free_port_range

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
READY_LINE = re.compile(r"node (?P<id>\d+) ready kafka=(?P<kafka>\S+) http=(?P<http>\S+) pid=(?P<pid>\d+)")
# As from a terminal, also where the tests themselves run in the background with interrupts ignored.
WITH_INTERRUPT_HANDLER = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "runpy.run_module('penstock', run_name='__main__', alter_sys=True)"
)


class ClusterUp:
    def __init__(self, folder: Path, brokers: int, *flags: str) -> None:
        self.folder = folder
        self.count = brokers
        self.kafka_port, self.http_port = free_port_range(brokers), free_port_range(brokers)
        self._flags = flags
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.lines: list[str] = []
        """What it printed, to stdout and stderr, since it was started."""

    def start(self) -> None:
        command = [
            sys.executable,
            "-c",
            WITH_INTERRUPT_HANDLER,
            "cluster",
            "up",
            "--brokers",
            str(self.count),
        ]
        command += ["--data-dir", str(self.folder), *self._flags]
        command += ["--kafka-port", str(self.kafka_port), "--http-port", str(self.http_port)]
        self.lines = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, args=(self._process, self.lines), daemon=True)
        self._reader.start()

    def _read(self, process: "subprocess.Popen[str]", lines: list[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            lines += (line.rstrip("\n") for line in process.stdout)

    @property
    def process(self) -> "subprocess.Popen[str]":
        assert self._process is not None
        return self._process

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.kafka_port + number}" for number in range(self.count))

    def ready(self) -> list[re.Match[str]]:
        return [found for line in self.lines if (found := READY_LINE.fullmatch(line))]

    def until_ready(self, count: int | None = None) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, "\n".join(self.lines)
            return len(self.ready()) >= (count or self.count)

        eventually(is_ready, seconds_max=READY_SECONDS_MAX)

    def until_said(self, words: str) -> str:
        def said() -> str:
            return next((line for line in self.lines if words in line), "")

        return eventually(said, seconds_max=READY_SECONDS_MAX)

    def pid_path(self, node: int | str) -> Path:
        return self.folder / ("etcd.pid" if node == "etcd" else f"broker-{node}/penstock.pid")

    def pid(self, node: int | str) -> int:
        return int(self.pid_path(node).read_text())

    def pids(self) -> list[int]:
        return [self.pid(node) for node in ("etcd", *range(self.count))]

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Its exit code, when it has ended by itself."""
        code = self.process.wait(STOP_SECONDS_MAX)
        assert self._reader is not None
        self._reader.join(STOP_SECONDS_MAX)
        return code

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self.ended()


@contextmanager
def cluster_up(folder: Path, brokers: int, *flags: str) -> Iterator[ClusterUp]:
    """Ready within the block, and gone after it."""
    require_etcd()
    cluster = ClusterUp(folder, brokers, *flags)
    try:
        cluster.start()
        cluster.until_ready()
        yield cluster
    finally:
        cluster.kill()
