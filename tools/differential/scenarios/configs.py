"""IncrementalAlterConfigs and AlterConfigs, with a DescribeConfigs after each change."""

from typing import Any

from penstock.protocol.messages import alter_configs, incremental_alter_configs
from penstock.protocol.messages.alter_configs import ALTER_CONFIGS, AlterConfigsRequest
from penstock.protocol.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from penstock.protocol.messages.incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    IncrementalAlterConfigsRequest,
)
from tools.differential.scenarios.asking import BROKER_RESOURCE, TOPIC_RESOURCE, every_version, overrides
from tools.differential.steps import NO_REPLY_S, RequestStep, Scenario, Step, Topic

_TOPIC = "altered"
_REPLACED = "replaced"
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_RETENTION = "retention.ms"
_POLICY = "cleanup.policy"
_THROTTLED = "leader.replication.throttled.replicas"
_LOGGER_RESOURCE = 8
_UNKNOWN_RESOURCES = (0, 3, 99)
_BROKER = "1"
_Operation = tuple[str, int, str | None]
_Setting = tuple[str, str | None]


def _resource(
    kind: int, name: str, *operations: _Operation
) -> incremental_alter_configs.AlterConfigsResource:
    configs = [incremental_alter_configs.AlterableConfig(*operation) for operation in operations]
    return incremental_alter_configs.AlterConfigsResource(kind, name, configs)


def _change(
    name: str,
    *operations: _Operation,
    kind: int = TOPIC_RESOURCE,
    of: str = _TOPIC,
    version: int = 1,
    only_validate: bool = False,
) -> RequestStep:
    asked = IncrementalAlterConfigsRequest([_resource(kind, of, *operations)], only_validate)
    return RequestStep(name, INCREMENTAL_ALTER_CONFIGS, version, asked)


def _seen(name: str, *operations: _Operation, **options: Any) -> tuple[Step, Step]:
    """A change and the DescribeConfigs of the topic after it."""
    return _change(name, *operations, **options), overrides(f"{name}, then", _TOPIC)


def _replace(
    name: str,
    *settings: _Setting,
    kind: int = TOPIC_RESOURCE,
    of: str = _REPLACED,
    version: int = 2,
    only_validate: bool = False,
) -> RequestStep:
    configs = [alter_configs.AlterableConfig(key, value) for key, value in settings]
    asked = AlterConfigsRequest([alter_configs.AlterConfigsResource(kind, of, configs)], only_validate)
    return RequestStep(name, ALTER_CONFIGS, version, asked)


def _replaced(name: str, *settings: _Setting, **options: Any) -> tuple[Step, Step]:
    return _replace(name, *settings, **options), overrides(f"{name}, then", _REPLACED)


def _broker(
    name: str, *operations: _Operation, of: str = _BROKER, only_validate: bool = False
) -> RequestStep:
    return _change(name, *operations, kind=BROKER_RESOURCE, of=of, only_validate=only_validate)


def _described(name: str, of: str, *keys: str) -> RequestStep:
    resource = DescribeConfigsResource(BROKER_RESOURCE, of, list(keys))
    asked = DescribeConfigsRequest([resource], include_synonyms=True, include_documentation=True)
    return RequestStep(name, DESCRIBE_CONFIGS, 4, asked, eventually=True)


_VALUE = (_RETENTION, _SET, "1")
_UNKNOWN = "unknown.setting"

