"""AlterConfigs: the whole set of settings, replaced or refused."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from penstock.broker.apis.alter_configs import AlterConfigs
from penstock.errors import ErrorCode
from penstock.protocol.messages.alter_configs import (
    ALTER_CONFIGS,
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from penstock.security.access import AllowEverything, Authorizer
from tests.unit.broker.config_support import NODE_ID, BrokerHarness, deny_everything, running

TOPIC, BROKER = 2, 4

Resource = tuple[int, str, list[tuple[str, str | None]]]


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with running(tmp_path) as inside:
        yield inside


async def altered(
    inside: BrokerHarness, *asked: Resource, validate_only: bool = False, authorizer: Authorizer | None = None
) -> list[int]:
    """The error codes; each has a sentence, and success has none."""
    resources = [
        AlterConfigsResource(kind, name, [AlterableConfig(*entry) for entry in entries])
        for kind, name, entries in asked
    ]
    reply = await inside.ask(
        ALTER_CONFIGS,
        AlterConfigs(inside.cluster),
        AlterConfigsRequest(resources, validate_only),
        authorizer=authorizer or AllowEverything(),
    )
    assert [(entry.resource_type, entry.resource_name) for entry in reply.responses] == [
        (kind, name) for kind, name, _ in asked
    ]
    assert all((entry.error_code == 0) == (entry.error_message is None) for entry in reply.responses)
    return [entry.error_code for entry in reply.responses]


def overrides_of(inside: BrokerHarness, topic: str) -> Mapping[str, str]:
    return inside.cluster.image.topics[topic].overrides


async def test_what_is_not_named_goes_back_to_its_default(inside: BrokerHarness) -> None:
    [partition] = await inside.topic("t", overrides={"retention.ms": "1000"})

    assert await altered(inside, (TOPIC, "t", [("segment.ms", "5000")])) == [0]
    assert overrides_of(inside, "t") == {"segment.ms": "5000"}
    assert partition.config.segment_ms == 5000
    assert partition.config.retention_ms == inside.cluster.config.topic_defaults.retention_ms


async def test_an_empty_list_clears_everything(inside: BrokerHarness) -> None:
    await inside.topic("t", overrides={"retention.ms": "1000"})

    assert await altered(inside, (TOPIC, "t", [])) == [0]
    assert overrides_of(inside, "t") == {}


async def test_validating_changes_nothing_and_refuses_all_the_same(inside: BrokerHarness) -> None:
    await inside.topic("t")

    assert await altered(inside, (TOPIC, "t", [("retention.ms", "1")]), validate_only=True) == [0]
    assert await altered(inside, (TOPIC, "t", [("retention.ms", "x")]), validate_only=True) == [40]
    assert await altered(inside, (TOPIC, "absent", []), validate_only=True) == [3]
    assert overrides_of(inside, "t") == {}


@pytest.mark.parametrize(
    ("name", "entries", "code"),
    [
        ("absent", [], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("absent", [("no.such", "1")], ErrorCode.INVALID_CONFIG),
        ("bad name", [], ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", [], ErrorCode.INVALID_REQUEST),
        ("t", [("no.such", "1")], ErrorCode.INVALID_CONFIG),
        ("t", [("retention.ms", "soon")], ErrorCode.INVALID_CONFIG),
        ("t", [("segment.bytes", "1")], ErrorCode.INVALID_CONFIG),
        ("t", [("min.compaction.lag.ms", "9"), ("max.compaction.lag.ms", "8")], ErrorCode.INVALID_CONFIG),
        ("t", [("retention.ms", None)], ErrorCode.INVALID_REQUEST),
        ("t", [("retention.ms", "1"), ("retention.ms", "2")], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_refused_topic_keeps_its_settings(
    inside: BrokerHarness, name: str, entries: list[tuple[str, str | None]], code: ErrorCode
) -> None:
    await inside.topic("t", overrides={"retention.ms": "1000"})

    assert await altered(inside, (TOPIC, name, entries)) == [code]
    assert overrides_of(inside, "t") == {"retention.ms": "1000"}


async def test_a_refused_resource_leaves_the_others_changed(inside: BrokerHarness) -> None:
    await inside.topic("t")
    await inside.topic("u")

    retention: list[tuple[str, str | None]] = [("retention.ms", "7")]
    codes = await altered(inside, (TOPIC, "t", retention), (TOPIC, "absent", []), (TOPIC, "u", retention))
    assert codes == [0, 3, 0]
    assert overrides_of(inside, "t") == overrides_of(inside, "u") == {"retention.ms": "7"}


async def test_a_resource_named_twice_is_refused_twice(inside: BrokerHarness) -> None:
    await inside.topic("t")
    await inside.topic("u")

    codes = await altered(
        inside, (TOPIC, "t", [("retention.ms", "7")]), (TOPIC, "u", []), (TOPIC, "t", [("retention.ms", "8")])
    )
    assert codes == [42, 0, 42]
    assert overrides_of(inside, "t") == {}


@pytest.mark.parametrize(("name", "broker_id"), [(str(NODE_ID), NODE_ID), ("", None)])
async def test_a_brokers_settings_are_replaced_and_topics_follow(
    inside: BrokerHarness, name: str, broker_id: int | None
) -> None:
    [partition] = await inside.topic("t")
    assert await altered(inside, (BROKER, name, [("log.retention.ms", "3000")])) == [0]
    assert partition.config.retention_ms == 3000

    assert await altered(inside, (BROKER, name, [("log.segment.bytes", "2000000")])) == [0]
    overrides = inside.cluster.image.overrides_of_broker(broker_id).overrides
    assert overrides == {"log.segment.bytes": "2000000"}
    assert partition.config.segment_bytes == 2_000_000
    assert partition.config.retention_ms != 3000


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("9", []),
        ("x", []),
        ("1", [("listeners", "PLAINTEXT://:1")]),
        ("1", [("log.retention.ms", "soon")]),
        ("1", [("no.such", None)]),
        ("", [("node.id", "3")]),
    ],
)
async def test_a_brokers_settings_are_refused_as_an_invalid_request(
    inside: BrokerHarness, name: str, entries: list[tuple[str, str | None]]
) -> None:
    assert await altered(inside, (BROKER, name, entries)) == [ErrorCode.INVALID_REQUEST]
    assert inside.cluster.image.broker_overrides == {}


@pytest.mark.parametrize("kind", [0, 3, 8, 16, 99, -1])
async def test_other_kinds_of_resources_are_refused(inside: BrokerHarness, kind: int) -> None:
    assert await altered(inside, (kind, "1", [])) == [ErrorCode.INVALID_REQUEST]


async def test_more_resources_than_a_request_may_change_are_all_refused(inside: BrokerHarness) -> None:
    await inside.topic("t", overrides={"retention.ms": "1000"})
    many: list[Resource] = [(TOPIC, f"t{number}", []) for number in range(10_000)]

    codes = await altered(inside, (TOPIC, "t", []), *many)
    assert set(codes) == {ErrorCode.INVALID_REQUEST}
    assert overrides_of(inside, "t") == {"retention.ms": "1000"}


async def test_who_may_not_alter_learns_nothing_and_changes_nothing(inside: BrokerHarness) -> None:
    await inside.topic("t", overrides={"retention.ms": "1000"})

    asked: list[Resource] = [(TOPIC, "t", []), (TOPIC, "absent", []), (BROKER, "1", []), (BROKER, "9", [])]
    assert await altered(inside, *asked, authorizer=deny_everything) == [29, 29, 31, 31]
    assert overrides_of(inside, "t") == {"retention.ms": "1000"}


@pytest.mark.parametrize("name", ["1", ""])
async def test_what_is_left_of_a_brokers_settings_must_hold_together(
    inside: BrokerHarness, name: str
) -> None:
    policy, interval = ("log.flush.policy", "interval"), ("log.flush.interval.ms", "100")
    assert await altered(inside, (BROKER, name, [policy, interval])) == [0]

    assert await altered(inside, (BROKER, name, [policy])) == [42]
