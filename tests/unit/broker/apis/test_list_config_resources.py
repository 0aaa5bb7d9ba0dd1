"""ListConfigResources: which topics and brokers there are to configure."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.apis.list_config_resources import ListConfigResources
from penstock.errors import ErrorCode
from penstock.protocol.messages.list_config_resources import (
    LIST_CONFIG_RESOURCES,
    ListConfigResourcesRequest,
)
from penstock.security.access import AllowEverything, Authorizer
from tests.unit.broker.config_support import BrokerHarness, deny_everything, running

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with running(tmp_path) as inside:
        await inside.topic("t")
        await inside.topic("a")
        yield inside


async def listed(
    inside: BrokerHarness, *types: int, version: int = 1, authorizer: Authorizer | None = None
) -> tuple[int, list[tuple[int, str]]]:
    reply = await inside.ask(
        LIST_CONFIG_RESOURCES,
        ListConfigResources(inside.cluster),
        ListConfigResourcesRequest(list(types)),
        version=version,
        authorizer=authorizer or AllowEverything(),
    )
    found = [(resource.resource_type, resource.resource_name) for resource in reply.config_resources]
    return reply.error_code, found


async def test_no_types_lists_all_brokers_and_topics(inside: BrokerHarness) -> None:
    assert await listed(inside) == (0, [(BROKER, "1"), (TOPIC, "a"), (TOPIC, "t")])


async def test_only_the_types_asked_for_are_listed_each_once(inside: BrokerHarness) -> None:
    assert await listed(inside, BROKER) == (0, [(BROKER, "1")])
    assert await listed(inside, TOPIC, TOPIC) == (0, [(TOPIC, "a"), (TOPIC, "t")])


@pytest.mark.parametrize("kind", [LOGGER, METRICS, GROUP])
async def test_kinds_that_are_not_there_are_empty(inside: BrokerHarness, kind: int) -> None:
    assert await listed(inside, kind) == (0, [])


@pytest.mark.parametrize("kind", [0, 3, 99, -1])
async def test_a_type_nobody_knows_refuses_the_request(inside: BrokerHarness, kind: int) -> None:
    assert await listed(inside, TOPIC, kind) == (ErrorCode.UNSUPPORTED_VERSION, [])


async def test_the_first_version_asks_for_client_metrics_only(inside: BrokerHarness) -> None:
    assert await listed(inside, version=0) == (0, [])


@pytest.mark.parametrize("version", [0, 1])
async def test_who_may_not_describe_the_cluster_sees_nothing(inside: BrokerHarness, version: int) -> None:
    code, found = await listed(inside, version=version, authorizer=deny_everything)
    assert (code, found) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
