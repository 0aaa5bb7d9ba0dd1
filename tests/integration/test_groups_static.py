"""Members that are known by a name of their own: they may restart, and there is one of each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.broker_process import BrokerProcess, eventually, serving
from tests.integration.group_crowd import (
    SHORT_GROUP_TIMEOUTS,
    WAIT_S_MAX,
    GroupProcesses,
    Member,
    RecordSource,
    create_topic,
    delivers_from_all_partitions,
    group_processes,
    offered,
)

PARTITIONS = 4
SESSION_MS = 20_000
"""Longer than a restart takes on a busy machine."""

SETTINGS = {**SHORT_GROUP_TIMEOUTS, "group.consumer.session.timeout.ms": SESSION_MS}
KINDS = ("confluent-range", "confluent-consumer")


@pytest.fixture
def broker(data_dir: Path) -> Iterator[BrokerProcess]:
    with serving(data_dir, settings=SETTINGS) as broker:
        create_topic(broker.bootstrap, "t", PARTITIONS)
        yield broker


def add(them: GroupProcesses, kind: str, name: str) -> Member:
    return them.add(kind, instance=name, session=SESSION_MS, poll=30_000)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_within_the_session_disturbs_nobody(
    kind: str, broker: BrokerProcess, tmp_path: Path
) -> None:
    address = broker.bootstrap
    with group_processes(address, "t", "readers", tmp_path) as them, RecordSource(address, "t", PARTITIONS):
        offered(kind, address)
        one, other = add(them, kind, "one"), add(them, kind, "other")
        them.wait_until(lambda: len(one.owns()) == len(other.owns()) == PARTITIONS // 2)
        them.wait_until(delivers_from_all_partitions(one, PARTITIONS // 2))
        owned, rebalances = one.owns(), other.rebalances()

        one.leave()
        again = add(them, kind, "one")
        them.wait_until(lambda: again.owns() == owned)
        them.wait_until(delivers_from_all_partitions(again, len(owned)))
        them.wait_until(delivers_from_all_partitions(other, len(other.owns())))
        assert other.rebalances() == rebalances
        start = {partition: max(o for p, o in one.delivered() if p == partition) for partition in owned}
        for partition in owned:
            first = min(offset for each, offset in again.delivered() if each == partition)
            assert first == start[partition] + 1, "it goes on where it was"


def test_of_two_with_one_name_the_older_is_shut_out(broker: BrokerProcess, tmp_path: Path) -> None:
    address = broker.bootstrap
    with group_processes(address, "t", "readers", tmp_path) as them, RecordSource(address, "t", PARTITIONS):
        older = add(them, "confluent-range", "one")
        them.wait_until(older.delivered)
        newer = add(them, "confluent-range", "one")
        eventually(lambda: older.output_lines("fatal"), seconds_max=WAIT_S_MAX)
        assert "fenced" in older.output_lines("fatal")[0], older.output_lines("fatal")
        eventually(newer.delivered, seconds_max=WAIT_S_MAX)


def test_of_two_with_one_name_the_newer_is_refused_by_the_new_protocol(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    address = broker.bootstrap
    kind = offered("confluent-consumer", address)
    with group_processes(address, "t", "readers", tmp_path) as them, RecordSource(address, "t", PARTITIONS):
        older = add(them, kind, "one")
        them.wait_until(older.delivered)
        newer = add(them, kind, "one")
        eventually(lambda: newer.output_lines("fatal"), seconds_max=WAIT_S_MAX)
        assert "still used by another member" in " ".join(newer.output_lines("fatal")[0])
        eventually(delivers_from_all_partitions(older, PARTITIONS), seconds_max=WAIT_S_MAX)
