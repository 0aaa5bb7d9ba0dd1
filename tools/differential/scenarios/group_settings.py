"""Settings of groups: describing, changing, replacing and listing resources of type GROUP."""

from penstock.protocol.messages import alter_configs, incremental_alter_configs
from penstock.protocol.messages.alter_configs import ALTER_CONFIGS, AlterConfigsRequest
from penstock.protocol.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
)
from penstock.protocol.messages.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from penstock.protocol.messages.incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    IncrementalAlterConfigsRequest,
)
from penstock.protocol.messages.list_config_resources import (
    LIST_CONFIG_RESOURCES,
    ListConfigResourcesRequest,
)
from tools.differential.scenarios.asking import data_topic, every_version
from tools.differential.steps import NO_REPLY_S, RequestStep, Scenario, Step

_GROUP_RESOURCE = 32
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_SESSION = "consumer.session.timeout.ms"
_HEARTBEAT = "consumer.heartbeat.interval.ms"
_GROUP = "set"
_TOPIC = "read-by-the-set"
_Operation = tuple[str, int, str | None]


def _resource(of: str, *operations: _Operation) -> incremental_alter_configs.AlterConfigsResource:
    configs = [incremental_alter_configs.AlterableConfig(*operation) for operation in operations]
    return incremental_alter_configs.AlterConfigsResource(_GROUP_RESOURCE, of, configs)


def _change(
    name: str, *operations: _Operation, of: str = _GROUP, version: int = 1, only_validate: bool = False
) -> RequestStep:
    asked = IncrementalAlterConfigsRequest([_resource(of, *operations)], only_validate)
    return RequestStep(name, INCREMENTAL_ALTER_CONFIGS, version, asked)


def _shown(name: str, *keys: str, of: str = _GROUP, version: int = 4, synonyms: bool = False) -> RequestStep:
    """DescribeConfigs of a group. Brokers may return a change late."""
    resource = DescribeConfigsResource(_GROUP_RESOURCE, of, list(keys) or None)
    asked = DescribeConfigsRequest([resource], include_synonyms=synonyms)
    return RequestStep(name, DESCRIBE_CONFIGS, version, asked, eventually=True)


def _seen(name: str, *operations: _Operation, only_validate: bool = False) -> tuple[Step, Step]:
    """A change and the DescribeConfigs of the group after it."""
    return _change(name, *operations, only_validate=only_validate), _shown(f"{name}, then")


def _replace(name: str, *settings: tuple[str, str | None], of: str = "replaced-set") -> RequestStep:
    configs = [alter_configs.AlterableConfig(key, value) for key, value in settings]
    asked = AlterConfigsRequest([alter_configs.AlterConfigsResource(_GROUP_RESOURCE, of, configs)])
    return RequestStep(name, ALTER_CONFIGS, 2, asked)


def _report(name: str, epoch: int, group: str = _GROUP) -> RequestStep:
    asked = ConsumerGroupHeartbeatRequest(group, "member", epoch)
    if epoch == 0:
        asked.rebalance_timeout_ms, asked.subscribed_topic_names, asked.topic_partitions = (
            60_000,
            [_TOPIC],
            [],
        )
    return RequestStep(name, CONSUMER_GROUP_HEARTBEAT, 1, asked)


SCENARIOS = (
    Scenario(
        "group-settings",
        (
            *(_shown(f"v{v} nothing set", version=v) for v in every_version(DESCRIBE_CONFIGS)),
            _shown("with synonyms", synonyms=True),
            _shown("one key", _SESSION),
            _shown("an unknown key", "nonsense"),
            _shown("no name", of=""),
            _change("v0 set", (_SESSION, _SET, "50000"), version=0),
            *_seen("set", (_SESSION, _SET, "55000"), (_HEARTBEAT, _SET, "6000")),
            _shown("set, with synonyms", _SESSION, synonyms=True),
            *_seen("deleted", (_SESSION, _DELETE, None)),
            _change("deleted again", (_SESSION, _DELETE, None)),
            _change("deleted, unknown", ("nonsense", _DELETE, None)),
            _change("unknown", ("nonsense", _SET, "1")),
            _change("a broker's name", ("group.consumer.session.timeout.ms", _SET, "50000")),
            _change("without a key", ("", _SET, "1")),
            _change("null", (_SESSION, _SET, None)),
            _change("empty", (_SESSION, _SET, "")),
            _change("not a number", (_SESSION, _SET, "abc")),
            _change("with spaces", (_SESSION, _SET, " 50000 ")),
            _change("zero", (_SESSION, _SET, "0")),
            _change("session below the minimum", (_SESSION, _SET, "44999")),
            _change("session above the maximum", (_SESSION, _SET, "60001")),
            _change("heartbeat below the minimum", (_HEARTBEAT, _SET, "1")),
            _change("heartbeat above the maximum", (_HEARTBEAT, _SET, "15001")),
            _change("appended", (_SESSION, _APPEND, "1")),
            _change("subtracted", (_SESSION, _SUBTRACT, "1")),
            _change("operation 4", (_SESSION, 4, "50000")),
            _change("same key twice", (_SESSION, _SET, "50000"), (_SESSION, _SET, "51000")),
            *_seen("one good and one bad", (_SESSION, _SET, "52000"), ("nonsense", _SET, "1")),
            *_seen("only validated", (_SESSION, _SET, "53000"), only_validate=True),
            _change("only validated, bad", (_SESSION, _SET, "x"), only_validate=True),
            _change("nothing"),
            _change("no group", (_SESSION, _SET, "50000"), of=""),
            RequestStep(
                "twice",
                INCREMENTAL_ALTER_CONFIGS,
                1,
                IncrementalAlterConfigsRequest([_resource("twice-set", (_SESSION, _SET, "50000"))] * 2),
                timeout_s=NO_REPLY_S,
            ),
        ),
    ),
    Scenario(
        "group-settings-replaced",
        (
            _replace("replaced", (_SESSION, "50000"), (_HEARTBEAT, "7000")),
            _shown("replaced, then", of="replaced-set"),
            _replace("replaced by less", (_SESSION, "51000")),
            _shown("replaced by less, then", of="replaced-set"),
            _replace("unknown", ("nonsense", "1")),
            _replace("null", (_SESSION, None)),
            _replace("too little", (_SESSION, "1")),
            _replace("no group", (_SESSION, "50000"), of=""),
            RequestStep(
                "listed", LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest([32]), eventually=True
            ),
            _replace("cleared"),
            _shown("cleared, then", of="replaced-set"),
            RequestStep("listed again", LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest([32])),
        ),
    ),
    Scenario(
        "group-settings-obeyed",
        (
            _report("enters", 0, "obeying"),
            _change("changed", (_HEARTBEAT, _SET, "12000"), of="obeying"),
            _shown("changed, then", _HEARTBEAT, of="obeying"),
            _report("reports", 1, "obeying"),
            _change("undone", (_HEARTBEAT, _DELETE, None), of="obeying"),
            _shown("undone, then", _HEARTBEAT, of="obeying"),
            _report("reports again", 1, "obeying"),
        ),
        (data_topic(_TOPIC),),
    ),
)
