"""DescribeConfigs, ListConfigResources, DescribeLogDirs, DescribeTopicPartitions, DescribeProducers."""

from penstock.protocol.messages import describe_producers, describe_topic_partitions
from penstock.protocol.messages.alter_replica_log_dirs import (
    ALTER_REPLICA_LOG_DIRS,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from penstock.protocol.messages.describe_acls import DESCRIBE_ACLS, DescribeAclsRequest
from penstock.protocol.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from penstock.protocol.messages.describe_log_dirs import (
    DESCRIBE_LOG_DIRS,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from penstock.protocol.messages.describe_producers import DESCRIBE_PRODUCERS, DescribeProducersRequest
from penstock.protocol.messages.describe_topic_partitions import (
    DESCRIBE_TOPIC_PARTITIONS,
    Cursor,
    DescribeTopicPartitionsRequest,
)
from penstock.protocol.messages.list_config_resources import (
    LIST_CONFIG_RESOURCES,
    ListConfigResourcesRequest,
)
from tools.differential.batches import batch, sequenced
from tools.differential.scenarios.asking import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    data_topic,
    every_version,
    produce,
)
from tools.differential.steps import RequestStep, Scenario, ScenarioState, Topic

_CONFIGURED = "described"
_OWN = "<own>"
_DIRECTORIES = "results"
_LOGGED = "logged"
_PAGED = ("paged-1", "paged-2")
_KEYS = ("retention.ms", "cleanup.policy", "nonsense")
_GROUP_RESOURCE = 32
_UNKNOWN_RESOURCES = (0, 3, 99)


def _configs(name: str, kind: int, of: str, *keys: str, version: int = 4, **fields: bool) -> RequestStep:
    request = DescribeConfigsRequest([DescribeConfigsResource(kind, of, list(keys) or None)], **fields)
    return RequestStep(name, DESCRIBE_CONFIGS, version, request, eventually=True)


def _directories(name: str, topic: str, *partitions: int, version: int = 4) -> RequestStep:
    asked = DescribeLogDirsRequest([DescribableLogDirTopic(topic, list(partitions))])
    return RequestStep(name, DESCRIBE_LOG_DIRS, version, asked)


def _moved(name: str, *asked: tuple[str, str, list[int]], version: int = 2) -> RequestStep:
    """AlterReplicaLogDirs of replicas to a directory; `_OWN` is the broker's own directory."""

    def message(memory: ScenarioState) -> AlterReplicaLogDirsRequest:
        own = memory.saved[_DIRECTORIES][0].log_dir
        return AlterReplicaLogDirsRequest(
            [
                AlterReplicaLogDir(own if path == _OWN else path, [AlterReplicaLogDirTopic(topic, indexes)])
                for path, topic, indexes in asked
            ]
        )

    return RequestStep(name, ALTER_REPLICA_LOG_DIRS, version, message)


def _page(name: str, *topics: str, limit: int = 2000, after: tuple[str, int] | None = None) -> RequestStep:
    wanted = [describe_topic_partitions.TopicRequest(topic) for topic in topics]
    cursor = Cursor(*after) if after else None
    return RequestStep(
        name, DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest(wanted, limit, cursor)
    )


def _producers(name: str, *topics: tuple[str, list[int]]) -> RequestStep:
    wanted = [describe_producers.TopicRequest(*topic) for topic in topics]
    return RequestStep(name, DESCRIBE_PRODUCERS, 0, DescribeProducersRequest(wanted))


SCENARIOS = (
    Scenario(
        "describe-configs",
        (
            *(
                _configs(f"v{v}", TOPIC_RESOURCE, _CONFIGURED, *_KEYS, version=v, include_synonyms=True)
                for v in every_version(DESCRIBE_CONFIGS)
            ),
            *(
                _configs(f"v{v} missing", TOPIC_RESOURCE, "described-missing", version=v)
                for v in every_version(DESCRIBE_CONFIGS)
            ),
            _configs(
                "everything", TOPIC_RESOURCE, _CONFIGURED, include_synonyms=True, include_documentation=True
            ),
            _configs("without synonyms", TOPIC_RESOURCE, _CONFIGURED, *_KEYS),
            _configs("key twice", TOPIC_RESOURCE, _CONFIGURED, "retention.ms", "retention.ms"),
            RequestStep(
                "no keys",
                DESCRIBE_CONFIGS,
                4,
                DescribeConfigsRequest([DescribeConfigsResource(TOPIC_RESOURCE, _CONFIGURED, [])]),
                eventually=True,
            ),
            RequestStep(
                "twice",
                DESCRIBE_CONFIGS,
                4,
                DescribeConfigsRequest(
                    [DescribeConfigsResource(TOPIC_RESOURCE, _CONFIGURED, ["retention.ms"])] * 2
                ),
                eventually=True,
            ),
            _configs("invalid topic", TOPIC_RESOURCE, "bad name"),
            _configs("empty topic", TOPIC_RESOURCE, ""),
            *(_configs(f"resource {kind}", kind, "x") for kind in _UNKNOWN_RESOURCES),
            _configs("group without a name", _GROUP_RESOURCE, ""),
            _configs("broker", BROKER_RESOURCE, "1", include_synonyms=True, include_documentation=True),
            _configs("broker, some", BROKER_RESOURCE, "1", "log.retention.ms", "num.partitions", "nonsense"),
            _configs("all brokers", BROKER_RESOURCE, ""),
            _configs("another broker", BROKER_RESOURCE, "9"),
            _configs("not a broker", BROKER_RESOURCE, "x"),
        ),
        (Topic(_CONFIGURED, 1, {"retention.ms": "1000", "cleanup.policy": "compact,delete"}),),
    ),
    Scenario(
        "list-config-resources",
        (
            RequestStep("v0", LIST_CONFIG_RESOURCES, 0, ListConfigResourcesRequest()),
            *(
                RequestStep(f"type {kind}", LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest([kind]))
                for kind in (4, 8, 16, 32, 0, 3, 99)
            ),
            RequestStep(
                "a known and an unknown type", LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest([4, 99])
            ),
            RequestStep("the same type twice", LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest([4, 4])),
        ),
    ),
    Scenario(
        "describe-log-dirs",
        (
            produce("a batch", _LOGGED, batch(b"a", b"b")),
            *(_directories(f"v{v}", _LOGGED, 0, 1, version=v) for v in every_version(DESCRIBE_LOG_DIRS)),
            _directories("missing topic", "logged-missing", 0),
            _directories("missing partition", _LOGGED, 0, 9),
            _directories("no partitions", _LOGGED),
            RequestStep("no topics", DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest([])),
        ),
        (data_topic(_LOGGED, 2),),
    ),
    Scenario(
        "alter-replica-log-dirs",
        (
            RequestStep("directories", DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest([]), saves=_DIRECTORIES),
            *(
                _moved(f"v{v} its own", (_OWN, "moved", [0, 1]), version=v)
                for v in every_version(ALTER_REPLICA_LOG_DIRS)
            ),
            _moved("elsewhere", ("/nowhere", "moved", [0])),
            _moved("not a path", ("nowhere", "moved", [0])),
            _moved("empty path", ("", "moved", [0])),
            _moved("missing partition", (_OWN, "moved", [0, 9, -1])),
            _moved("missing topic", (_OWN, "moved-missing", [0])),
            _moved("missing topic elsewhere", ("/nowhere", "moved-missing", [0])),
            _moved("invalid topic", (_OWN, "bad name", [0])),
            _moved("no partitions", (_OWN, "moved", [])),
            _moved("partition twice", (_OWN, "moved", [0, 0])),
            _moved("topic twice", (_OWN, "moved", [0]), (_OWN, "moved", [1])),
            _moved("here and elsewhere", (_OWN, "moved", [0]), ("/nowhere", "moved", [1])),
            _moved("one in both", (_OWN, "moved", [0]), ("/nowhere", "moved", [0])),
            _moved("nothing"),
        ),
        (Topic("moved", 2),),
    ),
    Scenario(
        "describe-acls",
        (
            *(
                RequestStep(f"v{v}", DESCRIBE_ACLS, v, DescribeAclsRequest(1, None, 3, None, None, 1, 1))
                for v in every_version(DESCRIBE_ACLS)
            ),
            RequestStep("of a topic", DESCRIBE_ACLS, 3, DescribeAclsRequest(2, "t", 1, "User:u", "*", 3, 3)),
        ),
    ),
    Scenario(
        "describe-topic-partitions",
        (
            _page("one", _PAGED[0]),
            _page("two", *reversed(_PAGED)),
            _page("missing", _PAGED[0], "paged-missing"),
            _page("same twice", _PAGED[0], _PAGED[0]),
            _page("invalid", _PAGED[0], "bad name"),
            _page("empty name", _PAGED[0], ""),
            *(_page(f"limit {limit}", *_PAGED, limit=limit) for limit in (-1, 0, 1, 2, 3, 4, 6)),
            *(_page(f"from {index}", *_PAGED, limit=2, after=(_PAGED[0], index)) for index in (1, 2, 3, 99)),
            _page("from -1", *_PAGED, after=(_PAGED[0], -1)),
            _page("from the second", *_PAGED, limit=2, after=(_PAGED[1], 0)),
            *(_page(f"from {name!r}", *_PAGED, after=(name, 0)) for name in ("a", "paged-1a", "zz")),
        ),
        tuple(Topic(name, 3) for name in _PAGED),
    ),
    Scenario(
        "describe-producers",
        (
            produce("one", "producers", sequenced(9, 1, 0)),
            produce("two", "producers", sequenced(5, 0, 0)),
            produce("two again", "producers", sequenced(5, 0, 1, b"a", b"b")),
            _producers("both", ("producers", [0])),
            _producers("none", ("producers", [1])),
            _producers("missing partition", ("producers", [9])),
            _producers("missing topic", ("producers-missing", [0])),
            _producers("invalid topic", ("bad name", [0])),
            _producers("no partitions", ("producers", [])),
            _producers("no topics"),
        ),
        (data_topic("producers", 2),),
    ),
)
