"""kill -9 of Spark, of its workers and of the broker at many points of an archive, and no record is lost
or there twice: in a lake of each format, compared with the topic.

Points are not moments that pass by chance: somebody watches for a file that a task, a commit or Spark itself
makes, and kills as soon as it is there. A campaign kills PENSTOCK_KILLS runs that write all formats at once.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from penstock.spark.lake.description import FORMATS
from tests.integration.broker_process import BrokerProcess
from tests.spark.archive_topics import Audit, Producing, audited
from tests.spark.spark_cluster import command_line, processes_of

KILLS = int(os.environ.get("PENSTOCK_KILLS", "4"))
SEED = int(os.environ.get("PENSTOCK_SEED", "1"))
ROWS = 6_000
ROWS_PER_BATCH = 1_000
SECONDS_MAX = 300.0
RUNS_MAX = 4
DEADLY = ("all", "python", "spark")
# What is made in the course of a batch, in this order.
MOMENTS = {
    "Spark has planned a batch": "_penstock/checkpoints/*/offsets/[0-9]*",
    "a task has made a file": "**/*.parquet",
    "a table has committed": ("_penstock/log/*.json", "_delta_log/*.json", "metadata/*.metadata.json"),
    "Spark has committed": "_penstock/checkpoints/*/commits/[0-9]*",
}


class Driver:
    """The program, in a session of its own so that all of its processes can be found."""

    def __init__(self, bootstrap: str, topic: str, folder: Path, log: Path, formats: Sequence[str]) -> None:
        command = [sys.executable, "-m", "tests.spark.archive_driver", bootstrap, topic, str(folder)]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, str(ROWS_PER_BATCH), *formats],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def others(self, words: str) -> list[int]:
        """Its processes whose command line has these words, oldest first."""
        return [pid for pid in processes_of(self.process.pid) if words in command_line(pid)]

    def kill(self, pids: list[int]) -> bool:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(pids)

    def end(self) -> None:
        self.kill(processes_of(self.process.pid))
        self.process.wait()


def made(folder: Path, moment: str) -> set[Path]:
    patterns = MOMENTS[moment]
    names = [patterns] if isinstance(patterns, str) else patterns
    return {path for form in FORMATS for name in names for path in (folder / form).glob(name)}


def wait_for(driver: Driver, folder: Path, moment: str, count: int) -> None:
    """Until so many more of it are there, or the program has ended."""
    before = len(made(folder, moment))
    deadline = time.monotonic() + SECONDS_MAX
    while driver.runs and len(made(folder, moment)) < before + count:
        assert time.monotonic() < deadline, f"never seen: {moment}"
        time.sleep(0.002)


class Killer:
    """What can be killed, and what is done about it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.seen: list[str] = []

    def strike(self, driver: Driver, victim: str) -> None:
        strikes: dict[str, Callable[[], bool]] = {
            "worker": lambda: driver.kill(driver.others("pyspark.daemon pyspark.worker")[1:]),
            "planner": lambda: driver.kill(driver.others("pyspark.sql.")[-1:]),
            "broker": self._kill_broker,
            "python": lambda: driver.kill([driver.process.pid]),
            "spark": lambda: driver.kill(driver.others("org.apache.spark.deploy.SparkSubmit")),
            "all": lambda: driver.kill(processes_of(driver.process.pid)),
        }
        if strikes[victim]():
            self.seen.append(victim)

    def _kill_broker(self) -> bool:
        self._broker.kill()
        self._broker.start()
        return True


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """On a port that it keeps over its restarts."""
    first = BrokerProcess(tmp_path / "data")
    address = first.start().bootstrap
    first.stop()
    served = BrokerProcess(tmp_path / "data", addresses=("--kafka", address, "--http", "127.0.0.1:0"))
    try:
        yield served.start()
    finally:
        served.kill()


def run_through(start: Callable[[], Driver], stack: ExitStack, log: Path) -> None:
    """Until a run gets to its end. On a busy machine Spark may give up on a worker that is slow to start;
    whoever runs a pipeline would start it again, and what is compared afterwards stays as strict."""
    for _ in range(RUNS_MAX):
        driver = start()
        stack.callback(driver.end)
        if driver.process.wait(SECONDS_MAX) == 0:
            return
    raise AssertionError(f"no run of {RUNS_MAX} got to its end:\n{log.read_text()[-5_000:]}")


def test_no_record_is_lost_or_doubled_when_all_is_killed_once(tmp_path: Path, broker: BrokerProcess) -> None:
    """It takes 60 s, as Spark starts twice: one round, in one format, of what `make kills` does."""
    kill_and_compare(tmp_path, broker, 1, ("parquet",))


@pytest.mark.campaign
@pytest.mark.timeout(SECONDS_MAX * (KILLS + RUNS_MAX))
def test_no_record_is_lost_or_doubled_whatever_is_killed(tmp_path: Path, broker: BrokerProcess) -> None:
    kill_and_compare(tmp_path, broker, KILLS, FORMATS)


def kill_and_compare(tmp_path: Path, broker: BrokerProcess, kills: int, formats: Sequence[str]) -> None:
    chance = random.Random(SEED)
    topic = Producing(broker.bootstrap, "killed")
    folder, log = tmp_path / "lake", tmp_path / "driver.log"
    killer = Killer(broker)
    start: Callable[[], Driver] = lambda: Driver(broker.bootstrap, topic.topic, folder, log, formats)  # noqa: E731
    with ExitStack() as stack:
        for number in range(kills):
            topic.produce(ROWS)
            driver = start()
            stack.callback(driver.end)
            survivable = ["worker", "broker"] if number % 3 < 2 else ["broker", "planner"]
            for victim in (*survivable, DEADLY[number % len(DEADLY)]):
                wait_for(driver, folder, chance.choice(list(MOMENTS)), chance.randint(1, 3))
                time.sleep(chance.uniform(0, 0.05))
                killer.strike(driver, victim)
            # Nobody waits for what is left of it to end: the next one may meet it.
        run_through(start, stack, log)
        ends = topic.ends()
        outcome = {form: audited(folder / form, ends) for form in formats}
    assert outcome == dict.fromkeys(formats, Audit(kills * ROWS, 0, 0)), killer.seen
    print(f"killed: {killer.seen}")
