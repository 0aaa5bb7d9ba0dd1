"""Our defaults are Kafka's, but for those in the table of differences."""

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.broker_settings import BROKER_SETTINGS
from penstock.config.describe import describe_topic
from penstock.config.kafka_differences import KAFKA_DIFFERENCES, NOT_IN_KAFKA
from penstock.config.layers import NOTHING_GIVEN, synonyms_of, value_of
from penstock.config.setting import ConfigSource, ConfigType
from penstock.config.topic_settings import TOPIC_SETTINGS

# Name, ConfigType number and default, as Kafka 4 has them.
KAFKA_TOPIC = """
cleanup.policy 7 delete
compression.type 2 producer
compression.gzip.level 3 -1
compression.lz4.level 3 9
compression.zstd.level 3 3
delete.retention.ms 5 86400000
file.delete.delay.ms 5 60000
flush.messages 5 9223372036854775807
flush.ms 5 9223372036854775807
follower.replication.throttled.replicas 7
leader.replication.throttled.replicas 7
index.interval.bytes 3 4096
max.compaction.lag.ms 5 9223372036854775807
max.message.bytes 3 1048588
message.timestamp.type 2 CreateTime
message.timestamp.before.max.ms 5 9223372036854775807
message.timestamp.after.max.ms 5 3600000
min.cleanable.dirty.ratio 6 0.5
min.compaction.lag.ms 5 0
min.insync.replicas 3 1
preallocate 1 false
retention.bytes 5 -1
retention.ms 5 604800000
segment.bytes 3 1073741824
segment.index.bytes 3 10485760
segment.jitter.ms 5 0
segment.ms 5 604800000
unclean.leader.election.enable 1 false
"""

# "null" stands for no default.
KAFKA_BROKER = """
advertised.listeners null
auto.create.topics.enable true
broker.id -1
broker.rack null
compression.gzip.level -1
compression.lz4.level 9
compression.type producer
compression.zstd.level 3
connections.max.idle.ms 600000
default.replication.factor 1
auto.leader.rebalance.enable true
leader.imbalance.per.broker.percentage 10
replica.lag.time.max.ms 30000
replica.selector.class null
delete.topic.enable true
follower.replication.throttled.rate 9223372036854775807
leader.replication.throttled.rate 9223372036854775807
fetch.max.bytes 57671680
listener.security.protocol.map SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
listeners PLAINTEXT://:9092
log.cleaner.backoff.ms 15000
log.cleaner.dedupe.buffer.size 134217728
log.cleaner.delete.retention.ms 86400000
log.cleaner.enable true
log.cleaner.io.buffer.load.factor 0.9
log.cleaner.io.buffer.size 524288
log.cleaner.io.max.bytes.per.second 1.7976931348623157E308
log.cleaner.max.compaction.lag.ms 9223372036854775807
log.cleaner.min.cleanable.ratio 0.5
log.cleaner.min.compaction.lag.ms 0
log.cleaner.threads 1
log.cleanup.policy delete
log.dir kafka-logs
log.dirs null
log.flush.interval.messages 9223372036854775807
log.flush.interval.ms null
log.flush.scheduler.interval.ms 9223372036854775807
log.index.interval.bytes 4096
log.index.size.max.bytes 10485760
log.message.timestamp.after.max.ms 3600000
log.message.timestamp.before.max.ms 9223372036854775807
log.message.timestamp.type CreateTime
log.preallocate false
log.retention.bytes -1
log.retention.check.interval.ms 300000
log.retention.hours 168
log.retention.minutes null
log.retention.ms null
log.roll.hours 168
log.roll.jitter.hours 0
log.roll.jitter.ms null
log.roll.ms null
log.segment.bytes 1073741824
log.segment.delete.delay.ms 60000
max.connections 2147483647
max.connections.per.ip 2147483647
max.incremental.fetch.session.cache.slots 1000
message.max.bytes 1048588
min.insync.replicas 1
node.id -1
num.partitions 1
producer.id.expiration.ms 86400000
queued.max.request.bytes -1
socket.request.max.bytes 104857600
ssl.client.auth none
ssl.enabled.protocols TLSv1.2,TLSv1.3
ssl.key.password null
ssl.keystore.location null
ssl.keystore.type JKS
ssl.truststore.location null
ssl.truststore.type JKS
unclean.leader.election.enable false
group.consumer.assignors uniform,range
group.consumer.heartbeat.interval.ms 5000
group.consumer.max.heartbeat.interval.ms 15000
group.consumer.max.session.timeout.ms 60000
group.consumer.max.size 2147483647
group.consumer.migration.policy bidirectional
group.consumer.min.heartbeat.interval.ms 5000
group.consumer.min.session.timeout.ms 45000
group.consumer.session.timeout.ms 45000
group.initial.rebalance.delay.ms 3000
group.max.session.timeout.ms 1800000
group.max.size 2147483647
group.min.session.timeout.ms 6000
offset.metadata.max.bytes 4096
offsets.retention.check.interval.ms 600000
offsets.retention.minutes 10080
offsets.topic.num.partitions 50
offsets.topic.segment.bytes 104857600
"""


