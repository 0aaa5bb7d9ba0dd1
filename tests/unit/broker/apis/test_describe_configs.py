"""DescribeConfigs: values, where they come from, and what is refused."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.apis.describe_configs import DescribeConfigs
from penstock.config.broker_settings import BROKER_SETTINGS
from penstock.config.setting import ConfigSource, ConfigType
from penstock.config.topic_settings import TOPIC_SETTINGS
from penstock.controller.configs import alter_broker_config
from penstock.errors import ErrorCode
from penstock.protocol.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from penstock.security.access import AllowEverything, Authorizer
from tests.unit.broker.config_support import NODE_ID, BrokerHarness, deny_everything, running

TOPIC, BROKER = 2, 4


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with running(tmp_path) as inside:
        yield inside


async def described(
    inside: BrokerHarness,
    *asked: tuple[int, str],
    keys: list[str] | None = None,
    details: bool = False,
    authorizer: Authorizer | None = None,
) -> list[Any]:
    resources = [DescribeConfigsResource(kind, name, keys) for kind, name in asked]
    request = DescribeConfigsRequest(resources, include_synonyms=details, include_documentation=details)
    reply = await inside.ask(
        DESCRIBE_CONFIGS, DescribeConfigs(inside.cluster), request, authorizer=authorizer or AllowEverything()
    )
    found: list[Any] = reply.results
    return found


async def set_on_brokers(inside: BrokerHarness, broker_id: int | None, **settings: str) -> None:
    overrides = {name.replace("_", "."): value for name, value in settings.items()}
    await inside.cluster.change(lambda image: alter_broker_config(image, broker_id, overrides))


@pytest.mark.parametrize("keys", [None, []])
async def test_without_keys_every_setting_of_a_topic_is_listed(
    inside: BrokerHarness, keys: list[str] | None
) -> None:
    await inside.topic("t", overrides={"retention.ms": "1000"})

    [result] = await described(inside, (TOPIC, "t"), keys=keys)
    assert (result.error_code, result.error_message) == (0, "")
    assert (result.resource_type, result.resource_name) == (TOPIC, "t")
    assert {entry.name for entry in result.configs} == set(TOPIC_SETTINGS)
    [own] = [entry for entry in result.configs if entry.config_source == ConfigSource.TOPIC]
    assert (own.name, own.value, own.read_only, own.config_type) == (
        "retention.ms",
        "1000",
        False,
        ConfigType.LONG,
    )
    assert (own.synonyms, own.documentation) == ([], None)


async def test_only_keys_that_exist_are_listed_each_once(inside: BrokerHarness) -> None:
    await inside.topic("t")

    keys = ["max.message.bytes", "retention.ms", "no.such.setting", "retention.ms"]
    [result] = await described(inside, (TOPIC, "t"), keys=keys)
    assert sorted(entry.name for entry in result.configs) == ["max.message.bytes", "retention.ms"]


async def test_synonyms_and_documentation_come_when_asked_for(inside: BrokerHarness) -> None:
    await inside.topic("t", overrides={"cleanup.policy": "compact"})

    [result] = await described(inside, (TOPIC, "t"), keys=["cleanup.policy"], details=True)
    [entry] = result.configs
    assert [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms] == [
        ("cleanup.policy", "compact", 1),
        ("log.cleanup.policy", "delete", 5),
    ]
    assert entry.documentation


async def test_every_setting_of_this_broker_is_listed_with_its_source(inside: BrokerHarness) -> None:
    await set_on_brokers(inside, NODE_ID, log_retention_ms="3000")

    [result] = await described(inside, (BROKER, str(NODE_ID)), details=True)
    entries = {entry.name: entry for entry in result.configs}
    assert (result.error_code, result.error_message) == (0, "")
    assert set(entries) == set(BROKER_SETTINGS)
    changed, static = entries["log.retention.ms"], entries["log.flush.policy"]
    assert (changed.value, changed.config_source, changed.read_only) == ("3000", 2, False)
    assert (static.value, static.config_source) == ("os", 4)
    assert entries["listeners"].read_only


async def test_a_topic_follows_what_its_broker_was_told(inside: BrokerHarness) -> None:
    await inside.topic("t")
    await set_on_brokers(inside, NODE_ID, log_retention_ms="3000")

    [result] = await described(inside, (TOPIC, "t"), keys=["retention.ms"])
    [entry] = result.configs
    assert (entry.value, entry.config_source) == ("3000", ConfigSource.DYNAMIC_BROKER)


async def test_the_broker_without_a_name_holds_the_defaults_of_all(inside: BrokerHarness) -> None:
    [before] = await described(inside, (BROKER, ""))
    assert (before.error_code, before.configs) == (0, [])

    await set_on_brokers(inside, None, log_retention_ms="4000")
    [after] = await described(inside, (BROKER, ""))
    [entry] = after.configs
    assert (entry.name, entry.value, entry.config_source) == ("log.retention.ms", "4000", 3)


async def test_a_missing_topic_is_unknown_with_an_empty_message(inside: BrokerHarness) -> None:
    [result] = await described(inside, (TOPIC, "absent"))

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (result.error_code, result.error_message, result.configs) == (code, "", [])


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        ((TOPIC, ""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ((TOPIC, "bad name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ((BROKER, "9"), ErrorCode.INVALID_REQUEST),
        ((BROKER, "x"), ErrorCode.INVALID_REQUEST),
        ((0, "t"), ErrorCode.INVALID_REQUEST),
        ((3, "t"), ErrorCode.INVALID_REQUEST),
        ((99, "t"), ErrorCode.INVALID_REQUEST),
        ((8, "1"), ErrorCode.INVALID_REQUEST),
        ((16, "metrics"), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_refusal_has_a_code_and_a_sentence(
    inside: BrokerHarness, resource: tuple[int, str], code: ErrorCode
) -> None:
    [result] = await described(inside, resource)

    assert (result.resource_type, result.resource_name) == resource
    assert (result.error_code, result.configs) == (code, [])
    assert result.error_message


async def test_one_refused_resource_leaves_the_others_answered(inside: BrokerHarness) -> None:
    await inside.topic("t")

    results = await described(inside, (TOPIC, "absent"), (TOPIC, "t"), (BROKER, "9"))
    assert [result.error_code for result in results] == [3, 0, 42]


async def test_a_resource_named_twice_is_listed_once(inside: BrokerHarness) -> None:
    await inside.topic("t")

    results = await described(inside, (TOPIC, "t"), (TOPIC, "t"), (BROKER, "1"), (TOPIC, "t"))
    assert [(result.resource_type, result.resource_name) for result in results] == [(2, "t"), (4, "1")]


async def test_who_may_not_describe_sees_neither_settings_nor_existence(inside: BrokerHarness) -> None:
    await inside.topic("t")

    asked = ((TOPIC, "t"), (TOPIC, "absent"), (BROKER, "1"), (BROKER, "9"), (BROKER, ""))
    results = await described(inside, *asked, authorizer=deny_everything)
    assert [result.error_code for result in results] == [29, 29, 31, 31, 31]
    assert all(result.configs == [] for result in results)
    assert results[0].error_message == results[1].error_message
    assert results[2].error_message == results[3].error_message
