"""What only confluent-kafka shows of a broker, beside what the suite asks of every client."""

import os
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from penstock.errors import ErrorCode
from tests.integration.broker_process import BrokerProcess, eventually
from tests.integration.clients.client import SECONDS_MAX, Refused
from tests.integration.clients.confluent_client import (
    ConfluentAdministration,
    ConfluentClient,
    result_of,
)
from tests.integration.messages import varied_messages


@pytest.fixture
def client(bootstrap: str) -> ConfluentClient:
    return ConfluentClient(bootstrap)


@pytest.fixture
def admin(client: ConfluentClient) -> AdminClient:
    return AdminClient(client.settings)


def error_of(futures: dict[Any, Any]) -> int:
    with pytest.raises(Refused) as refusal:
        result_of(futures)
    return refusal.value.code


def test_a_topic_is_described_with_its_leaders_and_replicas(
    client: ConfluentClient, admin: AdminClient, topic: str
) -> None:
    client.create_topic(topic, 4)

    described = result_of(admin.describe_topics(TopicCollection([topic])))

    assert described.name == topic
    assert [partition.id for partition in described.partitions] == [0, 1, 2, 3]
    assert {partition.leader.id for partition in described.partitions} == {1}
    assert [[node.id for node in partition.isr] for partition in described.partitions] == [[1]] * 4


def test_a_setting_tells_whether_it_is_the_default(
    client: ConfluentClient, admin: AdminClient, topic: str
) -> None:
    client.create_topic(topic, 1)
    settings = ConfluentAdministration(admin)
    assert settings.entry(topic, "retention.ms").is_default

    settings.alter(topic, "retention.ms", "60000")

    assert not settings.entry(topic, "retention.ms").is_default


def test_what_cannot_be_created_is_refused_and_nothing_is_created(admin: AdminClient, topic: str) -> None:
    bad = NewTopic(topic, 1, config={"retention.ms": "for ever"})
    many = NewTopic(topic, 1, replication_factor=3)

    assert error_of(admin.create_topics([bad])) == KafkaError.INVALID_CONFIG
    assert error_of(admin.create_topics([many])) == KafkaError.INVALID_REPLICATION_FACTOR
    assert topic not in admin.list_topics(timeout=SECONDS_MAX).topics


def test_the_disk_of_a_deleted_topic_is_free(
    client: ConfluentClient, admin: AdminClient, shared_broker: BrokerProcess, topic: str
) -> None:
    client.create_topic(topic, 2)
    client.produce(topic, {0: varied_messages(500)})
    logs = shared_broker.data_dir / "logs"
    assert f"{topic}-0" in os.listdir(logs)

    def is_freed() -> bool:
        """Neither the folders nor what they are called while they are being removed."""
        return not any(name.startswith(topic) or name.endswith(".deleted") for name in os.listdir(logs))

    result_of(admin.delete_topics([topic]))

    eventually(is_freed)


def test_a_changed_setting_applies_to_the_next_record(
    client: ConfluentClient, admin: AdminClient, topic: str
) -> None:
    client.create_topic(topic, 1)
    client.produce(topic, {0: varied_messages(100)})

    ConfluentAdministration(admin).alter(topic, "max.message.bytes", "100")

    with pytest.raises(Refused) as refusal:
        client.produce(topic, {0: varied_messages(100)})
    assert refusal.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_offsets_are_listed(client: ConfluentClient, admin: AdminClient, topic: str) -> None:
    client.create_topic(topic, 1)
    client.produce(topic, {0: varied_messages(9)})

    def listed(name: str) -> int:
        specification = getattr(OffsetSpec, name)()
        return int(result_of(admin.list_offsets({TopicPartition(topic, 0): specification})).offset)

    assert listed("earliest") == 0
    assert listed("latest") == 9
    assert listed("max_timestamp") == 8


def test_the_cluster_is_described_with_the_address_that_was_used(
    admin: AdminClient, shared_broker: BrokerProcess
) -> None:
    described = admin.describe_cluster().result(SECONDS_MAX)

    assert described.cluster_id
    assert described.controller.id == 1
    assert [f"{node.host}:{node.port}" for node in described.nodes] == [shared_broker.bootstrap]


def test_the_settings_of_the_broker_are_described(admin: AdminClient) -> None:
    found = result_of(admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))

    assert found["num.partitions"].value == "1"
    assert found["log.dirs"].is_read_only


def test_a_topic_name_that_no_file_system_should_see_is_refused(bootstrap: str) -> None:
    problems: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 2_000})
    try:
        producer.produce("../etc/passwd", b"x", on_delivery=lambda error, _: problems.append(error))
        producer.flush(SECONDS_MAX)
    except KafkaException as refusal:
        problems.append(refusal.args[0])
    assert problems
    assert problems[0] is not None