def test_topic_settings_have_kafkas_types_and_defaults() -> None:
    ours = {
        entry.name: (entry.type, entry.value)
        for entry in describe_topic({}, BrokerConfig.of())
        if entry.name not in NOT_IN_KAFKA
    }
    kafkas = {}
    for line in KAFKA_TOPIC.split("\n")[1:-1]:
        name, number, *default = line.split(" ")
        kafkas[name] = (ConfigType(int(number)), "".join(default))
    assert ours == kafkas


def test_broker_defaults_are_kafkas_but_for_the_differences() -> None:
    kafkas = dict(line.split(" ") for line in KAFKA_BROKER.strip().split("\n"))
    ours = {
        name: "null" if setting.default_text is None else setting.default_text
        for name, setting in BROKER_SETTINGS.items()
        if name not in NOT_IN_KAFKA
    }
    assert ours.keys() == kafkas.keys()
    different = {name for name in ours if ours[name] != kafkas[name]}
    in_a_cluster = {name for name, difference in KAFKA_DIFFERENCES.items() if difference.ours}
    assert different == KAFKA_DIFFERENCES.keys() & BROKER_SETTINGS.keys() - NOT_IN_KAFKA - in_a_cluster


def test_every_difference_and_every_setting_of_ours_is_declared() -> None:
    declared = TOPIC_SETTINGS.keys() | BROKER_SETTINGS.keys()
    assert KAFKA_DIFFERENCES.keys() <= declared
    assert declared >= NOT_IN_KAFKA


@pytest.mark.parametrize("name", [name for name in TOPIC_SETTINGS if TOPIC_SETTINGS[name].synonyms])
def test_a_topic_setting_and_the_broker_settings_it_follows_have_one_default(name: str) -> None:
    entry = next(entry for entry in describe_topic({}, BrokerConfig.of()) if entry.name == name)
    assert entry.value == TOPIC_SETTINGS[name].default_text
    assert entry.source is ConfigSource.DEFAULT


@pytest.mark.parametrize("name", BROKER_SETTINGS)
def test_every_broker_setting_resolves_to_its_default(name: str) -> None:
    assert value_of(name, NOTHING_GIVEN) == BROKER_SETTINGS[name].default
    assert all(
        synonym.source is ConfigSource.DEFAULT
        for synonym in synonyms_of(BROKER_SETTINGS[name], NOTHING_GIVEN)
    )


def test_a_default_that_departs_is_the_one_the_broker_obeys() -> None:
    broker = BrokerConfig.of()
    assert broker.topic_defaults.flush_policy.value == "before_ack"
    assert [listener.host for listener in broker.listeners] == ["127.0.0.1"]
    assert broker.http == ("127.0.0.1", 8080)
    assert broker.node == (1, None, "./penstock-data", "embedded")
