"""Faults that are no deaths: a broker that is behind the others for seconds, and a clock that has moved on.

A broker that was just started may not know a topic that exists, and one that is cut off from the metadata
store may know one that was deleted. A pipeline that may lose data (`--allow-loss`) must not take that for a
deletion, and one that writes must not end. A replay of the last day
that is resumed hours later is still the replay of the day that it was begun for.
"""

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import time

import pyarrow as pa
import pytest

from penstock.protocol.compression import Codec
from penstock.spark.lake.description import open_table, read_description
from penstock.spark.records.encode import encode
from penstock.testing import Broker, broker
from penstock.types import TopicPartition
from tests.integration.cluster_processes import ClusterProcesses
from tests.integration.etcd_process import running_etcd
from tests.integration.free_ports import free_ports
from tests.spark.archive_topics import Audit, Producing, audited, rows_of
from tests.spark.etl_runs import count_of, records_of, written
from tests.spark.forgetful_relay import forgetful_relay
from tests.spark.pipeline_process import PipelineProcess
from tests.spark.topics import client_of, create, fill

KILLS = int(os.environ.get("PENSTOCK_KILLS", "4"))
SEED = int(os.environ.get("PENSTOCK_SEED", "1"))
ROWS = 400
HOUR_S = 3600
BEHIND_S = 15.0
"""Longer than a client looks for a topic that no broker has described."""
FORGOTTEN = """
    name = "forgotten"
    [extract]
    from = "topic"
    topic = "forgotten-orders"
    schema = "id bigint"
    [load]
    to = "topic"
    topic = "forgotten-loaded"
"""


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_a_broker_that_forgets_topics_for_a_second_changes_nothing(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    direct, behind, relayed = free_ports(3)
    listeners: dict[str, str | bool] = {
        "listeners": f"DIRECT://127.0.0.1:{direct},RELAYED://127.0.0.1:{behind}",
        "advertised.listeners": f"DIRECT://127.0.0.1:{direct},RELAYED://127.0.0.1:{relayed}",
        "listener.security.protocol.map": "DIRECT:PLAINTEXT,RELAYED:PLAINTEXT",
        "auto.create.topics.enable": False,
    }
    written(tmp_path, FORGOTTEN)
    with ExitStack() as stack:
        running = stack.enter_context(broker(**listeners))
        relay = stack.enter_context(forgetful_relay(relayed, behind))
        create(running, "forgotten-orders", 2)
        words = ["etl", "--spec", str(tmp_path / "etl.toml"), "--bootstrap", f"127.0.0.1:{relayed}"]
        words += ["--every", "0.2", "--max-rows-per-batch", "100", "--allow-loss"]
        stages = PipelineProcess(tmp_path / "stages.log", *words)
        stack.callback(stages.kill)
        for number in range(KILLS):
            for partition in range(2):
                ids = range(number * ROWS + partition, (number + 1) * ROWS, 2)
                values: list[bytes | None] = [b'{"id": %d}' % each for each in ids]
                fill(running, "forgotten-orders", values, partition=partition)
            loads(stages, running, number * ROWS + chance.randrange(ROWS))
            relay.forget()
            relay.wait_for_changed_reply()
            loads(stages, running, (number + 1) * ROWS)
        stages.process.send_signal(signal.SIGINT)
        stages.ends_well()
        for topic in ("forgotten.extract", "forgotten-loaded"):
            found = [json.loads(each.value or b"")["id"] for each in records_of(running.bootstrap, topic)]
            assert sorted(found) == list(range(KILLS * ROWS)), topic


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_one_broker_of_two_that_is_behind_costs_an_archive_no_record(tmp_path: Path) -> None:
    """In turns the first broker does not know the topic, and has it under another id, for seconds.

    A worker of Spark serves one task only, so that every task has to ask who leads.
    """
    lake = tmp_path / "lake"
    with ExitStack() as stack:
        etcd = stack.enter_context(running_etcd(tmp_path / "etcd"))
        cluster = ClusterProcesses(tmp_path, etcd, 2, {"default.replication.factor": 1})
        told, listens = cluster.put_behind(1)
        relay = stack.enter_context(forgetful_relay(told, listens, seconds=BEHIND_S))
        stack.callback(cluster.stop)
        cluster.start()
        topic = Producing(cluster.brokers[2].bootstrap, "behind")
        words = ["archive", "--topic", "behind", "--to", str(lake), "--bootstrap", cluster.bootstrap]
        words += ["--every", "0.2", "--allow-loss"]
        words += ["--set", "spark.python.worker.reuse=false"]
        archive = PipelineProcess(tmp_path / "archive.log", *words)
        stack.callback(archive.kill)
        for number in range(KILLS):
            if number:  # not while the first batch is planned
                (relay.change_ids if number % 2 else relay.forget)()
            topic.produce(ROWS)
            archive.eventually(holds(lake, (number + 1) * ROWS), "all rows are archived")
            if number:
                relay.wait_for_changed_reply()
        archive.process.send_signal(signal.SIGINT)
        archive.ends_well()
        report = json.loads(archive.log.read_text().splitlines()[-1])
        assert audited(lake, topic.ends()) == Audit(KILLS * ROWS, 0, 0)
        assert (report["rows"], report["lost"]) == (KILLS * ROWS, 0)


def holds(lake: Path, count: int) -> Callable[[], bool]:
    def is_there() -> bool:
        if read_description(lake) is None:
            return count == 0
        with open_table(lake) as table:
            return rows_of(table.files()).total() >= count

    return is_there


def loads(stages: PipelineProcess, running: Broker, count: int) -> None:
    def is_done() -> bool:
        with client_of(running) as client:
            if "forgotten-loaded" not in client.topics(["forgotten-loaded"]):
                return count == 0
        return count_of(running.bootstrap, "forgotten-loaded") >= count

    stages.eventually(is_done, f"{count} rows are loaded")


def sent_at_least(running: Broker, count: int) -> Callable[[], bool]:
    return lambda: count_of(running.bootstrap, "clock-again") >= count


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_a_replay_resumed_with_a_moved_clock_is_whole(running: Broker, tmp_path: Path) -> None:
    """Rows of thirty hours. Each run but the last is killed, and the clock of the next is hours later."""
    hours = [hour for hour in range(30, 0, -1) if hour != 24]  # none at the border of the day
    now_ms = int(time() * 1000)
    create(running, "clock-orders", 1)
    create(running, "clock-again", 2)
    times = [now_ms - (hour * HOUR_S - number) * 1000 for hour in hours for number in range(ROWS // 10)]
    values = pa.array([b"%d" % number for number in range(len(times))], pa.binary())
    batches = encode(
        values, values, None, pa.array(times, pa.int64()), codec=Codec.NONE, batch_bytes_max=100_000
    )
    with client_of(running) as client:
        client.produce(TopicPartition("clock-orders", 0), batches)
    wanted = {str(offset) for offset, at in enumerate(times) if at >= now_ms - 24 * HOUR_S * 1000}
    where = ["--bootstrap", running.bootstrap]
    lake = str(tmp_path / "lake")
    archive = PipelineProcess(
        tmp_path / "archive.log", "archive", "--topic", "clock-orders", "--to", lake, "--once", *where
    )
    with ExitStack() as stack:
        stack.callback(archive.kill)
        archive.ends_well()
        command = ["replay", "--lake", lake, "--to", "clock-again", "--start", "24h", *where]
        slowly = [*command, "--rate", "20", "--max-rows-per-batch", "40"]
        for run in range(2):
            module = ("tests.spark.moved_clock", str(run * 6 * HOUR_S))
            replay = PipelineProcess(tmp_path / "replay.log", *slowly, module=module)
            stack.callback(replay.kill)
            some = count_of(running.bootstrap, "clock-again") + 1
            replay.eventually(sent_at_least(running, some), "something is sent", every_s=0.05)
            replay.kill()
        module = ("tests.spark.moved_clock", str(20 * HOUR_S))
        replay = PipelineProcess(tmp_path / "replay.log", *command, module=module)
        stack.callback(replay.kill)
        replay.ends_well()
    sent = Counter(
        each.headers["penstock-replay-source-offset"] for each in records_of(running.bootstrap, "clock-again")
    )
    assert set(sent) == wanted
    assert max(sent.values()) <= 3, "a run that was killed sends one slice again, and no more"
