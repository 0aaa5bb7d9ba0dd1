"""Commands about a group reach the broker that coordinates it."""

import pytest

from penstock.cli.broker_connector import BrokerConnector
from penstock.cli.group.client import GroupClient
from penstock.errors import CommandFailed, ErrorCode
from penstock.protocol.messages.delete_groups import DELETE_GROUPS, DeletableGroupResult, DeleteGroupsResponse
from penstock.protocol.messages.find_coordinator import (
    FIND_COORDINATOR,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tests.unit.wire.fake_cluster import FakeCluster


def deleted(code: ErrorCode) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(results=[DeletableGroupResult("billing", code)])


def coordinated(coordinator: int) -> FakeCluster:
    """Two bootstrap addresses, of which the first one accepts."""
    cluster = FakeCluster(2)

    def found(request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        host, port = cluster.addresses[coordinator]
        return FindCoordinatorResponse(coordinators=[Coordinator("billing", coordinator, host, port)])

    for broker in cluster.brokers:
        broker.on(FIND_COORDINATOR, found)
    return cluster


def delete(cluster: FakeCluster) -> None:
    with BrokerConnector(tuple(cluster.addresses), 10, network=cluster).client() as client:
        GroupClient(client, "billing").delete()


@pytest.mark.parametrize(("coordinator", "connections"), [(0, [1, 0]), (1, [1, 1])])
def test_a_group_is_asked_of_its_coordinator_among_several_bootstrap_addresses(
    coordinator: int, connections: list[int]
) -> None:
    cluster = coordinated(coordinator)
    cluster.brokers[coordinator].on(DELETE_GROUPS, deleted(ErrorCode.NONE))
    delete(cluster)
    assert [broker.connections for broker in cluster.brokers] == connections


def test_a_coordinator_that_loads_or_moves_is_asked_again() -> None:
    cluster = coordinated(1)
    codes = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.NONE)
    cluster.brokers[1].on(DELETE_GROUPS, *map(deleted, codes))
    delete(cluster)
    assert cluster.brokers[0].count(FIND_COORDINATOR) + cluster.brokers[1].count(FIND_COORDINATOR) == 2


def test_what_the_coordinator_refuses_is_said_at_once() -> None:
    cluster = coordinated(0)
    cluster.brokers[0].on(DELETE_GROUPS, deleted(ErrorCode.NON_EMPTY_GROUP))
    with pytest.raises(CommandFailed, match="group billing has members: stop its consumers first"):
        delete(cluster)
    assert cluster.now == 0
