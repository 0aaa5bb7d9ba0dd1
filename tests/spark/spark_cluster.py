"""A Spark cluster from the installed wheel: a master and two workers, on this machine alone.

Run as a program it holds the cluster up for as long as its standard input is open, and then kills all of it:
masters, workers, executors and the Python of these. So nothing is left, however the tests end, and be it by
signal 9.

Rule 1: everything runs in the session of that program, by which it is found again. Nothing else is in it.
Rule 2: ports are free ones that Spark takes itself, and tells in its log.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pyspark

from penstock.spark.runtime.jvm import set_java_home

WORKERS = 2
WORKER_CORES = 1
EXECUTOR_MEMORY = "512m"
WORKER_MEMORY = "600m"
DAEMON_MEMORY = "192m"
START_SECONDS_MAX = 120.0
HOST = "127.0.0.1"
SCALA_VERSION = "2.13"
FOR_SHORT_LIVES = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "CoarseGrainedExecutorBackend"
MASTER_IS_UP = re.compile(r"Starting Spark master at (spark://\S+)")
WORKER_IS_UP = re.compile(r"Successfully registered with (master spark://\S+)")


class SparkCluster(NamedTuple):
    url: str
    folder: Path
    session: int

    def settings(self) -> list[str]:
        """For a pipeline that is to fit on it."""
        settings = {
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.driver.memory": EXECUTOR_MEMORY,
            "spark.driver.host": HOST,
            "spark.driver.extraJavaOptions": FOR_SHORT_LIVES,
            "spark.executor.extraJavaOptions": FOR_SHORT_LIVES,
            "spark.sql.shuffle.partitions": "2",
        }
        return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]

    def executors(self) -> list[int]:
        """Their pids, oldest first."""
        return [pid for pid in processes_of(self.session) if EXECUTOR in command_line(pid)]

    def executors_launched(self) -> list[str]:
        """Each that there ever was, as worker/application/number."""
        found = self.folder.glob("worker-*/app-*/[0-9]*")
        return sorted(str(path.relative_to(self.folder)) for path in found)

    def logs(self) -> str:
        """The end of each log, for whoever must find out what went wrong."""
        files = [*self.folder.glob("*.log"), *self.folder.glob("worker-*/app-*/[0-9]*/stderr")]
        return "\n".join(f"--- {file}\n{file.read_text()[-2_000:]}" for file in sorted(files))


@contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    """A cluster that is ready to work, and gone after the block."""
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.spark.spark_cluster", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as holder:
        try:
            assert holder.stdout is not None
            url = holder.stdout.readline().decode().strip()
            cluster = SparkCluster(url, folder, holder.pid)
            assert url, f"the cluster did not start:\n{cluster.logs()}"
            yield cluster
        finally:
            assert holder.stdin is not None
            holder.stdin.close()
            holder.wait()
    assert processes_of(holder.pid) == []


def processes_of(session: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        with suppress(ProcessLookupError, FileNotFoundError, PermissionError):
            if entry.isdigit() and os.getsid(int(entry)) == session:
                found.append(int(entry))
    return sorted(found)


def command_line(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def kill_session(session: int, *, but: int = 0) -> None:
    """Again and again, as those who are to be killed may be starting others."""
    while pids := [pid for pid in processes_of(session) if pid != but]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


# The program


def launch(folder: Path, name: str, *words: str) -> Path:
    """Start a part of the cluster. Returns its log."""
    log = folder / f"{name}.log"
    java = set_java_home() / "bin" / "java"
    home = Path(pyspark.__file__).parent
    here = {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": SCALA_VERSION}
    here |= {"SPARK_LOCAL_IP": HOST, "SPARK_LOCAL_DIRS": str(folder / "local")}
    options = ["-cp", str(home / "jars" / "*"), f"-Xmx{DAEMON_MEMORY}", *FOR_SHORT_LIVES.split()]
    # What Spark's own scripts give to Java; without these Java keeps Spark from parts of itself.
    options += ["--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
    options += ["--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED"]
    with log.open("wb") as output:
        subprocess.Popen(
            [str(java), *options, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **here},
        )
    return log


def told(log: Path, line: re.Pattern[str], deadline: float) -> str:
    while (found := line.search(log.read_text())) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no line {line.pattern!r} in {log}")
        time.sleep(0.05)
    return found[1]


def start(folder: Path) -> str:
    """The address of the master, when all workers have registered."""
    deadline = time.monotonic() + START_SECONDS_MAX
    where = ("--host", HOST, "--port", "0", "--webui-port", "0")
    url = told(launch(folder, "master", MASTER, *where), MASTER_IS_UP, deadline)
    offers = ("--cores", str(WORKER_CORES), "--memory", WORKER_MEMORY)
    logs = []
    for number in range(WORKERS):
        work = ("--work-dir", str(folder / f"worker-{number}"))
        logs.append(launch(folder, f"worker-{number}", WORKER, *where, *offers, *work, url))
    for log in logs:
        told(log, WORKER_IS_UP, deadline)
    return url


def main(folder: Path) -> None:
    try:
        print(start(folder), flush=True)
        sys.stdin.read()
    finally:
        kill_session(os.getsid(0), but=os.getpid())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
