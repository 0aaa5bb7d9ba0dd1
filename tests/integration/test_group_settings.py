"""Settings of a group, as an admin client sets them and members feel them; they survive a restart."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from penstock.protocol.messages.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
)
from penstock.protocol.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
)
from penstock.testing import broker
from tests.integration.broker_process import eventually
from tests.integration.group_client import find_coordinator
from tests.integration.messages import QUIET
from tests.integration.raw_client import RawClient, connected

SECONDS_MAX = 20.0
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
LIMITS = {"group.consumer.min.session.timeout.ms": 1_000}


def admin_of(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, **QUIET})


def alter(admin: AdminClient, group: str, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(SECONDS_MAX)


def shown(admin: AdminClient, group: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.GROUP, group)
    found: Any = admin.describe_configs([resource])[resource].result(SECONDS_MAX)
    return {name: entry.value for name, entry in found.items()}


def report(client: RawClient, group: str, epoch: int) -> Any:
    request = ConsumerGroupHeartbeatRequest(group, "m", epoch)
    if not epoch:
        request.rebalance_timeout_ms = 60_000
        request.subscribed_topic_names, request.topic_partitions = ["t"], []
    return client.ask(CONSUMER_GROUP_HEARTBEAT, 1, request)


def test_an_admin_sets_what_members_of_one_group_obey_also_after_a_restart(tmp_path: Path) -> None:
    with broker(tmp_path / "data", **LIMITS) as running, connected(running.bootstrap) as client:
        admin = admin_of(running.bootstrap)
        client.create_topic("t")
        find_coordinator(client, "own")
        joined = report(client, "own", 0)
        alter(admin, "own", consumer_heartbeat_interval_ms="1234", consumer_session_timeout_ms="2000")
        assert shown(admin, "own") == {HEARTBEAT: "1234", SESSION: "2000"}
        assert report(client, "own", joined.member_epoch).heartbeat_interval_ms == 1234
        report(client, "another", 0)
        assert report(client, "another", 1).heartbeat_interval_ms == 1000
    with broker(tmp_path / "data", **LIMITS) as running, connected(running.bootstrap) as client:
        admin = admin_of(running.bootstrap)
        assert shown(admin, "own") == {HEARTBEAT: "1234", SESSION: "2000"}
        find_coordinator(client, "own")
        assert report(client, "own", 1).heartbeat_interval_ms == 1234

        def is_thrown_out() -> bool:
            """By the two seconds of its own; the broker's are forty-five."""
            described = client.ask(CONSUMER_GROUP_DESCRIBE, 1, ConsumerGroupDescribeRequest(["own"]))
            return described.groups[0].group_state == "Empty"

        eventually(is_thrown_out)


def test_what_the_broker_does_not_allow_is_said_in_words() -> None:
    with broker() as running, pytest.raises(KafkaException, match=r"group\.consumer\.min\.session"):
        alter(admin_of(running.bootstrap), "own", consumer_session_timeout_ms="1000")
