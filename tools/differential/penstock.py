"""Runs the installed `penstock` command on free ports in a temporary folder."""

import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.differential.broker import LOOPBACK, Broker, BrokerFailed, child_process, tail
from tools.differential.coordinators import GROUP, has_coordinators

_READY = re.compile(r"^penstock ready kafka=(?P<host>\S+):(?P<port>\d+)", re.MULTILINE)
_START_S_MAX = 20
_START_POLL_S = 0.05
_AS_KAFKA = ("group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=1")
"""Settings that kafka.py also sets."""


@contextmanager
def running_penstock() -> Iterator[Broker]:
    """Run an empty broker; stop it and remove its data when the block ends."""
    program = Path(sys.executable).with_name("penstock")
    if not program.exists():
        raise BrokerFailed(f"there is no {program.name} command beside {Path(sys.executable).name}")
    with tempfile.TemporaryDirectory(prefix="penstock-") as temporary:
        home = Path(temporary)
        command = [str(program), "serve", "--data-dir", str(home / "data")]
        command += ["--kafka", f"{LOOPBACK}:0", "--http", f"{LOOPBACK}:0"]
        for setting in _AS_KAFKA:
            command += ["--set", setting]
        output = home / "output"
        with child_process(command, output) as process:
            deadline = time.monotonic() + _START_S_MAX
            while (ready := _READY.search(output.read_text(errors="replace"))) is None:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise BrokerFailed(f"Penstock did not start\n{tail(output)}")
                time.sleep(_START_POLL_S)
            broker = Broker("penstock", ready["host"], int(ready["port"]), process)
            while not has_coordinators(broker, GROUP):
                if time.monotonic() > deadline:
                    raise BrokerFailed(f"Penstock coordinates no groups\n{tail(output)}")
                time.sleep(_START_POLL_S)
            yield broker
