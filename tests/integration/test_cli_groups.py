"""`penstock group` and `penstock consume --group` as a person runs them, beside real consumers."""

import json
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.integration.broker_process import BrokerProcess, eventually, serving
from tests.integration.messages import QUIET
from tests.integration.test_cli import Cli

SECONDS_MAX = 30.0
RECORDS = 60


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"group.initial.rebalance.delay.ms": 0, "num.partitions": 2}
    with serving(tmp_path_factory.mktemp("groups") / "data", settings=settings) as broker:
        yield broker


@pytest.fixture
def group_cli(group_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("PENSTOCK_URL", f"http://{group_broker.http}")
    return Cli(group_broker.bootstrap)


@pytest.fixture
def filled(group_broker: BrokerProcess, topic: str) -> str:
    """A topic with 30 records in each of its two partitions."""
    producer = Producer({"bootstrap.servers": group_broker.bootstrap, **QUIET})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(SECONDS_MAX) == 0
    return topic


def described(cli: Cli, group: str) -> Any:
    return json.loads(cli.ok("group", "describe", group, "--json"))


def offsets(cli: Cli, group: str) -> dict[int, int]:
    return {entry["partition"]: entry["committed_offset"] for entry in described(cli, group)["partitions"]}


class Running:
    """A consumer that reads on in a thread and never commits."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 200,
                "enable.auto.commit": False,
                **QUIET,
            }
        )
        self._consumer.subscribe([topic])
        self.values: list[bytes | None] = []
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopping:
            messages = self._consumer.consume(100, 0.1)
            self.values += [message.value() for message in messages if message.error() is None]
        self._consumer.close()

    def stop(self) -> None:
        self._is_stopping = True
        self._thread.join()


@contextmanager
def consumer_running(bootstrap: str, topic: str, group: str) -> Iterator[Running]:
    running = Running(bootstrap, topic, group)
    try:
        eventually(lambda: len(running.values) == RECORDS, seconds_max=SECONDS_MAX)
        yield running
    finally:
        running.stop()


def test_a_group_keeps_its_place_between_two_runs_of_consume(group_cli: Cli, filled: str) -> None:
    first = group_cli.ok("consume", filled, "--group", filled, "--max", "25").splitlines()
    rest = group_cli.ok("consume", filled, "--group", filled).splitlines()
    assert sorted(map(int, first + rest)) == list(range(RECORDS))
    assert group_cli.ok("consume", filled, "--group", filled) == ""


def test_a_group_can_read_history_again(group_cli: Cli, filled: str) -> None:
    group_cli.ok("consume", filled, "--group", filled)
    out = group_cli.ok("group", "reset", filled, "--to", "offset:20", "--json")
    moves = json.loads(out)["partitions"]
    assert [(move["partition"], move["from"], move["to"]) for move in moves] == [(0, 30, 20), (1, 30, 20)]
    assert len(group_cli.ok("consume", filled, "--group", filled).splitlines()) == 20


def test_a_dry_run_changes_nothing(group_cli: Cli, filled: str) -> None:
    group_cli.ok("consume", filled, "--group", filled)
    done = group_cli.run("group", "reset", filled, "--to", "earliest", "--dry-run")
    assert (done.code, "nothing was changed" in done.err) == (0, True)
    assert offsets(group_cli, filled) == {0: 30, 1: 30}


def test_one_partition_or_one_topic_can_be_moved(group_cli: Cli, filled: str) -> None:
    group_cli.ok("consume", filled, "--group", filled)
    group_cli.ok("group", "reset", filled, "--topic", f"{filled}:1", "--to", "5")
    assert offsets(group_cli, filled) == {0: 30, 1: 5}
    group_cli.ok("group", "reset", filled, "--topic", filled, "--to", "duration:PT1H")
    assert offsets(group_cli, filled) == {0: 0, 1: 0}
    group_cli.ok("group", "reset", filled, "--to", "2999-01-01")
    assert offsets(group_cli, filled) == {0: 30, 1: 30}


def test_a_group_that_does_not_exist_yet_can_be_given_a_place(group_cli: Cli, filled: str) -> None:
    assert "--topic" in group_cli.refused("group", "reset", filled, "--to", "latest")
    group_cli.ok("group", "reset", filled, "--topic", filled, "--to", "offset:29")
    assert len(group_cli.ok("consume", filled, "--group", filled).splitlines()) == 2
    assert filled in group_cli.ok("group", "list")


def test_an_offset_beyond_the_end_is_clipped_and_said(group_cli: Cli, filled: str) -> None:
    out = group_cli.ok("group", "reset", filled, "--topic", filled, "--to", "1000")
    assert out.count("1000 does not exist yet: the end") == 2
    assert offsets(group_cli, filled) == {0: 30, 1: 30}


def test_a_group_with_members_is_not_moved_or_deleted(
    group_cli: Cli, group_broker: BrokerProcess, filled: str
) -> None:
    with consumer_running(group_broker.bootstrap, filled, filled):
        (member,) = described(group_cli, filled)["members"]
        refusal = group_cli.refused("group", "reset", filled, "--topic", filled, "--to", "earliest")
        assert member["member_id"] in refusal
        assert "--force" in refusal
        assert "has members" in group_cli.refused("group", "delete", filled, "--yes")


def test_by_force_members_are_removed_and_come_back_at_the_new_place(
    group_cli: Cli, group_broker: BrokerProcess, filled: str
) -> None:
    with consumer_running(group_broker.bootstrap, filled, filled) as running:
        out = group_cli.ok("group", "reset", filled, "--topic", filled, "--to", "20", "--force", "--json")
        # It may be back, under a new id, before the offsets are written: then it is removed once more.
        assert json.loads(out)["removed_members"]
        eventually(lambda: len(running.values) == RECORDS + 20, seconds_max=SECONDS_MAX)
        assert described(group_cli, filled)["member_count"] == 1


def test_a_deleted_group_begins_anew(group_cli: Cli, filled: str) -> None:
    group_cli.ok("consume", filled, "--group", filled)
    assert "give --yes" in group_cli.refused("group", "delete", filled)
    assert group_cli.ok("group", "delete", filled, "--yes") == f"deleted group {filled}\n"
    assert filled not in group_cli.ok("group", "list")
    assert "There is no group" in group_cli.refused("group", "describe", filled)
    assert "there is no group" in group_cli.refused("group", "delete", filled, "--yes")


def test_describe_shows_what_waits_and_who_reads(
    group_cli: Cli, group_broker: BrokerProcess, filled: str
) -> None:
    group_cli.ok("group", "reset", filled, "--topic", filled, "--to", "10")
    out = group_cli.ok("group", "describe", filled)
    assert "behind: 40 records, the oldest for" in out
    assert "never drains at this rate" in out
    with consumer_running(group_broker.bootstrap, filled, f"{filled}-2"):
        out = group_cli.ok("group", "describe", f"{filled}-2")
        assert "1 member" in out
        assert "nothing committed yet" in out
        assert "joined" in out, "why it rebalanced last"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--to", "yesterday"), "is no place in a log"),
        (("--to", "offset:1h"), "is no offset"),
        (("--to", "earliest", "--topic", "t:x"), "is not TOPIC or TOPIC:PARTITION, as in"),
        ((), "--to"),
    ],
)
def test_a_wrong_command_line_is_explained(group_cli: Cli, arguments: tuple[str, ...], sentence: str) -> None:
    done = group_cli.run("group", "reset", "g", *arguments)
    assert (done.code, sentence in done.err) == (2, True)


def test_a_partition_or_topic_that_does_not_exist_is_named(group_cli: Cli, filled: str) -> None:
    wrong = group_cli.refused("group", "reset", "g", "--topic", f"{filled}:7", "--to", "earliest")
    assert "has no partition 7: it has 0 to 1" in wrong
    wrong = group_cli.refused("group", "reset", "g", "--topic", "no-such-topic", "--to", "earliest")
    assert "does not exist" in wrong


def test_describe_says_what_to_do_when_http_cannot_be_reached(group_cli: Cli) -> None:
    said = group_cli.refused("group", "describe", "g", "--url", "http://127.0.0.1:1")
    assert "nothing listens there" in said
    assert "PENSTOCK_URL" in said
    done = group_cli.run("group", "describe", "g", "--url", "ftp://x")
    assert (done.code, "is not http://host:port" in done.err) == (2, True)


def test_consume_in_a_group_refuses_what_the_group_decides(group_cli: Cli, filled: str) -> None:
    done = group_cli.run("consume", filled, "--group", "g", "--partition", "0")
    assert (done.code, "the group assigns" in done.err) == (2, True)
    done = group_cli.run("consume", filled, "--group", "g", "--from", "15m")
    assert (done.code, "penstock group reset" in done.err) == (2, True)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_ended_by_sigterm_leaves_its_group(group_cli: Cli, filled: str, protocol: str) -> None:
    group = f"{filled}-{protocol}"
    process = group_cli.start("consume", filled, "--follow", "--group", group, "--protocol", protocol)
    try:
        assert process.stdout is not None
        for _ in range(RECORDS):
            process.stdout.readline()
        eventually(lambda: sum(offsets(group_cli, group).values()) == RECORDS)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.wait()

    assert (process.returncode, out, err) == (143, "", "")
    assert described(group_cli, group)["members"] == []


def test_a_member_says_that_its_broker_is_lost(
    own_broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", f"http://{own_broker.http}")
    cli = Cli(own_broker.bootstrap)
    cli.ok("produce", topic, "--acks", "1", "--value", "before")
    process = cli.start("consume", topic, "--follow", "--group", topic)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "before\n"
        eventually(lambda: offsets(cli, topic) == {0: 1})
        own_broker.kill()
        stderr = process.stderr
        eventually(lambda: select.select([stderr], [], [], 0)[0])
        assert "connection to the broker is lost; trying again" in stderr.readline()
    finally:
        process.kill()
        process.communicate()
