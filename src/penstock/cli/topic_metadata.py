"""Topics as users see them: their metadata, and the sentence for a topic that cannot be used."""

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import NamedTuple

from penstock.cli.broker_connector import BrokerClient, BrokerConnector
from penstock.cli.command import TOPIC_NAME_RULE
from penstock.cli.output import counted
from penstock.errors import CommandFailed, ErrorCode
from penstock.protocol.messages.metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.types import NO_TOPIC_ID, TopicPartition
from penstock.wire.connection_pool import AttemptFailed
from penstock.wire.retry_policy import error_name, failure_of


class PartitionDescription(NamedTuple):
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]


class TopicDescription(NamedTuple):
    name: str
    id: str | None
    is_internal: bool
    partitions: list[PartitionDescription]

    @property
    def names(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in self.numbers]

    @property
    def numbers(self) -> list[int]:
        return [partition.partition for partition in self.partitions]

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


def list_topics(client: BrokerClient) -> list[TopicDescription]:
    answer = client.ask(METADATA, MetadataRequest(topics=None, allow_auto_topic_creation=False))
    return sorted(map(_topic_state, answer.topics))


def metadata_of(client: BrokerClient, names: Sequence[str], *, create: bool = False) -> MetadataResponse:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return client.ask(METADATA, MetadataRequest(topics=topics, allow_auto_topic_creation=create))


def find_topics(
    broker: BrokerConnector, names: Sequence[str], *, advise_creation: bool = False
) -> list[TopicDescription]:
    """Return the topics; raise CommandFailed with the names of missing ones."""
    with broker.client() as client:
        answer = metadata_of(client, names)
    missing = [topic for topic in answer.topics if topic.error_code]
    if missing:
        raise CommandFailed("\n".join(_topic_error_text(topic, advise_creation) for topic in missing))
    by_name = {topic.name: _topic_state(topic) for topic in answer.topics}
    return [by_name[name] for name in names]


def find_topic(broker: BrokerConnector, name: str, *, advise_creation: bool = True) -> TopicDescription:
    (found,) = find_topics(broker, [name], advise_creation=advise_creation)
    return found


def no_partition_text(topic: str, existing: Sequence[int], number: int) -> str:
    has = "only partition 0" if len(existing) == 1 else f"partitions 0 to {existing[-1]}"
    return f"topic {topic} has no partition {number}: it has {has}."


def chosen_partitions(topic: TopicDescription, wanted: Sequence[int]) -> list[TopicPartition]:
    """Return the requested partitions, or all; raise CommandFailed if the topic lacks one of them."""
    for number in wanted:
        if number not in topic.numbers:
            raise CommandFailed(no_partition_text(topic.name, topic.numbers, number))
    return [TopicPartition(topic.name, number) for number in sorted(set(wanted))] or topic.names


def find_topic_to_write(broker: BrokerConnector, name: str) -> TopicDescription | None:
    """Look up a topic like a producer, but create nothing; None for a topic that does not exist."""
    with broker.client() as client:
        return _topic_to_write(client, name, create=False)


def create_by_writing(broker: BrokerConnector, name: str) -> TopicDescription:
    """Look up a topic like a producer: a broker with auto topic creation creates it."""
    with broker.client() as client:
        topic = _topic_to_write(client, name, create=True)
    if topic is None:
        raise CommandFailed(missing_topic_text(name))
    return topic


def _topic_to_write(client: BrokerClient, name: str, *, create: bool) -> TopicDescription | None:
    def attempt() -> TopicDescription | None:
        (topic,) = metadata_of(client, [name], create=create).topics
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        if topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE:  # the topic is being created
            raise AttemptFailed(failure_of(topic.error_code))
        if topic.error_code:
            raise CommandFailed(_topic_error_text(topic, advise_creation=True))
        return _topic_state(topic)

    return client.retry(attempt, f"topic {name} cannot be used")


def size_text(topic: TopicDescription) -> str:
    partitions = counted(len(topic.partitions), "partition")
    return f"{partitions}, replication factor {topic.replication_factor}"


def missing_topic_text(name: str, *, advise_creation: bool = True) -> str:
    creation = f"Create it with `penstock topic create {name}`, or see `penstock topic list`."
    remedy = creation if advise_creation else "`penstock topic list` shows those that do."
    return f"topic {name} does not exist. {remedy}"


def _topic_error_text(topic: MetadataResponseTopic, advise_creation: bool) -> str:
    name, code = topic.name or "", topic.error_code
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return missing_topic_text(name, advise_creation=advise_creation)
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        return f"{name!r} cannot be the name of a topic: {TOPIC_NAME_RULE}."
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return f"you may not use topic {name}."
    return f"topic {name} cannot be used: {error_name(code)}."


def _topic_state(topic: MetadataResponseTopic) -> TopicDescription:
    partitions = [
        PartitionDescription(
            partition.partition_index,
            partition.leader_id if partition.leader_id >= 0 else None,
            partition.leader_epoch,
            list(partition.replica_nodes),
            list(partition.isr_nodes),
        )
        for partition in topic.partitions
    ]
    identity = None if topic.topic_id == NO_TOPIC_ID else _id_text(topic.topic_id)
    return TopicDescription(topic.name or "", identity, topic.is_internal, sorted(partitions))


def _id_text(identity: bytes) -> str:
    return urlsafe_b64encode(identity).decode().rstrip("=")
