"""What DescribeConfigs answers: values, where they came from, and what is kept secret."""

from collections.abc import Mapping

from penstock.config.broker import BrokerConfig
from penstock.config.describe import (
    ConfigEntry,
    ConfigSynonym,
    describe_broker,
    describe_cluster_defaults,
    describe_group,
    describe_topic,
)
from penstock.config.layers import GivenSettings
from penstock.config.setting import ConfigSource, ConfigType
from penstock.config.sources import load
from penstock.config.topic_settings import TOPIC_SETTINGS

DEFAULT = BrokerConfig.of()


def topic_entry(name: str, overrides: Mapping[str, str], broker: BrokerConfig = DEFAULT) -> ConfigEntry:
    return next(entry for entry in describe_topic(overrides, broker) if entry.name == name)


def broker_entry(name: str, broker: BrokerConfig) -> ConfigEntry:
    return next(entry for entry in describe_broker(broker) if entry.name == name)


def test_a_topics_own_value_has_the_topic_as_its_source() -> None:
    entry = topic_entry("retention.ms", {"retention.ms": "5"}, load(sets=["log.retention.ms=6"]))
    assert (entry.value, entry.source, entry.read_only, entry.sensitive, entry.type) == (
        "5",
        1,
        False,
        False,
        5,
    )
    assert entry.synonyms == (
        ("retention.ms", "5", 1),
        ("log.retention.ms", "6", 4),
        ("log.retention.hours", "168", 5),
    )


def test_synonyms_stand_in_the_order_in_which_they_count() -> None:
    broker = load(sets=["log.retention.ms=4", "log.retention.minutes=44"]).with_dynamic(
        own={"log.retention.ms": "2"}, cluster={"log.retention.ms": "3"}
    )
    entry = topic_entry("retention.ms", {"retention.ms": "1"}, broker)
    assert entry.synonyms == (
        ("retention.ms", "1", 1),
        ("log.retention.ms", "2", 2),
        ("log.retention.ms", "3", 3),
        ("log.retention.ms", "4", 4),
        ("log.retention.minutes", "44", 4),
        ("log.retention.hours", "168", 5),
    )


def test_a_followed_value_is_shown_in_the_topics_unit() -> None:
    entry = topic_entry("retention.ms", {}, load(sets=["log.retention.hours=2"]))
    assert (entry.value, entry.source) == ("7200000", 4)
    assert entry.synonyms[0] == ("log.retention.hours", "2", 4)


def test_a_default_has_the_default_as_its_source() -> None:
    entry = topic_entry("retention.ms", {})
    assert (entry.value, entry.source) == ("604800000", 5)
    empty = topic_entry("leader.replication.throttled.replicas", {})
    assert (empty.value, empty.source, empty.type) == ("", 5, 7)


def test_a_setting_changed_at_run_time_names_the_broker_as_its_source() -> None:
    assert topic_entry("segment.ms", {}, DEFAULT.with_dynamic(own={"log.roll.ms": "9"})).source == 2
    assert topic_entry("segment.ms", {}, DEFAULT.with_dynamic(cluster={"log.roll.ms": "9"})).source == 3


def test_every_topic_setting_is_described_and_ignored_ones_are_not() -> None:
    entries = describe_topic({"message.format.version": "2.8"}, DEFAULT)
    assert sorted(entry.name for entry in entries) == sorted(TOPIC_SETTINGS)
    assert all(entry.documentation and entry.value is not None for entry in entries)


def test_what_a_tool_checks_for_is_what_the_topic_was_given() -> None:
    assert topic_entry("cleanup.policy", {"cleanup.policy": "compact"}).value == "compact"


def test_a_setting_without_effect_says_so() -> None:
    assert "Effect: none yet" in str(topic_entry("preallocate", {}).documentation)


def test_a_brokers_entries_say_what_can_be_changed_while_it_runs() -> None:
    broker = load({"node_id": 3})
    node = broker_entry("node.id", broker)
    assert (node.value, node.source, node.read_only, node.type) == ("3", 4, True, 3)
    assert not broker_entry("log.retention.ms", broker).read_only
    assert broker_entry("broker.id", broker).value == "3"
    assert broker_entry("inter.broker.protocol.version", broker).value == "4.2"


def test_a_setting_that_is_not_set_has_no_value() -> None:
    entry = broker_entry("log.retention.ms", DEFAULT)
    assert (entry.value, entry.source, entry.synonyms) == (None, 5, ())


