"""Topic metadata, and the reasons why a partition is unavailable."""

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.cli.broker_connector import (
    BrokerClient,
    BrokerConnector,
    leaderless_text,
    reported_error,
)
from penstock.cli.command import TOPIC_NAME_RULE
from penstock.cli.output import bytes_text
from penstock.config.listeners import Address
from penstock.errors import CommandFailed, ErrorCode
from penstock.limits import BATCH_BYTES_MAX
from penstock.protocol.messages.describe_log_dirs import DESCRIBE_LOG_DIRS, DescribeLogDirsRequest
from penstock.protocol.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchTopic
from penstock.protocol.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.protocol.messages.metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.types import NO_TOPIC_ID, TopicPartition
from penstock.wire.connection_pool import AttemptFailed
from penstock.wire.list_offsets import LATEST
from penstock.wire.retry_policy import error_name, failure_of

# Errors that librdkafka handles during a fetch, for example by resetting to the log start.
_HANDLED_BY_CLIENT: Final = (
    ErrorCode.NONE,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)


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


def chosen_partitions(topic: str, existing: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the requested partitions, or all; raise CommandFailed if the topic lacks one of them."""
    for number in wanted:
        if number not in existing:
            raise CommandFailed(no_partition_text(topic, existing, number))
    return sorted(set(wanted)) or list(existing)


def find_or_create_topic(broker: BrokerConnector, name: str) -> TopicDescription:
    """Look up a topic like a producer: a broker with auto topic creation creates it."""
    with broker.client() as client:

        def attempt() -> TopicDescription:
            (topic,) = metadata_of(client, [name], create=True).topics
            if topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE:  # the topic is being created
                raise AttemptFailed(failure_of(topic.error_code))
            if topic.error_code:
                raise CommandFailed(_topic_error_text(topic, advise_creation=True))
            return _topic_state(topic)

        return client.retry(attempt, f"topic {name} cannot be used")


def _topic_error_text(topic: MetadataResponseTopic, advise_creation: bool) -> str:
    name, code = topic.name, topic.error_code
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        creation = f"Create it with `penstock topic create {name}`, or see `penstock topic list`."
        remedy = creation if advise_creation else "`penstock topic list` shows those that do."
        return f"topic {name} does not exist. {remedy}"
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        return f"{name!r} cannot be the name of a topic: {TOPIC_NAME_RULE}."
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return f"you may not use topic {name}."
    return f"topic {name} cannot be used: {error_name(code)}."


# Reasons why librdkafka reads or writes nothing: it retries these errors, and reports only a timeout


def read_failure_reason(broker: BrokerConnector, topic: str, offsets: Mapping[int, int]) -> str | None:
    """Return the error that a leader reports for a fetch at one of these offsets; None without an error.

    `offsets` is by partition. A partition without a leader is no error here, since consumers can wait: see
    `leaderless_reason`.
    """
    with broker.client() as client:
        led, _ = _by_leader(client, topic, offsets)
        for leader, state, numbers in led:
            wanted = [
                FetchPartition(number, fetch_offset=offsets[number], partition_max_bytes=1)
                for number in numbers
            ]
            # One byte, no wait and no fetch session: only the error code matters.
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1,
                session_epoch=-1,
                topics=[FetchTopic(topic, state.topic_id, wanted)],
            )
            answer = client.ask(FETCH, request, at=leader)
            for entry in (entry for found in answer.responses for entry in found.partitions):
                if entry.error_code not in _HANDLED_BY_CLIENT:
                    return (
                        f"{reported_error(entry.error_code, TopicPartition(topic, entry.partition_index))}."
                    )
    return None


def write_failure_reason(broker: BrokerConnector, topic: str, partition: int) -> str | None:
    """Return why the leader cannot store records, without a full stop; None if no reason is found.

    No batch is sent as a test, since the leader might store it.
    """
    with broker.client() as client:
        led, leaderless = _by_leader(client, topic, [partition])
        if leaderless:
            return leaderless_text(leaderless)
        for leader, _, _ in led:
            asked = ListOffsetsTopic(topic, [ListOffsetsPartition(partition, timestamp=LATEST)])
            answer = client.ask(LIST_OFFSETS, ListOffsetsRequest(replica_id=-1, topics=[asked]), at=leader)
            for entry in (entry for found in answer.topics for entry in found.partitions):
                if entry.error_code:
                    return reported_error(entry.error_code, TopicPartition(topic, partition))
            for directory in client.ask(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest([]), at=leader).results:
                if directory.error_code:
                    return "the broker's disk failed: see its log"
                # Less than one batch of maximum size fits on the disk.
                if 0 <= directory.usable_bytes < BATCH_BYTES_MAX:
                    free, total = bytes_text(directory.usable_bytes), bytes_text(directory.total_bytes)
                    return f"the broker's disk is full ({free} of {total} are free)"
    return None


def leaderless_reason(broker: BrokerConnector, topic: str, partitions: Iterable[int]) -> str | None:
    """Name the partitions without a leader, without a full stop; None if all have a leader."""
    with broker.client() as client:
        _, leaderless = _by_leader(client, topic, partitions)
    return leaderless_text(leaderless) if leaderless else None


class LedPartitions(NamedTuple):
    address: Address
    """Address of the leader."""
    topic: MetadataResponseTopic
    partitions: list[int]


def _by_leader(
    client: BrokerClient, topic: str, partitions: Iterable[int]
) -> tuple[list[LedPartitions], list[TopicPartition]]:
    """Group the partitions by leader; return these groups, and the partitions without a leader."""
    metadata = metadata_of(client, [topic])
    addresses = {node.node_id: Address(node.host, node.port) for node in metadata.brokers}
    (state,) = metadata.topics
    leaders = {entry.partition_index: entry.leader_id for entry in state.partitions}
    led: dict[int, list[int]] = {}
    leaderless = []
    for number in sorted(leaders.keys() & set(partitions)):
        if leaders[number] in addresses:
            led.setdefault(leaders[number], []).append(number)
        else:
            leaderless.append(TopicPartition(topic, number))
    return [LedPartitions(addresses[node], state, numbers) for node, numbers in led.items()], leaderless


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
