"""What any broker can tell of its cluster, asked over the wire client: the topics and their state.

What must go to a leader or to the controller is in admin.py.
"""

import time
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.cli.connection import Broker, BrokerClient
from penstock.errors import CommandFailed, ErrorCode
from penstock.protocol.messages.metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.types import NO_TOPIC_ID

# What a broker says of a topic that it is just making.
_NOT_YET: Final = (ErrorCode.LEADER_NOT_AVAILABLE,)
_NOT_YET_PAUSE_S: Final = 0.05


class PartitionState(NamedTuple):
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]


class TopicState(NamedTuple):
    name: str
    id: str | None
    is_internal: bool
    partitions: list[PartitionState]

    @property
    def numbers(self) -> list[int]:
        return [partition.partition for partition in self.partitions]

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


def list_topics(client: BrokerClient) -> list[TopicState]:
    answer = client.ask(METADATA, MetadataRequest(topics=None, allow_auto_topic_creation=False))
    return sorted(map(_topic_state, answer.topics))


def metadata_of(client: BrokerClient, names: Sequence[str], *, create: bool = False) -> MetadataResponse:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return client.ask(METADATA, MetadataRequest(topics=topics, allow_auto_topic_creation=create))


def find_topics(broker: Broker, names: Sequence[str]) -> list[TopicState]:
    """All of them, or CommandFailed that names the missing ones."""
    with broker.client() as client:
        answer = metadata_of(client, names)
    missing = [topic for topic in answer.topics if topic.error_code]
    if missing:
        raise CommandFailed("\n".join(_why_not(topic) for topic in missing))
    by_name = {topic.name: _topic_state(topic) for topic in answer.topics}
    return [by_name[name] for name in names]


def find_topic(broker: Broker, name: str) -> TopicState:
    (found,) = find_topics(broker, [name])
    return found


def find_or_make_topic(broker: Broker, name: str) -> TopicState:
    """As a producer does: a broker that makes topics when they are asked for makes this one."""
    deadline = time.monotonic() + broker.timeout_s
    with broker.client() as client:
        while True:
            (topic,) = metadata_of(client, [name], create=True).topics
            if topic.error_code == ErrorCode.NONE:
                return _topic_state(topic)
            if topic.error_code not in _NOT_YET or time.monotonic() > deadline:
                raise CommandFailed(_why_not(topic))
            time.sleep(_NOT_YET_PAUSE_S)


def _why_not(topic: MetadataResponseTopic) -> str:
    name, code = topic.name, topic.error_code
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        remedy = f"Create it with `penstock topic create {name}`, or see `penstock topic list`."
        return f"topic {name} does not exist. {remedy}"
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        return (
            f"{name!r} cannot be the name of a topic. "
            "Use up to 249 letters, digits, dots, dashes and underscores, and not . or .. alone."
        )
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return f"you may not use topic {name}."
    return f"topic {name} cannot be used: {error_name(code)}."


def error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _topic_state(topic: MetadataResponseTopic) -> TopicState:
    partitions = [
        PartitionState(
            partition.partition_index,
            partition.leader_id if partition.leader_id >= 0 else None,
            partition.leader_epoch,
            list(partition.replica_nodes),
            list(partition.isr_nodes),
        )
        for partition in topic.partitions
    ]
    identity = None if topic.topic_id == NO_TOPIC_ID else _id_text(topic.topic_id)
    return TopicState(topic.name or "", identity, topic.is_internal, sorted(partitions))


def _id_text(identity: bytes) -> str:
    return urlsafe_b64encode(identity).decode().rstrip("=")
