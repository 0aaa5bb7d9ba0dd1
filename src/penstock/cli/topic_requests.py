"""Requests about topics that must reach leaders or the controller: changes, settings, offsets.

A rejection becomes CommandFailed with the broker's own error message, which names the setting or limit that
was violated.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.cli.broker_connector import BrokerClient, BrokerConnector
from penstock.cli.main import with_full_stop
from penstock.cli.positions import PositionKind, PositionSpec
from penstock.errors import CommandFailed, ErrorCode
from penstock.protocol.messages.create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from penstock.protocol.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from penstock.protocol.messages.delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.protocol.messages.delete_topics import DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicState
from penstock.protocol.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from penstock.protocol.messages.incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.protocol.schema import Api, Request, Response
from penstock.types import TopicPartition
from penstock.wire.blocking_client import PendingResponse
from penstock.wire.cluster_session import PartitionOutcome
from penstock.wire.connection_pool import BrokerConnection
from penstock.wire.list_offsets import EARLIEST, LATEST, ListOffsetsOperation
from penstock.wire.retry_policy import error_name, failure_of

SETTINGS_ARE_LISTED: Final = "`penstock topic describe NAME --all-settings` lists the settings of a topic."

# Numbers of Kafka's protocol.
_TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4
_TOPIC_OVERRIDE: Final = 1
_SET, _DELETE = 0, 1
_MAX_TIMESTAMP: Final = -3


class TopicSetting(NamedTuple):
    value: str | None
    is_override: bool


class FoundOffset(NamedTuple):
    offset: int | None
    timestamp: int | None


# Changes


def create_topic(
    broker: BrokerConnector, name: str, partitions: int, replication_factor: int, settings: Mapping[str, str]
) -> bool:
    """Create a topic; False if the name exists already."""
    configs = [CreatableTopicConfig(key, value) for key, value in settings.items()]
    topic = CreatableTopic(name, partitions, replication_factor, configs=configs)
    request = CreateTopicsRequest([topic], _timeout_ms(broker))
    what = f"topic {name} was not created"
    with broker.client() as client:
        results = client.ask_controller(CREATE_TOPICS, request, lambda reply: reply.topics, what)
    if results[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return False
    _require_success(results, what)
    return True


def add_partitions(broker: BrokerConnector, name: str, partitions: int, *, validate_only: bool) -> None:
    topic = CreatePartitionsTopic(name, partitions, assignments=None)
    request = CreatePartitionsRequest([topic], _timeout_ms(broker), validate_only)
    _change(broker, CREATE_PARTITIONS, request, lambda reply: reply.results, f"topic {name} was not changed")


def alter_topic_configs(
    broker: BrokerConnector, name: str, changes: Mapping[str, str | None], *, validate_only: bool
) -> None:
    """Change topic configs; a value of None removes the topic's override."""
    configs = [
        AlterableConfig(key, _DELETE if value is None else _SET, value) for key, value in changes.items()
    ]
    resource = AlterConfigsResource(_TOPIC_RESOURCE, name, configs)
    request = IncrementalAlterConfigsRequest([resource], validate_only)
    what = f"topic {name} was not changed"
    _change(broker, INCREMENTAL_ALTER_CONFIGS, request, lambda reply: reply.responses, what)


def delete_topics(broker: BrokerConnector, names: Sequence[str]) -> None:
    request = DeleteTopicsRequest(
        [DeleteTopicState(name) for name in names], list(names), _timeout_ms(broker)
    )
    _change(broker, DELETE_TOPICS, request, lambda reply: reply.responses, "not every topic was deleted")


def _change(
    broker: BrokerConnector,
    api: Api[Request, Response],
    message: Request,
    results_of: Callable[[Response], Sequence[Any]],
    what: str,
) -> None:
    with broker.client() as client:
        _require_success(client.ask_controller(api, message, results_of, what), what)


