"""Settings of groups through DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from penstock.broker.apis.alter_configs import AlterConfigs
from penstock.broker.apis.describe_configs import DescribeConfigs
from penstock.broker.apis.incremental_alter_configs import IncrementalAlterConfigs
from penstock.broker.apis.list_config_resources import ListConfigResources
from penstock.broker.cluster.metadata_service import MetadataServiceLimits
from penstock.errors import ErrorCode
from penstock.limits import GROUP_ID_BYTES_MAX
from penstock.protocol.messages import alter_configs, incremental_alter_configs
from penstock.protocol.messages.alter_configs import ALTER_CONFIGS
from penstock.protocol.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from penstock.protocol.messages.incremental_alter_configs import INCREMENTAL_ALTER_CONFIGS
from penstock.protocol.messages.list_config_resources import (
    LIST_CONFIG_RESOURCES,
    ListConfigResourcesRequest,
)
from penstock.security.access import Authorizer
from tests.unit.broker.config_support import BrokerHarness, allow_everything, deny_everything, running

GROUP = 32
SET, DELETE = 0, 1
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
OF_GROUP, OF_BROKER = 8, 5


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with running(tmp_path) as inside:
        yield inside


async def altered(
    inside: BrokerHarness,
    group: str,
    *operations: tuple[str, int, str | None],
    validate_only: bool = False,
    authorizer: Authorizer = allow_everything,
) -> int:
    configs = [incremental_alter_configs.AlterableConfig(*operation) for operation in operations]
    resource = incremental_alter_configs.AlterConfigsResource(GROUP, group, configs)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest([resource], validate_only)
    handler = IncrementalAlterConfigs(inside.cluster)
    reply = await inside.ask(INCREMENTAL_ALTER_CONFIGS, handler, request, authorizer=authorizer)
    return int(reply.responses[0].error_code)


async def replaced(inside: BrokerHarness, group: str, *settings: tuple[str, str | None]) -> int:
    configs = [alter_configs.AlterableConfig(*setting) for setting in settings]
    resource = alter_configs.AlterConfigsResource(GROUP, group, configs)
    request = alter_configs.AlterConfigsRequest([resource])
    reply = await inside.ask(ALTER_CONFIGS, AlterConfigs(inside.cluster), request)
    return int(reply.responses[0].error_code)


async def described(
    inside: BrokerHarness, group: str, authorizer: Authorizer = allow_everything
) -> tuple[int, dict[str, tuple[str, int]]]:
    request = DescribeConfigsRequest([DescribeConfigsResource(GROUP, group, None)])
    handler = DescribeConfigs(inside.cluster)
    reply = await inside.ask(DESCRIBE_CONFIGS, handler, request, authorizer=authorizer)
    (result,) = reply.results
    return result.error_code, {entry.name: (entry.value, entry.config_source) for entry in result.configs}


async def listed(inside: BrokerHarness) -> Sequence[str]:
    handler = ListConfigResources(inside.cluster)
    reply = await inside.ask(LIST_CONFIG_RESOURCES, handler, ListConfigResourcesRequest([GROUP]))
    return [resource.resource_name for resource in reply.config_resources]


async def test_a_group_that_nobody_configured_follows_the_broker(inside: BrokerHarness) -> None:
    expected = {SESSION: ("45000", OF_BROKER), HEARTBEAT: ("1000", OF_BROKER)}
    assert await described(inside, "unheard-of") == (0, expected)
    assert not await listed(inside)


async def test_what_is_set_is_shown_and_listed_until_it_is_removed(inside: BrokerHarness) -> None:
    assert await altered(inside, "g/1 \u00fc", (SESSION, SET, "50000"), (HEARTBEAT, SET, "2000")) == 0
    shown = {SESSION: ("50000", OF_GROUP), HEARTBEAT: ("2000", OF_GROUP)}
    assert await described(inside, "g/1 \u00fc") == (0, shown)
    assert await listed(inside) == ["g/1 \u00fc"]
    assert await replaced(inside, "g/1 \u00fc", (SESSION, "51000")) == 0
    shown = {SESSION: ("51000", OF_GROUP), HEARTBEAT: ("1000", OF_BROKER)}
    assert await described(inside, "g/1 \u00fc") == (0, shown)
    assert await altered(inside, "g/1 \u00fc", (SESSION, DELETE, None)) == 0
    assert not await listed(inside)
    assert not inside.cluster.image.group_overrides


async def test_validating_changes_nothing(inside: BrokerHarness) -> None:
    assert await altered(inside, "g", (SESSION, SET, "50000"), validate_only=True) == 0
    code = await altered(inside, "g", (SESSION, SET, "1"), validate_only=True)
    assert code == ErrorCode.INVALID_CONFIG
    assert not await listed(inside)


async def test_one_setting_that_is_refused_refuses_all_of_the_group(inside: BrokerHarness) -> None:
    code = await altered(inside, "g", (SESSION, SET, "50000"), ("nonsense", SET, "1"))
    assert code == ErrorCode.INVALID_CONFIG
    assert not await listed(inside)


@pytest.mark.parametrize("name", ["", "g" * (GROUP_ID_BYTES_MAX + 1)])
async def test_what_cannot_be_a_group_has_no_settings(inside: BrokerHarness, name: str) -> None:
    assert await altered(inside, name, (SESSION, SET, "50000")) == ErrorCode.INVALID_REQUEST
    assert await replaced(inside, name) == ErrorCode.INVALID_REQUEST
    assert (await described(inside, name))[0] == ErrorCode.INVALID_REQUEST


async def test_whoever_may_not_is_refused_before_anything_else(inside: BrokerHarness) -> None:
    code = await altered(inside, "", ("nonsense", SET, "1"), authorizer=deny_everything)
    assert code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert (await described(inside, "g", deny_everything))[0] == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_clients_cannot_make_the_broker_remember_any_number_of_names(tmp_path: Path) -> None:
    async with running(tmp_path, limits=MetadataServiceLimits(groups_with_settings_max=2)) as inside:
        for name in ("a", "b"):
            assert await altered(inside, name, (SESSION, SET, "50000")) == 0
        assert await altered(inside, "c", (SESSION, SET, "50000")) == ErrorCode.POLICY_VIOLATION
        assert await altered(inside, "a", (SESSION, SET, "51000")) == 0
        assert await altered(inside, "b", (SESSION, DELETE, None)) == 0
        assert await altered(inside, "c", (SESSION, SET, "50000")) == 0
