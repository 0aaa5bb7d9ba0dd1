"""Members come, go, crash and freeze, and their broker is killed, while records keep coming: nothing is
skipped, nothing is undone.

What must hold at the end of every story
    every record was given to some member, without a gap
    the group's committed offsets reached the end, and never went back on the way
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.broker_process import BrokerProcess, serving
from tests.integration.free_ports import free_ports
from tests.integration.group_crowd import (
    SHORT_GROUP_TIMEOUTS,
    CommittedOffsetsWatcher,
    GroupProcesses,
    Member,
    RecordSource,
    assert_nothing_was_missed,
    create_topic,
    delivers_from_all_partitions,
    group_processes,
    offered,
)

PARTITIONS = 6
KINDS = ("confluent-range", "confluent-cooperative", "confluent-consumer", "kafka-python", "aiokafka")


@pytest.fixture
def broker(data_dir: Path) -> Iterator[BrokerProcess]:
    """On ports that it keeps when it is started again."""
    kafka, http = free_ports(2)
    addresses = ("--kafka", f"127.0.0.1:{kafka}", "--http", f"127.0.0.1:{http}")
    with serving(data_dir, settings=SHORT_GROUP_TIMEOUTS, addresses=addresses) as broker:
        create_topic(broker.bootstrap, "t", PARTITIONS)
        yield broker


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, broker: BrokerProcess) -> str:
    return offered(str(request.param), broker.bootstrap)


def freeze_until_replaced(
    them: GroupProcesses, zombie: Member, other: Member, places: CommittedOffsetsWatcher
) -> None:
    """A member stops with records in hand, for so long that another reads on in its place."""
    zombie.pause_before_commit()
    zombie.pause()
    uncommitted_offsets = zombie.uncommitted_offsets()
    them.wait_until(
        lambda: all(places.now[partition] > offset for partition, offset in uncommitted_offsets.items())
    )
    assert {partition for partition, _ in other.delivered()} >= set(uncommitted_offsets)
    zombie.continue_commit()
    zombie.resume()


def test_members_come_and_go_and_the_broker_is_killed_under_load(
    kind: str, broker: BrokerProcess, tmp_path: Path
) -> None:
    address = broker.bootstrap
    with (
        group_processes(address, "t", "readers", tmp_path) as them,
        CommittedOffsetsWatcher(address, "t", "readers", PARTITIONS) as places,
        RecordSource(address, "t", PARTITIONS) as source,
    ):
        first, second, third = (them.add(kind) for _ in range(3))
        them.wait_until(lambda: all(member.delivered() for member in them.members))
        third.leave()
        second.crash()
        them.wait_until(delivers_from_all_partitions(first, PARTITIONS))

        fourth = them.add(kind)
        them.wait_until(fourth.delivered)
        freeze_until_replaced(them, fourth, first, places)
        them.wait_until(fourth.outcome_of_paused_commit)
        assert fourth.outcome_of_paused_commit() == "refused"

        before = len(fourth.delivered())
        them.wait_until(lambda: len(fourth.delivered()) > before)

        broker.kill()
        broker.start()
        before = len(them.delivered())
        them.wait_until(lambda: len(them.delivered()) > before)
        assert_nothing_was_missed(them, source, places)
        first.leave()
        fourth.leave()
