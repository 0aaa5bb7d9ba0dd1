"""Builders of requests that many scenarios use."""

from typing import Any

from penstock.protocol.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from penstock.protocol.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchTopic
from penstock.protocol.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from penstock.protocol.schema import Api
from tools.differential.steps import REPLY_S_MAX, RequestStep, ScenarioState, Topic

PRODUCE_TIMEOUT_MS = 5_000
FETCH_BYTES = 1_000_000
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4


def every_version(api: Api[Any, Any]) -> range:
    first, last = api.versions
    return range(first, last + 1)


def data_topic(name: str, partitions: int = 1, **configs: str) -> Topic:
    """A topic without retention by time: otherwise responses would depend on the clock."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    return Topic(name, partitions, {"retention.ms": "-1", **named})


def produce_request(topic: str, records: bytes | None, **fields: Any) -> ProduceRequest:
    partition = PartitionProduceData(fields.pop("partition", 0), records)
    request = ProduceRequest(
        None, -1, PRODUCE_TIMEOUT_MS, [TopicProduceData(topic, partition_data=[partition])]
    )
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def produce(name: str, topic: str, records: bytes | None, *, version: int = 9, **fields: Any) -> RequestStep:
    timeout_s = fields.pop("timeout_s", REPLY_S_MAX)
    return RequestStep(name, PRODUCE, version, produce_request(topic, records, **fields), timeout_s=timeout_s)


def fetch_request(topics: list[FetchTopic], **fields: Any) -> FetchRequest:
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=FETCH_BYTES, topics=topics)
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def fetch_partition(partition: int, offset: int, **fields: Any) -> FetchPartition:
    asked = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    for name, value in fields.items():
        setattr(asked, name, value)
    return asked


def fetch(
    name: str, topic: str, *partitions: FetchPartition, version: int = 12, **fields: Any
) -> RequestStep:
    """A Fetch by topic name, or by topic id in versions that have ids."""
    asked = list(partitions) or [fetch_partition(0, 0)]

    def message(memory: ScenarioState) -> FetchRequest:
        by_id = FetchTopic(topic_id=memory.topic_ids[topic], partitions=asked) if version >= 13 else None
        return fetch_request([by_id or FetchTopic(topic, partitions=asked)], **fields)

    return RequestStep(name, FETCH, version, message)


def overrides(name: str, topic: str, *keys: str) -> RequestStep:
    """DescribeConfigs of a topic. Brokers may return a change late."""
    resource = DescribeConfigsResource(TOPIC_RESOURCE, topic, list(keys) or None)
    return RequestStep(name, DESCRIBE_CONFIGS, 4, DescribeConfigsRequest([resource]), eventually=True)
