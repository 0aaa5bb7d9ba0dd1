"""DescribeCluster: brokers, controller, and endpoints that are not a broker's."""

from collections.abc import AsyncIterator

import pytest

from penstock.broker.apis.describe_cluster import DescribeCluster
from penstock.errors import ErrorCode
from penstock.protocol.messages.describe_cluster import (
    DESCRIBE_CLUSTER,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from penstock.protocol.schema import OPERATIONS_NOT_REQUESTED
from tests.unit.broker.support import (
    ALL_CLUSTER_OPERATIONS,
    DENY_EVERYTHING,
    OTHER_LISTENER,
    HandlerHarness,
    running_cluster,
)


@pytest.fixture
async def harness() -> AsyncIterator[HandlerHarness]:
    async with running_cluster(broker_ids=(4, 2)) as harness:
        yield harness


@pytest.mark.parametrize("version", range(3))
async def test_the_brokers_are_named_as_the_clients_listener_reaches_them(
    harness: HandlerHarness, version: int
) -> None:
    handler = DescribeCluster(harness.cluster)
    reply = await harness.ask(
        DESCRIBE_CLUSTER, handler, DescribeClusterRequest(), version, listener=OTHER_LISTENER
    )

    assert (reply.cluster_id, reply.controller_id) == ("c", 2)
    assert sorted(reply.brokers, key=lambda broker: broker.broker_id) == [
        DescribeClusterBroker(2, "tls2", 9102, "rack2", is_fenced=False),
        DescribeClusterBroker(4, "tls4", 9104, "rack4", is_fenced=False),
    ]
    assert reply.cluster_authorized_operations == OPERATIONS_NOT_REQUESTED


async def test_operations_are_those_that_the_client_may_do(harness: HandlerHarness) -> None:
    handler, request = DescribeCluster(harness.cluster), DescribeClusterRequest(True)

    all_of_them = await harness.ask(DESCRIBE_CLUSTER, handler, request)
    none_of_them = await harness.ask(DESCRIBE_CLUSTER, handler, request, authorizer=DENY_EVERYTHING)

    assert all_of_them.cluster_authorized_operations == ALL_CLUSTER_OPERATIONS
    assert none_of_them.cluster_authorized_operations == 0


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE), (0, 115), (-1, 115)],
)
async def test_endpoints_that_are_not_a_brokers_are_refused(
    harness: HandlerHarness, endpoint_type: int, code: int
) -> None:
    request = DescribeClusterRequest(endpoint_type=endpoint_type)
    reply = await harness.ask(DESCRIBE_CLUSTER, DescribeCluster(harness.cluster), request)

    assert reply.error_message
    assert reply == DescribeClusterResponse(error_code=code, error_message=reply.error_message)
