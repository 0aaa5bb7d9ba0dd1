"""IncrementalAlterConfigs: one setting at a time, and what each operation starts from."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from penstock.broker.apis.incremental_alter_configs import IncrementalAlterConfigs
from penstock.errors import ErrorCode
from penstock.protocol.messages.incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.security.access import AllowEverything, Authorizer
from tests.unit.broker.config_support import NODE_ID, BrokerHarness, deny_everything, running

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)

Operations = list[tuple[str, int, str | None]]


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with running(tmp_path) as inside:
        yield inside


async def altered(
    inside: BrokerHarness,
    *asked: tuple[int, str, Operations],
    validate_only: bool = False,
    authorizer: Authorizer | None = None,
) -> list[int]:
    """The error codes; each has a sentence, and success has none."""
    resources = [
        AlterConfigsResource(kind, name, [AlterableConfig(*operation) for operation in operations])
        for kind, name, operations in asked
    ]
    reply = await inside.ask(
        INCREMENTAL_ALTER_CONFIGS,
        IncrementalAlterConfigs(inside.cluster),
        IncrementalAlterConfigsRequest(resources, validate_only),
        authorizer=authorizer or AllowEverything(),
    )
    assert [(entry.resource_type, entry.resource_name) for entry in reply.responses] == [
        (kind, name) for kind, name, _ in asked
    ]
    assert all((entry.error_code == 0) == (entry.error_message is None) for entry in reply.responses)
    return [entry.error_code for entry in reply.responses]


def overrides_of(inside: BrokerHarness, topic: str) -> Mapping[str, str]:
    return inside.cluster.image.topics[topic].overrides


async def test_what_is_not_named_stays_as_it_is(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t", overrides={"retention.ms": "1000", "segment.ms": "9"})

    asked: Operations = [("segment.ms", DELETE, None), ("retention.bytes", SET, "77")]
    assert await altered(inside, (TOPIC, "t", asked)) == [0]
    assert overrides_of(inside, "t") == {"retention.ms": "1000", "retention.bytes": "77"}
    assert (partition.config.retention_ms, partition.config.retention_bytes) == (1000, 77)


@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        ({}, APPEND, "compact", "delete,compact"),
        ({}, APPEND, "delete", "delete"),
        ({}, SUBTRACT, "delete", ""),
        ({"cleanup.policy": "compact"}, APPEND, "delete", "compact,delete"),
        ({"cleanup.policy": "compact,delete"}, SUBTRACT, "delete", "compact"),
        ({"cleanup.policy": "compact"}, SUBTRACT, "delete", "compact"),
    ],
)
async def test_lists_grow_and_shrink_from_the_value_in_effect(
    inside: BrokerHarness, before: dict[str, str], operation: int, value: str, after: str
) -> None:
    await inside.topic("t", overrides=before)

    assert await altered(inside, (TOPIC, "t", [("cleanup.policy", operation, value)])) == [0]
    assert overrides_of(inside, "t") == {"cleanup.policy": after}


@pytest.mark.parametrize("value", [None, "1"])
@pytest.mark.parametrize("name", ["segment.ms", "no.such.setting", "listeners", ""])
async def test_deleting_what_is_not_set_works_whatever_it_is_called(
    inside: BrokerHarness, name: str, value: str | None
) -> None:
    await inside.topic("t", overrides={"retention.ms": "1000"})

    operations: Operations = [(name, DELETE, value)]
    codes = await altered(
        inside, (TOPIC, "t", operations), (BROKER, "1", operations), (BROKER, "", operations)
    )
    assert codes == [0, 0, 0]
    assert overrides_of(inside, "t") == {"retention.ms": "1000"}


@pytest.mark.parametrize(
    ("name", "operations", "code"),
    [
        ("absent", [], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("absent", [("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        ("bad name", [], ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", [], ErrorCode.INVALID_REQUEST),
        ("t", [("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        ("t", [("segment.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ("t", [("segment.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ("t", [("segment.ms", SUBTRACT, "1")], ErrorCode.INVALID_CONFIG),
        ("t", [("segment.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ("t", [("cleanup.policy", APPEND, None)], ErrorCode.INVALID_REQUEST),
        ("t", [("segment.ms", SET, "1"), ("segment.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        ("t", [("segment.ms", SET, "1"), ("segment.ms", DELETE, None)], ErrorCode.INVALID_REQUEST),
        ("t", [("segment.ms", DELETE, None), ("segment.ms", DELETE, None)], ErrorCode.INVALID_REQUEST),
        ("t", [("segment.ms", 4, "1")], ErrorCode.INVALID_REQUEST),
        ("t", [("segment.ms", -1, "1")], ErrorCode.INVALID_REQUEST),
        ("t", [("segment.ms", SET, "1"), ("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
    ],
)
async def test_a_refused_topic_keeps_its_settings(
    inside: BrokerHarness, name: str, operations: Operations, code: ErrorCode
) -> None:
    await inside.topic("t", overrides={"retention.ms": "1000"})

    assert await altered(inside, (TOPIC, name, operations)) == [code]
    assert overrides_of(inside, "t") == {"retention.ms": "1000"}


@pytest.mark.parametrize("operation", [(DELETE, None), (SET, "delete"), (APPEND, "delete")])
async def test_the_topic_of_groups_stays_compacted(
    inside: BrokerHarness, operation: tuple[int, str | None]
) -> None:
    await inside.topic("__consumer_offsets", overrides={"cleanup.policy": "compact"})

    asked: Operations = [("cleanup.policy", *operation)]
    assert await altered(inside, (TOPIC, "__consumer_offsets", asked)) == [ErrorCode.INVALID_CONFIG]
    other: Operations = [("segment.bytes", SET, "2000000")]
    assert await altered(inside, (TOPIC, "__consumer_offsets", other)) == [0]


async def test_validating_changes_nothing_and_refuses_all_the_same(inside: BrokerHarness) -> None:
    await inside.topic("t")

    good: Operations = [("retention.ms", SET, "1")]
    bad: Operations = [("retention.ms", SET, "x")]
    of_broker: Operations = [("log.retention.ms", SET, "1")]
    asked = (TOPIC, "t", good), (BROKER, "1", of_broker), (TOPIC, "absent", bad)
    assert await altered(inside, *asked, validate_only=True) == [0, 0, 40]
    assert overrides_of(inside, "t") == {}
    assert inside.cluster.image.broker_overrides == {}


async def test_a_resource_named_twice_is_refused_twice(inside: BrokerHarness) -> None:
    await inside.topic("t")
    await inside.topic("u")

    one: Operations = [("retention.ms", SET, "1")]
    assert await altered(inside, (TOPIC, "t", one), (TOPIC, "u", one), (TOPIC, "t", one)) == [42, 0, 42]
    assert overrides_of(inside, "t") == {}
    assert overrides_of(inside, "u") == {"retention.ms": "1"}


async def test_a_broker_and_all_brokers_are_told_apart(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t")
    assert await altered(inside, (BROKER, "", [("log.retention.ms", SET, "4000")])) == [0]
    assert partition.config.retention_ms == 4000

    assert await altered(inside, (BROKER, str(NODE_ID), [("log.retention.ms", SET, "3000")])) == [0]
    assert partition.config.retention_ms == 3000

    assert await altered(inside, (BROKER, str(NODE_ID), [("log.retention.ms", DELETE, None)])) == [0]
    assert partition.config.retention_ms == 4000
    assert not inside.cluster.image.overrides_of_broker(NODE_ID).overrides


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("9", ("log.retention.ms", SET, "1")),
        ("x", ("log.retention.ms", SET, "1")),
        ("1", ("listeners", SET, "PLAINTEXT://:1")),
        ("1", ("log.retention.ms", SET, "soon")),
        ("1", ("log.retention.ms", SET, None)),
        ("1", ("no.such", APPEND, "1")),
        ("", ("node.id", SET, "3")),
    ],
)
async def test_a_brokers_settings_are_refused_as_an_invalid_request(
    inside: BrokerHarness, name: str, operation: tuple[str, int, str | None]
) -> None:
    assert await altered(inside, (BROKER, name, [operation])) == [ErrorCode.INVALID_REQUEST]
    assert inside.cluster.image.broker_overrides == {}


@pytest.mark.parametrize("name", ["1", ""])
async def test_a_broker_setting_that_nobody_knows_is_kept(inside: BrokerHarness, name: str) -> None:
    assert await altered(inside, (BROKER, name, [("no.such", SET, "1")])) == [0]
    broker_id = int(name) if name else None
    assert inside.cluster.image.overrides_of_broker(broker_id).overrides == {"no.such": "1"}
    assert await altered(inside, (BROKER, name, [("no.such", DELETE, None)])) == [0]
    assert inside.cluster.image.overrides_of_broker(broker_id).overrides == {}


@pytest.mark.parametrize("kind", [0, 3, 8, 16, 99, -1])
async def test_other_kinds_of_resources_are_refused(inside: BrokerHarness, kind: int) -> None:
    assert await altered(inside, (kind, "1", [])) == [ErrorCode.INVALID_REQUEST]


async def test_who_may_not_alter_learns_nothing_and_changes_nothing(inside: BrokerHarness) -> None:
    await inside.topic("t")

    one: Operations = [("retention.ms", SET, "1")]
    asked = (TOPIC, "t", one), (TOPIC, "absent", one), (BROKER, "1", one), (BROKER, "", one)
    assert await altered(inside, *asked, authorizer=deny_everything) == [29, 29, 31, 31]
    assert overrides_of(inside, "t") == {}


@pytest.mark.parametrize("name", ["1", ""])
async def test_what_is_left_of_a_brokers_settings_must_hold_together(
    inside: BrokerHarness, name: str
) -> None:
    together: Operations = [("log.flush.policy", SET, "interval"), ("log.flush.interval.ms", SET, "100")]
    assert await altered(inside, (BROKER, name, together)) == [0]

    assert await altered(inside, (BROKER, name, [("log.flush.interval.ms", DELETE, None)])) == [42]
