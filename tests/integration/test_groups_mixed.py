"""One group, members of several libraries and of both group protocols, while records keep coming."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.protocol.messages.list_groups import LIST_GROUPS, ListGroupsRequest
from tests.integration.broker_process import BrokerProcess, serving
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
from tests.integration.raw_client import RawClient, connected

PARTITIONS = 6


@pytest.fixture
def broker(data_dir: Path) -> Iterator[BrokerProcess]:
    with serving(data_dir, settings=SHORT_GROUP_TIMEOUTS) as broker:
        create_topic(broker.bootstrap, "t", PARTITIONS)
        yield broker


def test_members_of_three_libraries_share_one_group(broker: BrokerProcess, tmp_path: Path) -> None:
    address = broker.bootstrap
    with (
        group_processes(address, "t", "readers", tmp_path) as them,
        CommittedOffsetsWatcher(address, "t", "readers", PARTITIONS) as places,
        RecordSource(address, "t", PARTITIONS) as source,
    ):
        first, second, third = (them.add(kind) for kind in ("kafka-python", "confluent-range", "aiokafka"))
        them.wait_until(lambda: all(len(member.owns()) == PARTITIONS // 3 for member in them.members))
        them.wait_until(lambda: all(member.delivered() for member in them.members))
        first.crash()  # it leads: who divides the partitions is another library from now on
        second.leave()
        them.wait_until(delivers_from_all_partitions(third, PARTITIONS))
        assert_nothing_was_missed(them, source, places)
        third.leave()


def replace(them: GroupProcesses, old: Member, kind: str) -> Member:
    """As in a rolling upgrade: one member goes, and one that is set up otherwise comes."""
    old.leave()
    new = them.add(kind)
    them.wait_until(new.delivered)
    return new


def group_type(client: RawClient) -> str:
    return client.ask(LIST_GROUPS, 5, ListGroupsRequest()).groups[0].group_type


@pytest.mark.parametrize("classic", ["confluent-range", "confluent-cooperative"])
def test_a_group_moves_to_the_new_protocol_and_back_member_by_member(
    classic: str, broker: BrokerProcess, tmp_path: Path
) -> None:
    address = broker.bootstrap
    new = offered("confluent-consumer", address)
    with (
        group_processes(address, "t", "readers", tmp_path) as them,
        CommittedOffsetsWatcher(address, "t", "readers", PARTITIONS) as places,
        RecordSource(address, "t", PARTITIONS) as source,
        connected(address) as client,
    ):
        first, second = them.add(classic), them.add(classic)
        them.wait_until(lambda: first.delivered() and second.delivered())
        assert group_type(client) == "classic"
        first = replace(them, first, new)
        assert group_type(client) == "consumer"
        second = replace(them, second, new)
        them.wait_until(lambda: len(first.owns()) == len(second.owns()) == PARTITIONS // 2)
        first = replace(them, first, classic)
        second = replace(them, second, classic)
        them.wait_until(lambda: group_type(client) == "classic")
        assert_nothing_was_missed(them, source, places)
        first.leave()
        second.leave()
