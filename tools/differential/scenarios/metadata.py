"""Metadata and DescribeCluster."""

from penstock.protocol.messages.describe_cluster import DESCRIBE_CLUSTER, DescribeClusterRequest
from penstock.protocol.messages.metadata import METADATA, MetadataRequest, MetadataRequestTopic
from penstock.types import TopicId
from tools.differential.replies import UNKNOWN_TOPIC_ID
from tools.differential.scenarios.asking import every_version
from tools.differential.steps import Message, RequestStep, Scenario, Topic

_HERE = "metadata-here"
_INVALID = ("bad name", "", ".", "..", "x" * 250)
_ENDPOINT_CONTROLLERS = 2
_ENDPOINT_UNKNOWN = 3


def _named(*names: str, create: bool = False) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics, allow_auto_topic_creation=create)


def _ask(name: str, version: int, message: Message, *, eventually: bool = False) -> RequestStep:
    return RequestStep(name, METADATA, version, message, eventually=eventually)


def _by_id(topic_id: TopicId | None, name: str | None) -> Message:
    return lambda memory: MetadataRequest(
        [MetadataRequestTopic(topic_id or memory.topic_ids[_HERE], name)], allow_auto_topic_creation=False
    )


def _with_operations() -> MetadataRequest:
    asked = _named(_HERE, "metadata-missing")
    asked.include_cluster_authorized_operations = True
    asked.include_topic_authorized_operations = True
    return asked


def _cluster(name: str, version: int, asked: DescribeClusterRequest) -> RequestStep:
    return RequestStep(name, DESCRIBE_CLUSTER, version, asked)


SCENARIOS = (
    Scenario(
        "metadata",
        (
            *(_ask(f"v{version} existing", version, _named(_HERE)) for version in every_version(METADATA)),
            *(
                _ask(f"v{version} missing", version, _named("metadata-missing"))
                for version in every_version(METADATA)
                if version >= 4
            ),
            _ask("invalid names", 13, _named(*_INVALID)),
            _ask("invalid names, to be created", 13, _named(*_INVALID, create=True)),
            _ask("no topics", 12, _named()),
            _ask("no topics v1", 1, _named()),
            _ask("the same name twice", 12, _named(_HERE, _HERE)),
            _ask("existing and missing", 12, _named("zz-missing", _HERE, "bad name", "aa-missing")),
            _ask("by id", 12, _by_id(None, None)),
            _ask("by id v13", 13, _by_id(None, None)),
            _ask("by id and name", 12, _by_id(None, _HERE)),
            _ask("by id and another name", 12, _by_id(None, "another")),
            _ask("by unknown id", 12, _by_id(TopicId(UNKNOWN_TOPIC_ID), None)),
            _ask("by neither id nor name", 12, MetadataRequest([MetadataRequestTopic(name=None)])),
            _ask("by id v10", 10, _by_id(None, _HERE)),
            _ask("null name v10", 10, _by_id(None, None)),
            _ask("operations", 10, _with_operations()),
            _ask("operations v8", 8, _with_operations()),
            _ask("operations v13", 13, _with_operations()),
        ),
        (Topic(_HERE, 3),),
    ),
    Scenario(
        "auto-creation",
        (
            _ask("first", 12, _named("metadata-created", create=True)),
            _ask("then", 12, _named("metadata-created"), eventually=True),
        ),
    ),
    Scenario(
        "describe-cluster",
        (
            *(
                _cluster(f"v{version}", version, DescribeClusterRequest())
                for version in every_version(DESCRIBE_CLUSTER)
            ),
            _cluster("operations", 2, DescribeClusterRequest(include_cluster_authorized_operations=True)),
            _cluster("controllers", 1, DescribeClusterRequest(endpoint_type=_ENDPOINT_CONTROLLERS)),
            _cluster("unknown endpoint type", 1, DescribeClusterRequest(endpoint_type=_ENDPOINT_UNKNOWN)),
            _cluster("fenced brokers", 2, DescribeClusterRequest(include_fenced_brokers=True)),
        ),
    ),
)