def delete_records(
    broker: BrokerConnector, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Delete records up to the given offsets, and return the new log start offset of each partition."""
    what = f"topic {_topics(before)} was not truncated everywhere"
    with broker.client() as client:
        return client.run_on_leaders(_DeleteRecordsOperation(_timeout_ms(broker)), before, what)


class _DeleteRecordsOperation(NamedTuple):
    timeout_ms: int

    def send(
        self, broker: BrokerConnection, work: Mapping[TopicPartition, int]
    ) -> PendingResponse[DeleteRecordsResponse]:
        topics: dict[str, DeleteRecordsTopic] = {}
        for (name, number), offset in work.items():
            topic = topics.setdefault(name, DeleteRecordsTopic(name))
            topic.partitions.append(DeleteRecordsPartition(number, offset))
        return broker.send(DELETE_RECORDS, DeleteRecordsRequest(list(topics.values()), self.timeout_ms))

    def outcomes(self, answer: DeleteRecordsResponse) -> Iterator[PartitionOutcome[int]]:
        for topic in answer.topics:
            for entry in topic.partitions:
                failure = failure_of(entry.error_code) if entry.error_code else None
                yield TopicPartition(topic.name, entry.partition_index), failure, entry.low_watermark


# Reading


def topic_settings(broker: BrokerConnector, names: Sequence[str]) -> dict[str, dict[str, TopicSetting]]:
    # No list of keys requests all of them.
    resources = [DescribeConfigsResource(_TOPIC_RESOURCE, name, None) for name in names]
    with broker.client() as client:
        results = client.ask(DESCRIBE_CONFIGS, DescribeConfigsRequest(resources)).results
    _require_success(results, "the settings cannot be read")
    return {
        result.resource_name: {
            entry.name: TopicSetting(entry.value, entry.config_source == _TOPIC_OVERRIDE)
            for entry in sorted(result.configs, key=lambda entry: entry.name)
        }
        for result in results
    }


class AutoCreation(NamedTuple):
    """What a broker does when a client writes to a topic that does not exist."""

    is_enabled: bool
    partitions: int | None
    """Number of partitions of the new topic; None if the broker does not say."""


def auto_creation(broker: BrokerConnector) -> AutoCreation:
    """Ask a broker. One that does not say is taken to create topics, as brokers do by default."""
    enabled, partitions = "auto.create.topics.enable", "num.partitions"
    with broker.client() as client:
        node, address = next(iter(client.brokers().items()))
        resource = DescribeConfigsResource(_BROKER_RESOURCE, str(node), [enabled, partitions])
        (answer,) = client.ask(DESCRIBE_CONFIGS, DescribeConfigsRequest([resource]), at=address).results
    values = {entry.name: entry.value for entry in answer.configs}
    count = values.get(partitions)
    return AutoCreation(values.get(enabled) != "false", int(count) if count else None)


def find_offsets(
    broker: BrokerConnector, partitions: Iterable[TopicPartition], position: PositionSpec
) -> dict[TopicPartition, FoundOffset]:
    with broker.client() as client:
        return _find_offsets(client, partitions, _timestamp_of(position))


def log_bounds(
    broker: BrokerConnector, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the log start and end offset of each partition."""
    with broker.client() as client:
        starts = _find_offsets(client, partitions, EARLIEST)
        ends = _find_offsets(client, partitions, LATEST)
    return {each: (starts[each].offset or 0, ends[each].offset or 0) for each in partitions}


def _find_offsets(
    client: BrokerClient, partitions: Iterable[TopicPartition], timestamp: int
) -> dict[TopicPartition, FoundOffset]:
    work = dict.fromkeys(partitions, timestamp)
    what = f"the offsets of topic {_topics(work)} cannot be read"
    found = client.run_on_leaders(ListOffsetsOperation(read_committed=False), work, what)
    return {
        partition: FoundOffset(offset if offset >= 0 else None, timestamp if timestamp >= 0 else None)
        for partition, (offset, timestamp) in found.items()
    }


def _topics(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(dict.fromkeys(partition.topic for partition in partitions))


def _timestamp_of(position: PositionSpec) -> int:
    """Return the timestamp that requests this position in Kafka's protocol."""
    assert position.kind is not PositionKind.OFFSET, "an offset need not be asked for"
    named = {
        PositionKind.EARLIEST: EARLIEST,
        PositionKind.LATEST: LATEST,
        PositionKind.MAX_TIMESTAMP: _MAX_TIMESTAMP,
    }
    return named.get(position.kind, position.number)


# Results


def _timeout_ms(broker: BrokerConnector) -> int:
    return int(broker.timeout_s * 1000)


def _require_success(results: Sequence[Any], what: str) -> None:
    problems = [_problem(result, what) for result in results if result.error_code]
    if problems:
        raise CommandFailed("\n".join(dict.fromkeys(problems)))


def _problem(result: Any, what: str) -> str:
    said = result.error_message or error_name(result.error_code)
    sentence = with_full_stop(f"{what}: {said}")
    is_unknown = result.error_code == ErrorCode.INVALID_CONFIG and "unknown" in said.lower()
    return f"{sentence} {SETTINGS_ARE_LISTED}" if is_unknown else sentence