def test_a_password_is_never_shown() -> None:
    static = {"ssl.key.password": "secret", "listener.name.tls.ssl.key.password": "deeper secret"}
    broker = BrokerConfig.of(GivenSettings(static))
    for name in static:
        entry = broker_entry(name, broker)
        assert (entry.value, entry.sensitive, entry.type) == (None, True, 9)
        assert entry.source == 4
        assert all(synonym.value is None for synonym in entry.synonyms)
    assert "secret" not in str(describe_broker(broker))


def test_one_listeners_setting_is_described_with_that_of_all_behind_it() -> None:
    static = {"ssl.client.auth": "requested", "listener.name.tls.ssl.client.auth": "required"}
    entry = broker_entry("listener.name.tls.ssl.client.auth", BrokerConfig.of(GivenSettings(static)))
    assert entry.value == "required"
    assert [synonym[:2] for synonym in entry.synonyms] == [
        ("listener.name.tls.ssl.client.auth", "required"),
        ("ssl.client.auth", "requested"),
        ("ssl.client.auth", "none"),
    ]


def test_an_unknown_setting_is_listed_without_its_value_where_it_was_set() -> None:
    broker = DEFAULT.with_dynamic(own={"my.own": "secret"}, cluster={"my.own": "old", "my.default": "secret"})
    own = ConfigSynonym("my.own", None, ConfigSource.DYNAMIC_BROKER)
    own_of_all, default_of_all = (
        ConfigSynonym(name, None, ConfigSource.DYNAMIC_DEFAULT_BROKER) for name in ("my.own", "my.default")
    )
    listed = {entry for entry in describe_broker(broker) if entry.name.startswith("my.")}
    assert listed == {
        ConfigEntry("my.own", None, own.source, True, True, ConfigType.UNKNOWN, None, (own, own_of_all)),
        ConfigEntry(
            "my.default", None, default_of_all.source, True, True, ConfigType.UNKNOWN, None, (default_of_all,)
        ),
    }
    defaults = describe_cluster_defaults(broker)
    assert [(entry.name, entry.value, entry.source) for entry in defaults] == [
        ("my.default", None, 3),
        ("my.own", None, 3),
    ]


def test_cluster_defaults_are_only_what_was_set_for_all_brokers() -> None:
    broker = DEFAULT.with_dynamic(own={"log.roll.ms": "9"}, cluster={"max.connections": "7"})
    (entry,) = describe_cluster_defaults(broker)
    assert (entry.name, entry.value, entry.source, entry.read_only) == ("max.connections", "7", 3, False)


# As a Kafka 4.2 listed them, without the settings that only Kafka has.
TOPIC_NAMES = """
compression.type leader.replication.throttled.replicas min.insync.replicas segment.jitter.ms
cleanup.policy flush.ms follower.replication.throttled.replicas compression.lz4.level segment.bytes
retention.ms compression.gzip.level flush.messages compression.zstd.level max.compaction.lag.ms
file.delete.delay.ms max.message.bytes min.compaction.lag.ms message.timestamp.type preallocate
index.interval.bytes min.cleanable.dirty.ratio unclean.leader.election.enable retention.bytes
delete.retention.ms message.timestamp.after.max.ms message.timestamp.before.max.ms segment.ms
segment.index.bytes
"""
BROKER_NAMES = """
log.cleaner.min.compaction.lag.ms offsets.topic.num.partitions log.flush.interval.messages
log.flush.interval.ms min.insync.replicas group.consumer.max.session.timeout.ms ssl.keystore.type
message.max.bytes log.cleaner.threads socket.request.max.bytes group.consumer.max.size
group.consumer.assignors log.message.timestamp.type connections.max.idle.ms max.connections node.id
log.dir log.segment.bytes group.max.session.timeout.ms group.consumer.heartbeat.interval.ms
log.retention.minutes log.segment.delete.delay.ms log.dirs compression.lz4.level log.roll.hours
offset.metadata.max.bytes ssl.truststore.location broker.id advertised.listeners
queued.max.request.bytes
"""


def test_settings_are_listed_in_the_order_of_kafka() -> None:
    own = {"retention.ms": "5", "cleanup.policy": "compact"}
    topic_order, broker_order = TOPIC_NAMES.split(), BROKER_NAMES.split()
    for entries in (describe_topic({}, DEFAULT), describe_topic(own, DEFAULT)):
        names = [entry.name for entry in entries]
        assert [name for name in names if name in topic_order] == topic_order
    brokers = [entry.name for entry in describe_broker(DEFAULT)]
    assert [name for name in brokers if name in broker_order] == broker_order
    groups = [entry.name for entry in describe_group({}, DEFAULT)]
    assert groups == ["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"]
