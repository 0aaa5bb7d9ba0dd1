"""CreateTopics: every rejection, and the description of a new topic."""

from penstock.protocol.messages.create_topics import (
    CREATE_TOPICS,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tools.differential.scenarios.asking import every_version
from tools.differential.steps import RequestStep, Scenario, Topic

_TIMEOUT_MS = 10_000
_HERE = "created-here"
_NO_BROKER = 9


def _topic(name: str, partitions: int = 1, replicas: int = 1, **configs: str | None) -> CreatableTopic:
    named = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    return CreatableTopic(name, partitions, replicas, [], named)


def _assigned(
    name: str, *assignments: tuple[int, list[int]], partitions: int = -1, replicas: int = -1
) -> RequestStep:
    placed = [CreatableReplicaAssignment(partition, brokers) for partition, brokers in assignments]
    return _create(
        f"assignment {name}",
        CreatableTopic(f"assigned-{name.replace(' ', '-')}", partitions, replicas, placed),
    )


def _create(
    name: str,
    *topics: CreatableTopic,
    version: int = 7,
    timeout_ms: int = _TIMEOUT_MS,
    only_validate: bool = False,
) -> RequestStep:
    return RequestStep(
        name, CREATE_TOPICS, version, CreateTopicsRequest(list(topics), timeout_ms, only_validate)
    )


def _config(name: str, key: str, value: str | None) -> RequestStep:
    topic = CreatableTopic(f"config-{name.replace(' ', '-')}", 1, 1, [], [CreatableTopicConfig(key, value)])
    return _create(f"config {name}", topic)


_CONFIGS = (
    ("unknown", "nonsense", "1"),
    ("without a name", "", "1"),
    ("not a number", "retention.ms", "abc"),
    ("empty number", "retention.ms", ""),
    ("below the minimum", "retention.ms", "-2"),
    ("null", "retention.ms", None),
    ("with spaces", "retention.ms", " 5 "),
    ("beyond an int", "max.message.bytes", "2147483648"),
    ("unknown policy", "cleanup.policy", "foo"),
    ("policy none", "cleanup.policy", "none"),
    ("no policy", "cleanup.policy", ""),
    ("both policies", "cleanup.policy", "compact,delete"),
    ("both policies with a space", "cleanup.policy", "compact, delete"),
    ("policy twice", "cleanup.policy", "compact,compact"),
    ("small segment", "segment.bytes", "100"),
    ("unknown compression", "compression.type", "foo"),
    ("known compression", "compression.type", "zstd"),
    ("no replicas in sync", "min.insync.replicas", "0"),
    ("boolean in capitals", "preallocate", "TRUE"),
    ("boolean yes", "preallocate", "yes"),
    ("timestamp type in lower case", "message.timestamp.type", "createtime"),
    ("ratio above one", "min.cleanable.dirty.ratio", "1.5"),
    ("negative span", "message.timestamp.before.max.ms", "-1"),
    ("gzip level 0", "compression.gzip.level", "0"),
    ("gzip level 9", "compression.gzip.level", "9"),
    ("lz4 level 18", "compression.lz4.level", "18"),
    ("zstd level 99", "compression.zstd.level", "99"),
    ("throttled replicas", "follower.replication.throttled.replicas", "x"),
    ("throttled replicas star", "follower.replication.throttled.replicas", "*"),
    ("remote storage", "remote.storage.enable", "true"),
    ("local retention", "local.retention.ms", "1000"),
    ("message format", "message.format.version", "2.0"),
    ("down-conversion", "message.downconversion.enable", "true"),
    ("timestamp difference", "message.timestamp.difference.max.ms", "1"),
)

SCENARIOS = (
    Scenario(
        "create-topics",
        (
            *(_create(f"v{v}", _topic(f"created-v{v}", 2), version=v) for v in every_version(CREATE_TOPICS)),
            *(_create(f"v{v} existing", _topic(_HERE), version=v) for v in every_version(CREATE_TOPICS)),
            *(_create(f"v{v} defaults", _topic(f"default-v{v}", -1, -1), version=v) for v in (2, 4, 7)),
            _create("no partitions", _topic("none", 0)),
            _create("negative partitions", _topic("negative", -2)),
            _create("very many partitions", _topic("many", 20_000)),
            _create("no replicas", _topic("unreplicated", 1, 0)),
            _create("negative replicas", _topic("negative", 1, -2)),
            _create("more replicas than brokers", _topic("replicated", 1, 2)),
            _create("neither partitions nor replicas", _topic("neither", 0, 0)),
            *(_create(f"name {n[:12]!r}", _topic(n)) for n in ("bad name", "", ".", "..", "x" * 250, "é")),
            _create("longest name", _topic("x" * 249)),
            _create("dots", _topic("created.dots")),
            _create("colliding", _topic("created_dots")),
            _create("cluster metadata", _topic("__cluster_metadata")),
            _create("only validated", _topic("validated", 3), only_validate=True),
            _create("only validated, existing", _topic(_HERE), only_validate=True),
            _create("only validated, bad", _topic("validated", 0), only_validate=True),
            _create("then created", _topic("validated", 3)),
            _create("timeout 0", _topic("hurried"), timeout_ms=0),
            _create("timeout -1", _topic("hurried"), timeout_ms=-1),
            _create("twice in one request", _topic("twice"), _topic("once"), _topic("twice")),
            _create("twice and invalid", _topic("bad name"), _topic("bad name")),
            _create("good and bad", _topic("good-1"), _topic(_HERE), _topic("bad name"), _topic("good-2")),
            _create("no topics"),
            _create(
                "several configs", _topic("configured", 1, 1, cleanup_policy="compact", segment_ms="1000")
            ),
            _create("conflict", _topic("lag", 1, 1, min_compaction_lag_ms="10", max_compaction_lag_ms="5")),
        ),
        (Topic(_HERE),),
    ),
    Scenario(
        "create-topics-assigned",
        (
            _assigned("good", (0, [1]), (1, [1])),
            _assigned("with counts", (0, [1]), partitions=1, replicas=1),
            _assigned("with replicas", (0, [1]), replicas=1),
            _assigned("with partitions", (0, [1]), partitions=1),
            _assigned("from 1", (1, [1])),
            _assigned("with a hole", (0, [1]), (2, [1])),
            _assigned("twice", (0, [1]), (0, [1])),
            _assigned("same broker twice", (0, [1, 1])),
            _assigned("unknown broker", (0, [_NO_BROKER])),
            _assigned("negative broker", (0, [-1])),
            _assigned("nobody", (0, [])),
        ),
    ),
    Scenario("create-topics-configs", tuple(_config(*row) for row in _CONFIGS)),
    Scenario(
        "create-topics-same-key",
        (
            _create(
                "same key twice",
                CreatableTopic(
                    "config-twice",
                    1,
                    1,
                    [],
                    [CreatableTopicConfig("retention.ms", "1"), CreatableTopicConfig("retention.ms", "2")],
                ),
            ),
        ),
    ),
)
