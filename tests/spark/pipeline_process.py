"""A command of pipelines in a process of its own, which a test watches and kills."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from tests.spark.spark_cluster import processes_of

SECONDS_MAX = 240.0
MODULE = ("penstock",)


class PipelineProcess:
    """The command, in a session of its own so that all of its processes are found."""

    def __init__(self, log: Path, *words: str, module: Sequence[str] = MODULE) -> None:
        """`module` and what stands before the words of the command: python -m MODULE pipeline WORDS."""
        self.log = log
        command = [sys.executable, "-m", *module, "pipeline", *words, "--master", "local[2]", "--json"]
        command += ["--set", "spark.sql.shuffle.partitions=2"]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def pids(self) -> list[int]:
        return processes_of(self.process.pid)

    def kill(self) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def told(self) -> str:
        return self.log.read_text()[-3000:]

    def eventually(self, condition: Callable[[], bool], what: str, *, every_s: float = 0.25) -> None:
        """Waits for it while the process runs."""
        deadline = monotonic() + SECONDS_MAX
        while not condition():
            assert self.process.poll() is None, f"it ended before: {what}\n{self.told()}"
            assert monotonic() < deadline, f"never: {what}\n{self.told()}"
            sleep(every_s)

    def ends_well(self) -> None:
        assert self.process.wait(SECONDS_MAX) == 0, self.told()
