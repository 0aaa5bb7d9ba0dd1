"""The administration of topics and settings through confluent-kafka, as tools do it."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.integration.broker_process import BrokerProcess, eventually
from tests.integration.messages import QUIET, varied_messages
from tests.integration.test_clients_confluent import produce

SECONDS_MAX = 20.0


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, **QUIET})


@pytest.fixture
def consumer(bootstrap: str) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", **QUIET})
    yield consumer
    consumer.close()


def all_done(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(SECONDS_MAX) for future in futures.values()]


def error_of(futures: dict[Any, Any]) -> int:
    with pytest.raises(KafkaException) as refusal:
        all_done(futures)
    return int(refusal.value.args[0].code())


def configs_of(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    (found,) = all_done(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    return dict(found)


def change(admin: AdminClient, topic: str, key: str, value: str | None) -> None:
    operation = AlterConfigOpType.SET if value is not None else AlterConfigOpType.DELETE
    entry = ConfigEntry(key, value or "", incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    all_done(admin.incremental_alter_configs([resource]))


def test_a_topic_is_created_as_asked_and_described(admin: AdminClient, topic: str) -> None:
    all_done(admin.create_topics([NewTopic(topic, 4, config={"retention.ms": "1234567"})]))

    (described,) = all_done(admin.describe_topics(TopicCollection([topic])))
    assert described.name == topic
    assert [partition.id for partition in described.partitions] == [0, 1, 2, 3]
    assert {partition.leader.id for partition in described.partitions} == {1}
    assert [[node.id for node in partition.isr] for partition in described.partitions] == [[1]] * 4
    assert configs_of(admin, topic)["retention.ms"].value == "1234567"


def test_a_topic_that_exists_cannot_be_created_again(admin: AdminClient, topic: str) -> None:
    all_done(admin.create_topics([NewTopic(topic, 1)]))

    assert error_of(admin.create_topics([NewTopic(topic, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS


def test_a_bad_setting_is_refused_and_nothing_is_created(admin: AdminClient, topic: str) -> None:
    bad = NewTopic(topic, 1, config={"retention.ms": "for ever"})

    assert error_of(admin.create_topics([bad])) == KafkaError.INVALID_CONFIG
    assert topic not in admin.list_topics(timeout=SECONDS_MAX).topics


def test_more_replicas_than_brokers_are_refused(admin: AdminClient, topic: str) -> None:
    wanted = NewTopic(topic, 1, replication_factor=3)

    assert error_of(admin.create_topics([wanted])) == KafkaError.INVALID_REPLICATION_FACTOR


def test_a_topic_grows_and_the_new_partitions_take_records(
    admin: AdminClient, bootstrap: str, topic: str, consumer: Consumer
) -> None:
    all_done(admin.create_topics([NewTopic(topic, 1)]))
    produce(bootstrap, topic, {0: varied_messages(5)})

    all_done(admin.create_partitions([NewPartitions(topic, 3)]))
    produce(bootstrap, topic, {2: varied_messages(7)})

    ends = [consumer.get_watermark_offsets(TopicPartition(topic, number))[1] for number in range(3)]
    assert ends == [5, 0, 7]
    assert error_of(admin.create_partitions([NewPartitions(topic, 2)])) == KafkaError.INVALID_PARTITIONS


def test_a_deleted_topic_is_gone_and_its_disk_is_free(
    shared_broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    all_done(admin.create_topics([NewTopic(topic, 2)]))
    produce(shared_broker.bootstrap, topic, {0: varied_messages(500)})
    logs = shared_broker.data_dir / "logs"
    assert f"{topic}-0" in os.listdir(logs)

    def is_freed() -> bool:
        """Neither the folders nor what they are called while they are being removed."""
        return not any(name.startswith(topic) or name.endswith(".deleted") for name in os.listdir(logs))

    all_done(admin.delete_topics([topic]))

    assert topic not in admin.list_topics(timeout=SECONDS_MAX).topics
    eventually(is_freed)
    assert error_of(admin.delete_topics([topic])) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_created_again_under_its_name_is_empty(
    admin: AdminClient, bootstrap: str, topic: str, consumer: Consumer
) -> None:
    all_done(admin.create_topics([NewTopic(topic, 1)]))
    produce(bootstrap, topic, {0: varied_messages(5)})
    all_done(admin.delete_topics([topic]))

    all_done(admin.create_topics([NewTopic(topic, 1)]))

    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS_MAX) == (0, 0)


def test_a_setting_is_changed_and_taken_back(admin: AdminClient, topic: str) -> None:
    all_done(admin.create_topics([NewTopic(topic, 1)]))
    default = configs_of(admin, topic)["retention.ms"]
    assert default.is_default

    change(admin, topic, "retention.ms", "60000")
    changed = configs_of(admin, topic)["retention.ms"]
    change(admin, topic, "retention.ms", None)

    assert (changed.value, changed.is_default) == ("60000", False)
    assert configs_of(admin, topic)["retention.ms"].value == default.value


def test_a_changed_setting_applies_to_the_next_record(admin: AdminClient, bootstrap: str, topic: str) -> None:
    all_done(admin.create_topics([NewTopic(topic, 1)]))
    produce(bootstrap, topic, {0: varied_messages(100)})

    change(admin, topic, "max.message.bytes", "100")

    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        produce(bootstrap, topic, {0: varied_messages(100)})


def test_offsets_are_listed(admin: AdminClient, bootstrap: str, topic: str) -> None:
    all_done(admin.create_topics([NewTopic(topic, 1)]))
    produce(bootstrap, topic, {0: varied_messages(9)})
    partition = TopicPartition(topic, 0)

    def listed(name: str) -> int:
        specification = getattr(OffsetSpec, name)()
        (found,) = all_done(admin.list_offsets({partition: specification}))
        return int(found.offset)

    assert listed("earliest") == 0
    assert listed("latest") == 9
    assert listed("max_timestamp") == 8


def test_deleted_records_are_not_read_any_more(
    admin: AdminClient, bootstrap: str, topic: str, consumer: Consumer
) -> None:
    all_done(admin.create_topics([NewTopic(topic, 1)]))
    produce(bootstrap, topic, {0: varied_messages(20)})

    (deleted,) = all_done(admin.delete_records([TopicPartition(topic, 0, 12)]))

    assert deleted.low_watermark == 12
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS_MAX) == (12, 20)


def test_the_cluster_is_described_with_the_address_that_was_used(
    admin: AdminClient, shared_broker: BrokerProcess
) -> None:
    described = admin.describe_cluster().result(SECONDS_MAX)

    assert described.cluster_id
    assert described.controller.id == 1
    assert [f"{node.host}:{node.port}" for node in described.nodes] == [shared_broker.bootstrap]


def test_the_settings_of_the_broker_are_described(admin: AdminClient) -> None:
    (found,) = all_done(admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))

    assert found["num.partitions"].value == "1"
    assert found["log.dirs"].is_read_only
