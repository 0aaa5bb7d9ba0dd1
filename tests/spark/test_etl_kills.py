"""Stages in processes of their own, killed with signal 9: the others go on, and each row arrives once.

Two moments count, and both are hit on purpose. `transform` dies after it has begun to write a batch to its
topic. `load` dies after PostgreSQL has committed a batch and before Spark has noted it: PostgreSQL is made to
wait, Spark is stopped, PostgreSQL goes on, and then Spark is killed.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic

import psycopg
import pytest

from penstock.testing import Broker
from tests.spark.etl_runs import count_of, records_of, written
from tests.spark.pipeline_process import PipelineProcess
from tests.spark.postgres_server import postgres_server
from tests.spark.spark_cluster import command_line
from tests.spark.topics import create, fill

ROWS = 300
SPEC = """
    name = "killed"
    key = "id"
    [extract]
    from = "topic"
    topic = "killed-orders"
    schema = "id bigint"
    [transform]
    sql = "select id, id * 2 as twice from rows"
    [load]
    to = "postgresql"
    url = "URL"
    table = "killed"
"""


class Stages(PipelineProcess):
    def __init__(self, folder: Path, bootstrap: str, *words: str) -> None:
        log = folder / f"{'-'.join(words).strip('-')}-{monotonic()}.log"
        given = ["etl", "--spec", str(folder / "etl.toml"), "--bootstrap", bootstrap]
        super().__init__(log, *given, "--every", "0.2", "--max-rows-per-batch", "200", *words)

    def java(self) -> int:
        return next(pid for pid in self.pids() if "SparkSubmit" in command_line(pid))


@pytest.fixture
def postgres() -> Iterator[str]:
    with postgres_server() as url:
        yield url


class Table:
    def __init__(self, url: str) -> None:
        self.url = url

    def numbers(self, query: str) -> tuple[int, ...]:
        with psycopg.connect(self.url) as database, suppress(psycopg.errors.UndefinedTable):
            found = database.execute(query.encode()).fetchone()
            return tuple(found or ())
        return ()

    def rows(self) -> int:
        return sum(self.numbers("select count(*) from killed"))

    def batch(self) -> int:
        return sum(self.numbers("select batch from penstock_batches"))


def produce(running: Broker, start: int) -> None:
    for partition in range(2):
        numbers = range(start + partition, start + ROWS, 2)
        fill(running, "killed-orders", [b'{"id": %d}' % number for number in numbers], partition=partition)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_each_row_arrives_once_although_stages_are_killed(
    running: Broker, postgres: str, tmp_path: Path
) -> None:
    spec = written(tmp_path, SPEC, URL=postgres)
    table, bootstrap = Table(postgres), running.bootstrap
    create(running, "killed-orders", 2)
    produce(running, 0)
    with ExitStack() as stack:
        ends = Stages(tmp_path, bootstrap, "--stage", "extract", "--stage", "load")
        stack.callback(ends.kill)
        middle = Stages(tmp_path, bootstrap, "--stage", "transform")
        stack.callback(middle.kill)
        # The stage in the middle dies in a batch of which something is written.
        middle.eventually(
            lambda: count_of(bootstrap, "killed.transform") > 0 if has_note(spec.checkpoint) else False,
            "transform writes",
            every_s=0.02,
        )
        middle.kill()
        # The others go on.
        produce(running, ROWS)
        ends.eventually(lambda: count_of(bootstrap, "killed.extract") == 2 * ROWS, "extract goes on")
        loaded = count_of(bootstrap, "killed.transform")
        ends.eventually(lambda: table.rows() == loaded, "load goes on")
        assert loaded < 2 * ROWS
        # It comes back and catches up.
        middle = Stages(tmp_path, bootstrap, "--stage", "transform")
        stack.callback(middle.kill)
        middle.eventually(lambda: table.rows() >= 2 * ROWS, "transform catches up")
        produce_and_kill_between_commits(running, table, ends, spec.checkpoint / "load" / "commits")
        # And all is there, once.
        ends = Stages(tmp_path, bootstrap, "--stage", "extract", "--stage", "load")
        stack.callback(ends.kill)
        ends.eventually(lambda: table.rows() >= 3 * ROWS, "load catches up")
        for each in (ends, middle):
            each.process.send_signal(signal.SIGINT)
        for each in (ends, middle):
            each.ends_well()
    report = json.loads(ends.log.read_text().splitlines()[-1])
    assert report["stages"]["load"]["name"] == "killed-load"
    for topic in ("killed.extract", "killed.transform"):
        found = [json.loads(each.value or b"")["id"] for each in records_of(bootstrap, topic)]
        assert sorted(found) == list(range(3 * ROWS)), topic
    assert table.numbers("select count(*), count(distinct id), sum(twice - 2 * id) from killed") == (
        3 * ROWS,
        3 * ROWS,
        0,
    )


def has_note(checkpoint: Path) -> bool:
    return any((checkpoint / "transform" / "penstock-outputs").glob("*.json"))


def produce_and_kill_between_commits(running: Broker, table: Table, ends: Stages, commits: Path) -> None:
    """PostgreSQL has the batch, and Spark does not know it."""
    before = table.batch()
    with psycopg.connect(table.url) as holder:
        holder.execute("select * from penstock_batches for update")
        produce(running, 2 * ROWS)
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        ends.eventually(lambda: sum(table.numbers(waiting)) > 0, "load commits")
        os.kill(ends.java(), signal.SIGSTOP)
        holder.rollback()
    ends.eventually(lambda: table.batch() > before, "PostgreSQL commits")
    ends.kill()
    assert not (commits / str(table.batch())).exists()
