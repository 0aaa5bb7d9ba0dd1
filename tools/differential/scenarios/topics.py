"""DeleteTopics and CreatePartitions."""

from typing import Any

from penstock.protocol.messages.create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from penstock.protocol.messages.delete_topics import DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicState
from penstock.protocol.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from penstock.types import TopicId
from tools.differential.replies import UNKNOWN_TOPIC_ID
from tools.differential.scenarios.asking import every_version
from tools.differential.steps import RequestStep, Scenario, ScenarioState, Topic

_TIMEOUT_MS = 10_000
_UNKNOWN = TopicId(UNKNOWN_TOPIC_ID)
_GROWING = "growing"


def _delete_names(name: str, version: int, *topics: str, timeout_ms: int = _TIMEOUT_MS) -> RequestStep:
    if version < 6:
        asked = DeleteTopicsRequest(topic_names=list(topics), timeout_ms=timeout_ms)
    else:
        asked = DeleteTopicsRequest([DeleteTopicState(topic) for topic in topics], timeout_ms=timeout_ms)
    return RequestStep(name, DELETE_TOPICS, version, asked)


def _delete(name: str, *states: DeleteTopicState) -> RequestStep:
    return RequestStep(name, DELETE_TOPICS, 6, DeleteTopicsRequest(list(states), timeout_ms=_TIMEOUT_MS))


def _delete_by_id(
    name: str, topic: str, *, named: str | None = None, and_by_name: bool = False
) -> RequestStep:
    def message(memory: ScenarioState) -> DeleteTopicsRequest:
        states = [DeleteTopicState(named, memory.topic_ids[topic])]
        return DeleteTopicsRequest(
            [*([DeleteTopicState(topic)] if and_by_name else []), *states], timeout_ms=_TIMEOUT_MS
        )

    return RequestStep(name, DELETE_TOPICS, 6, message)


def _is_there(name: str, topic: str) -> RequestStep:
    asked = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    return RequestStep(name, METADATA, 9, asked, eventually=True)


def _grow(name: str, count: int, *, topic: str = _GROWING, version: int = 3, **fields: Any) -> RequestStep:
    assigned = fields.pop("assigned", None)
    places = None if assigned is None else [CreatePartitionsAssignment(brokers) for brokers in assigned]
    options = {"timeout_ms": _TIMEOUT_MS, **fields}
    asked = CreatePartitionsRequest([CreatePartitionsTopic(topic, count, places)], **options)
    return RequestStep(name, CREATE_PARTITIONS, version, asked)


_TO_DELETE = tuple(f"deleted-v{version}" for version in every_version(DELETE_TOPICS))

SCENARIOS = (
    Scenario(
        "delete-topics",
        (
            *(_delete_names(f"v{v}", v, f"deleted-v{v}") for v in every_version(DELETE_TOPICS)),
            *(
                _delete_names(f"v{v} missing", v, "deleted-missing", "bad name", "")
                for v in every_version(DELETE_TOPICS)
            ),
            _is_there("gone", "deleted-v1"),
            _delete_by_id("by id", "deleted-by-id"),
            _delete("by unknown id", DeleteTopicState(None, _UNKNOWN)),
            _delete("unknown id twice", DeleteTopicState(None, _UNKNOWN), DeleteTopicState(None, _UNKNOWN)),
            _delete("by neither", DeleteTopicState(None)),
            _delete_by_id("by both", "deleted-kept", named="deleted-kept"),
            _delete_by_id("by name and by id", "deleted-kept", and_by_name=True),
            _delete_names("twice", 6, "deleted-kept", "deleted-kept"),
            _delete_names("twice v5", 5, "deleted-kept", "deleted-kept"),
            _delete_names("missing twice", 5, "deleted-missing", "deleted-missing"),
            _delete_names("timeout 0", 5, "deleted-kept", timeout_ms=0),
            _is_there("still there", "deleted-kept"),
            _delete_names("nothing", 6),
        ),
        tuple(Topic(name) for name in (*_TO_DELETE, "deleted-by-id", "deleted-kept")),
    ),
    Scenario(
        "create-partitions",
        (
            *(_grow(f"v{v}", 3 + v, version=v) for v in every_version(CREATE_PARTITIONS)),
            *(_grow(f"v{v} not more", 1, version=v) for v in every_version(CREATE_PARTITIONS)),
            *(_grow(f"count {count}", count) for count in (6, 0, -1)),
            _grow("only validated", 9, validate_only=True),
            _grow("missing topic", 3, topic="growing-missing"),
            _grow("invalid topic", 3, topic="bad name"),
            _grow("too few assignments", 8, assigned=[[1]]),
            _grow("too many assignments", 7, assigned=[[1], [1]]),
            _grow("no assignments", 7, assigned=[]),
            _grow("unknown broker", 7, assigned=[[9]]),
            _grow("same broker twice", 7, assigned=[[1, 1]]),
            _grow("nobody", 7, assigned=[[]]),
            _grow("assigned", 7, assigned=[[1]]),
            _grow("timeout 0", 8, timeout_ms=0),
            RequestStep(
                "twice",
                CREATE_PARTITIONS,
                3,
                CreatePartitionsRequest(
                    [
                        CreatePartitionsTopic(_GROWING, 9, None),
                        CreatePartitionsTopic(_GROWING, 10, None),
                        CreatePartitionsTopic("growing-missing", 2, None),
                    ],
                    _TIMEOUT_MS,
                ),
            ),
            RequestStep("nothing", CREATE_PARTITIONS, 3, CreatePartitionsRequest([], _TIMEOUT_MS)),
            _is_there("in the end", _GROWING),
        ),
        (Topic(_GROWING, 2),),
    ),
)
