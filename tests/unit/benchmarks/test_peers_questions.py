"""The pure parts of the comparison: its order, its contenders, and what it reads from other programs."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.peers import contenders
from benchmarks.peers.__main__ import main
from benchmarks.peers.clients import driver
from benchmarks.peers.clients.work import ClientFailed, Work
from benchmarks.peers.questions import DEFAULT, GROWTH, QUESTIONS, growth
from benchmarks.peers.questions.cluster import silence_s, survivors_first
from benchmarks.peers.questions.java import consumer_rate_mb, producer_figures
from benchmarks.peers.questions.lifecycle import after_kill
from benchmarks.peers.schedule import CLUSTER, LIMITS, RECOVERY, SINGLE, START, rotated
from benchmarks.peers.servers import kafka, nats, rabbitmq, redis
from benchmarks.peers.servers.process import Server, ServerFailed, child, disk_bytes, is_running, wait_until
from benchmarks.peers.session import Session
from benchmarks.peers.sizes import QUICK
from benchmarks.peers.warm import are_alike, settled
from benchmarks.phase import Phase

WORK = Work(address="127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", pids=(), name="lane", record_bytes=100)

# Order and contenders


def test_every_repetition_begins_with_another_contender_and_asks_all() -> None:
    orders = [rotated(contenders.CONTENDERS, repetition) for repetition in range(3)]
    assert len({order[0].name for order in orders}) == 3
    assert all({each.name for each in order} == set(contenders.NAMES) for order in orders)


def test_every_question_is_known_to_the_schedule() -> None:
    assert set(QUESTIONS) == {START, RECOVERY, LIMITS, *SINGLE, *CLUSTER, *GROWTH}
    assert set(GROWTH) == set(growth.FAMILIES)
    assert not set(GROWTH) & set(DEFAULT)


def test_a_peer_stands_for_all_its_contenders_and_a_name_for_one() -> None:
    assert [each.name for each in contenders.chosen(["redis"])] == ["redis-everysec", "redis-always"]
    assert [each.name for each in contenders.chosen(["redis-always"])] == ["redis-always"]
    assert contenders.chosen([]) == contenders.CONTENDERS


@pytest.mark.parametrize("contender", contenders.CONTENDERS, ids=lambda each: each.name)
def test_every_contender_says_why_it_is_set_up_so_and_what_replicas_mean(
    contender: contenders.Contender,
) -> None:
    assert contender.why
    assert contender.cluster_note
    assert contender.acknowledged in (contenders.ON_DISK, contenders.IN_CACHE)


def test_each_peer_but_one_is_compared_with_durability_equal_to_ours() -> None:
    durable = {each.peer.name for each in contenders.CONTENDERS if each.is_durable}
    assert durable == set(contenders.PEERS)
    (streams,) = (each for each in contenders.CONTENDERS if each.name == "rabbitmq-streams")
    assert "no setting" in streams.why


@pytest.mark.parametrize(
    "missing",
    [nats.missing, redis.missing, kafka.missing, lambda: rabbitmq.missing(Path("no-such-folder"))],
    ids=["nats", "redis", "kafka", "rabbitmq"],
)
def test_a_peer_that_is_not_here_names_the_remedy(
    missing: Callable[[], str | None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(redis, "find_spec", lambda _: None)
    problem = missing()
    assert problem is not None
    assert "install" in problem


def test_the_help_has_examples_and_the_list_has_every_question(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "examples:" in capsys.readouterr().out


# Warm


@pytest.mark.parametrize(
    ("rates", "expected"),
    [([], False), ([100.0, 101.0], False), ([50.0, 100.0, 101.0, 99.0], True), ([80.0, 100.0, 101.0], False)],
)
def test_a_server_is_warm_after_three_rounds_that_are_alike(rates: list[float], expected: bool) -> None:
    assert are_alike(rates, 3) is expected


@pytest.mark.parametrize(
    ("rates", "counted"),
    [
        ([30.0, 60.0, 100.0, 105.0], 105.0),
        ([30.0, 60.0, 99.0, 150.0, 151.0], 150.0),
        ([99.0, 98.0, 1.0], 98.0),
    ],
)
def test_work_is_repeated_until_two_runs_are_alike_or_four_ended(rates: list[float], counted: float) -> None:
    runs = iter(rates)
    assert settled(lambda: next(runs), lambda rate: rate, runs_max=4) == counted


def test_work_has_settled_by_all_its_measures() -> None:
    runs = iter([(100.0, 10.0), (101.0, 50.0), (99.0, 51.0)])
    found = settled(lambda: next(runs), lambda each: each[0], lambda each: each[1], runs_max=4)
    assert found == (99.0, 51.0)


# What other programs print

PRODUCER = """100 records sent, 900.0 records/sec (0.90 MB/sec), 9.0 ms avg latency, 20.0 ms max latency.
300000 records sent, 84034.5 records/sec (80.00 MB/sec), 12.3 ms avg latency, 230.00 ms max latency, \
5 ms 50th, 40 ms 95th, 90 ms 99th, 120 ms 99.9th.
200000 steady state records sent, 90000.0 records/sec (100.00 MB/sec), 10.3 ms avg latency, \
90.00 ms max latency, 4 ms 50th, 30 ms 95th, 70 ms 99th, 80 ms 99.9th.
"""
CONSUMER = """start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, \
rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
2026-01-01 00:00:00:000, 2026-01-01 00:00:04:000, 286.1, 71.5, 300000, 75000.0, 3000, 1000, 286.1, 300000.0
"""


def test_the_figures_of_kafkas_producer_are_those_of_its_steady_state() -> None:
    rate_mb, p50_ms, p99_ms = producer_figures(PRODUCER)
    assert rate_mb == pytest.approx(104.8576)
    assert (p50_ms, p99_ms) == (4.0, 70.0)


def test_without_a_steady_state_all_of_the_producers_records_count() -> None:
    assert producer_figures(PRODUCER.rpartition("200000")[0])[1:] == (5.0, 90.0)


def test_the_rate_of_kafkas_consumer_leaves_out_joining_its_group() -> None:
    assert consumer_rate_mb(CONSUMER) == pytest.approx(286.1 * 1.048576)


@pytest.mark.parametrize("read", [producer_figures, consumer_rate_mb])
def test_a_tool_that_prints_no_result_has_failed(read: Callable[[str], object]) -> None:
    with pytest.raises(ClientFailed, match="printed no result"):
        read("WARN something\n")


# A leader is killed


def test_a_silence_is_the_longest_gap_that_ends_after_the_kill() -> None:
    acknowledged = [0.0, 5.0, 5.1, 7.3, 7.4]
    assert silence_s(acknowledged, killed=5.05) == pytest.approx(2.2)


def test_a_silence_without_a_beginning_is_a_failure() -> None:
    """A writer that connects slowly would seem to hear nothing for a few milliseconds only."""
    with pytest.raises(ClientFailed, match="before the leader was killed"):
        silence_s([5.2, 5.21, 5.22], killed=5.05)


def test_a_writer_turns_to_the_survivors_first() -> None:
    assert survivors_first(WORK, 1) == "127.0.0.1:1,127.0.0.1:3,127.0.0.1:2"


# The work, with a client that is a list


class ListClient:
    """A client module, producer and consumer in one: a record is acknowledged when it is in the list."""

    BLOCKS = False

    def __init__(self, failures: int = 0) -> None:
        self.values: list[bytes] = []
        self.handed_over = 0
        self.failures = failures

    async def producer(self, _: Work) -> "ListClient":
        return self

    async def consumer(self, _: Work, __: int) -> "ListClient":
        self.handed_over = 0
        return self

    async def send(self, _: int, values: Sequence[bytes]) -> None:
        self.values.extend(values)

    async def settle(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the leader is gone")

    async def poll(self) -> None: ...

    async def close(self) -> None: ...

    async def receive(self) -> list[bytes]:
        await asyncio.sleep(0.001)
        found, self.handed_over = self.values[self.handed_over :], len(self.values)
        return found


def run_with(client: ListClient, function: str, **options: float) -> object:
    work = Work(**{**{"address": "", "pids": (), "name": "x", "record_bytes": 16}, **options})  # type: ignore[arg-type]
    return asyncio.run(getattr(driver, function)(client, work))


def test_a_reader_counts_everything_that_was_produced() -> None:
    client = ListClient()
    run_with(client, "produce", records=1000, seconds=5, lanes=3)
    assert len(client.values) == 1000 + 3  # one for each lane before the clock starts
    assert run_with(client, "count", seconds=0.05) == 1003


def test_a_slow_reader_has_its_whole_time_from_the_first_record_on() -> None:
    class SlowToBegin(ListClient):
        async def consumer(self, work: Work, reader: int) -> ListClient:
            await asyncio.sleep(0.2)
            return await super().consumer(work, reader)

    client = SlowToBegin()
    run_with(client, "produce", records=100, seconds=5)
    phase = run_with(client, "consume", seconds=0.05, records=101)
    assert isinstance(phase, Phase)
    assert phase.work == 101
    assert phase.wall_s >= 0.2


def test_only_counted_records_of_a_steady_flow_have_an_age() -> None:
    client = ListClient()

    async def both() -> list[float]:
        work = Work(address="", pids=(), name="x", record_bytes=16, rate=200, seconds=0.1)
        ages, _ = await asyncio.gather(
            driver.receive_steadily(client, work), driver.send_steadily(client, work)
        )
        return ages

    ages_ms = asyncio.run(both())
    assert len(ages_ms) == 20
    assert all(0 <= age < 1000 for age in ages_ms)


def test_a_writer_goes_on_through_failures_until_a_record_is_acknowledged() -> None:
    acknowledged = run_with(ListClient(failures=5), "write_through", seconds=0.2)
    assert isinstance(acknowledged, list)
    assert len(acknowledged) > 3


def test_a_writer_waits_for_its_first_acknowledgement_as_well() -> None:
    acknowledged = run_with(ListClient(failures=30), "write_through", seconds=0.05)
    assert isinstance(acknowledged, list)
    assert len(acknowledged) == 1


# Processes


def test_a_process_and_its_children_end_with_their_block(tmp_path: Path) -> None:
    wait = "import time; time.sleep(60)"
    spawn = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {wait!r}]); {wait}"
    with child([sys.executable, "-c", spawn], tmp_path / "output") as process:
        server = Server("127.0.0.1:1", (process.pid,), tmp_path, time.monotonic())
        wait_until(lambda: len(server.family()) == 2, process, tmp_path / "output", 10)
        family = server.family()
    assert not any(is_running(pid) for pid in family)


def test_a_killed_member_has_ended_when_the_call_returns(tmp_path: Path) -> None:
    with child([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "output") as process:
        Server("127.0.0.1:1", (process.pid,), tmp_path, time.monotonic()).kill()
        assert not is_running(process.pid)


def test_a_process_ends_also_when_its_end_is_interrupted(tmp_path: Path) -> None:
    """A second Ctrl-C while a server that ignores SIGTERM is asked to stop."""
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('!', flush=True)"
    output, started = tmp_path / "output", list[int]()

    def run() -> None:
        with child([sys.executable, "-c", f"{ignore}; time.sleep(60)"], output) as process:
            started.append(process.pid)
            wait_until(lambda: output.read_text() == "!\n", process, output, 10)
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        run()
    assert not is_running(*started)


def test_the_record_that_is_written_after_a_kill_hides_no_loss(tmp_path: Path) -> None:
    class Clients:
        """One of 11 acknowledged records is lost."""

        def call(self, function: str, work: Work) -> int | None:
            return min(work.records, 10 + 1) if function == "count" else None

    server = Server("127.0.0.1:1", (), tmp_path, time.monotonic())
    session = Session(contenders.CONTENDERS[0], server, Clients(), QUICK)  # type: ignore[arg-type]
    *_, lost = after_kill(session, Work(address="", pids=(), name="x", records=11))
    assert lost.value == 1


def test_a_server_that_ends_while_it_starts_shows_its_last_lines(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with (
        child([sys.executable, "-c", "print('no port is free')"], output) as process,
        pytest.raises(ServerFailed, match="no port is free"),
    ):
        wait_until(lambda: False, process, output, 10)


def test_the_holes_of_a_file_take_no_disk(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(10_000_000)
    assert disk_bytes(tmp_path) < 100_000


def test_what_is_about_to_be_deleted_takes_no_disk(tmp_path: Path) -> None:
    for folder in ("orders-0", "payments-0.deleted", "refunds-0.5f2c-delete"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0.log").write_bytes(bytes(100_000))
    (tmp_path / "orders-0" / "1.log.deleted").write_bytes(bytes(100_000))
    assert 100_000 <= disk_bytes(tmp_path) < 200_000


def test_the_command_is_known_to_python() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "--only", "nothing"], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"invalid choice" in done.stderr