SCENARIOS = (
    Scenario(
        "incremental-alter-configs",
        (
            *(
                step
                for version in every_version(INCREMENTAL_ALTER_CONFIGS)
                for step in _seen(
                    f"v{version} set", ("segment.ms", _SET, f"{version + 5}000"), version=version
                )
            ),
            *_seen("deleted", ("segment.ms", _DELETE, None)),
            *_seen("deleted with a value", (_RETENTION, _DELETE, "zzz")),
            _change("deleted again", ("segment.ms", _DELETE, None)),
            _change("deleted, unknown", ("nonsense", _DELETE, None)),
            _change("unknown", ("nonsense", _SET, "1")),
            _change("without a name", ("", _SET, "1")),
            _change("null", (_RETENTION, _SET, None)),
            _change("not a number", (_RETENTION, _SET, "abc")),
            _change("below the minimum", (_RETENTION, _SET, "-5")),
            _change("appended to a number", (_RETENTION, _APPEND, "1")),
            _change("subtracted from a number", (_RETENTION, _SUBTRACT, "1")),
            _change("appended null", (_POLICY, _APPEND, None)),
            _change("subtracted null", (_POLICY, _SUBTRACT, None)),
            _change("appended nonsense", (_POLICY, _APPEND, "foo")),
            *_seen("appended what is there", (_POLICY, _APPEND, "delete")),
            *_seen("subtracted", (_POLICY, _SUBTRACT, "delete")),
            _change("subtracted what is not there", (_POLICY, _SUBTRACT, "delete")),
            *_seen("subtracted the last", (_POLICY, _SUBTRACT, "compact")),
            *_seen("appended two", (_POLICY, _APPEND, "compact,delete")),
            *_seen("appended to the default", (_THROTTLED, _APPEND, "0:1")),
            *_seen(
                "subtracted from the default", ("follower.replication.throttled.replicas", _SUBTRACT, "0:1")
            ),
            *(_change(f"operation {n}", (_RETENTION, n, "1")) for n in (4, -1)),
            _change("same key twice", (_RETENTION, _SET, "1"), (_RETENTION, _SET, "2")),
            _change("set and deleted", (_RETENTION, _SET, "1"), (_RETENTION, _DELETE, None)),
            *_seen("one good and one bad", ("segment.ms", _SET, "7000"), ("nonsense", _SET, "1")),
            *_seen("only validated", ("segment.ms", _SET, "8000"), only_validate=True),
            _change("only validated, bad", ("segment.ms", _SET, "x"), only_validate=True),
            _change("nothing"),
        ),
        (Topic(_TOPIC, 1, {_RETENTION: "1000", _POLICY: "compact,delete"}),),
    ),
    Scenario(
        "incremental-alter-configs-resources",
        (
            _change("missing topic", _VALUE, of="altered-missing"),
            _change("missing topic and unknown key", ("nonsense", _SET, "1"), of="altered-missing"),
            _change("invalid topic", _VALUE, of="bad name"),
            _change("empty topic", _VALUE, of=""),
            *(_change(f"resource {kind}", _VALUE, kind=kind, of="x") for kind in _UNKNOWN_RESOURCES),
            RequestStep(
                "twice",
                INCREMENTAL_ALTER_CONFIGS,
                1,
                IncrementalAlterConfigsRequest([_resource(TOPIC_RESOURCE, "altered-too", _VALUE)] * 2),
            ),
            RequestStep(
                "good and bad",
                INCREMENTAL_ALTER_CONFIGS,
                1,
                IncrementalAlterConfigsRequest(
                    [
                        _resource(TOPIC_RESOURCE, "altered-too", (_RETENTION, _SET, "77")),
                        _resource(TOPIC_RESOURCE, "altered-missing", _VALUE),
                    ]
                ),
            ),
            overrides("then", "altered-too"),
            RequestStep("none", INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest()),
        ),
        (Topic("altered-too"),),
    ),
    Scenario(
        "alter-broker-configs",
        (
            _broker("read-only", ("num.partitions", _SET, "3")),
            _broker("only validated", ("log.retention.ms", _SET, "3000000"), only_validate=True),
            _broker("not a number", ("log.retention.ms", _SET, "abc")),
            _broker("another broker", ("log.retention.ms", _SET, "1"), of="9"),
            _broker("not a broker", ("log.retention.ms", _SET, "1"), of="x"),
            _broker("set", ("log.retention.ms", _SET, "3000000")),
            overrides("a topic then", "altered-by-broker", _RETENTION),
            _broker("deleted", ("log.retention.ms", _DELETE, None)),
            _broker("more cleaners", ("log.cleaner.threads", _SET, "2")),
            _broker("smallest segments", ("log.segment.bytes", _SET, "1048576")),
            _broker("too small segments", ("log.segment.bytes", _SET, "1048575")),
            _broker("batches beyond requests", ("message.max.bytes", _SET, "209715200")),
            _broker("segments of all brokers", ("log.segment.bytes", _SET, "1048576"), of=""),
            _broker("none for all brokers", ("log.segment.bytes", _DELETE, None), of=""),
            _broker(
                "as before",
                ("log.cleaner.threads", _DELETE, None),
                ("log.segment.bytes", _DELETE, None),
                ("message.max.bytes", _DELETE, None),
            ),
            overrides("a topic in the end", "altered-by-broker", _RETENTION),
        ),
        (Topic("altered-by-broker"),),
    ),
    Scenario(
        "unknown-broker-configs",
        (
            _broker("set", (_UNKNOWN, _SET, "1")),
            _described("set, then", _BROKER, _UNKNOWN),
            _described("not for all", "", _UNKNOWN),
            _broker("a topic's name", (_POLICY, _SET, "delete")),
            _broker("of Kafka, without effect here", ("num.io.threads", _SET, "9")),
            _broker("beside a bad one", ("not.set", _SET, "1"), ("log.retention.ms", _SET, "x")),
            _described("beside a bad one, then", _BROKER, "not.set"),
            _broker("null", (_UNKNOWN, _SET, None)),
            _broker("appended", (_UNKNOWN, _APPEND, "2")),
            _broker("subtracted", (_UNKNOWN, _SUBTRACT, "2")),
            _broker("without a name", ("", _SET, "2")),
            _broker("for all", ("unknown.default", _SET, "1"), of=""),
            _described("for all, then", "", "unknown.default"),
            _described("for all, a broker then", _BROKER, "unknown.default"),
            _broker("only validated", ("not.set", _SET, "1"), only_validate=True),
            _described("only validated, then", _BROKER, "not.set"),
            _broker("deleted for all", ("unknown.default", _DELETE, None), of=""),
            _described("deleted for all, then", "", "unknown.default"),
            _replace("replaced", ("unknown.replaced", "3"), kind=BROKER_RESOURCE, of=_BROKER),
            _described("replaced, then", _BROKER, "unknown.replaced"),
            _replace("nothing left", kind=BROKER_RESOURCE, of=_BROKER),
            _described("nothing left, then", _BROKER, "unknown.replaced"),
        ),
    ),
    Scenario(
        "alter-configs",
        (
            *(
                step
                for version in every_version(ALTER_CONFIGS)
                for step in _replaced(
                    f"v{version}", ("max.message.bytes", f"{version + 2}000"), version=version
                )
            ),
            *_replaced("another key", (_RETENTION, "5")),
            *_replaced("nothing"),
            _replace("null", (_RETENTION, None)),
            _replace("not a number", (_RETENTION, "x")),
            _replace("unknown", ("nonsense", "x")),
            _replace("same key twice", (_RETENTION, "1"), (_RETENTION, "2")),
            *_replaced("only validated", (_RETENTION, "9"), only_validate=True),
            _replace("missing topic", (_RETENTION, "1"), of="replaced-missing"),
            _replace("invalid topic", (_RETENTION, "1"), of="bad name"),
            _replace("empty topic", (_RETENTION, "1"), of=""),
            *(_replace(f"resource {kind}", ("x", "1"), kind=kind, of="x") for kind in _UNKNOWN_RESOURCES),
            _replace("logger", ("root", "INFO"), kind=_LOGGER_RESOURCE, of=_BROKER),
            _replace("broker, read-only", ("num.partitions", "3"), kind=BROKER_RESOURCE, of=_BROKER),
            _replace("another broker", ("log.retention.ms", "3"), kind=BROKER_RESOURCE, of="9"),
            RequestStep(
                "twice",
                ALTER_CONFIGS,
                2,
                AlterConfigsRequest([alter_configs.AlterConfigsResource(TOPIC_RESOURCE, _REPLACED)] * 2),
                timeout_s=NO_REPLY_S,
            ),
            RequestStep("none", ALTER_CONFIGS, 2, AlterConfigsRequest()),
        ),
        (Topic(_REPLACED, 1, {_RETENTION: "1000", "segment.ms": "99"}),),
    ),
)
