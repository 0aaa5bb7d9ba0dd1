"""Intended differences between the broker settings of Kafka and of Penstock in DescribeConfigs (gap G8).

Each setting and each value is listed: any other difference in the same response is a defect.
"""

from penstock.config.kafka_settings import OF_KAFKA_4_2, PROTECTIVE_SETTINGS
from tools.differential.compare import ABSENT

ONLY_KAFKA_HAS = OF_KAFKA_4_2.union(PROTECTIVE_SETTINGS) - {"allow.everyone.if.no.acl.found", "super.users"}
"""Settings of the authorizer, which Kafka does not list."""

_ONLY_PENSTOCK_HAS = """
auto.balance follower.replication.throttled.rate group.consumer.rebalance.heartbeat.interval.ms
http.listener http.tokens.file inter.broker.protocol.version leader.imbalance.per.broker.percentage
leader.replication.throttled.rate
log.flush.policy log.retention.topic.bytes metadata.store
"""
ONLY_PENSTOCK_HAS = frozenset(_ONLY_PENSTOCK_HAS.split())

READ_ONLY_HERE = (
    "listener.security.protocol.map",
    "listeners",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.key.password",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.truststore.location",
    "ssl.truststore.type",
)
"""Settings that Kafka can change at run time."""

READ_ONLY_THERE = (
    "auto.leader.rebalance.enable",
    "group.consumer.assignors",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.max.size",
    "group.consumer.migration.policy",
    "group.consumer.session.timeout.ms",
    "group.initial.rebalance.delay.ms",
    "group.max.session.timeout.ms",
    "group.max.size",
    "group.min.session.timeout.ms",
    "log.cleaner.enable",
    "offset.metadata.max.bytes",
    "offsets.retention.check.interval.ms",
    "offsets.retention.minutes",
    "replica.lag.time.max.ms",
)
"""Settings that Kafka changes only with a restart."""

VALUES: tuple[tuple[str, str, str], ...] = (
    ("advertised.listeners.value", "<place>", "None"),
    ("advertised.listeners.config_source", "4", "5"),
    (
        "advertised.listeners.synonyms.0",
        "{'name': 'advertised.listeners', 'value': '<place>', 'source': 4}",
        ABSENT,
    ),
    ("broker.id.config_source", "4", "5"),
    ("broker.id.synonyms.0.source", "4", "5"),
    ("broker.id.synonyms.1.name", "broker.id", "node.id"),
    ("broker.id.synonyms.1.value", "-1", "1"),
    ("group.consumer.heartbeat.interval.ms.value", "5000", "1000"),
    ("group.consumer.heartbeat.interval.ms.synonyms.0.value", "5000", "1000"),
    ("group.consumer.min.heartbeat.interval.ms.value", "5000", "1000"),
    ("group.consumer.min.heartbeat.interval.ms.synonyms.0.value", "5000", "1000"),
    ("group.consumer.max.size.value", "2147483647", "10000"),
    ("group.consumer.max.size.synonyms.0.value", "2147483647", "10000"),
    ("group.max.size.value", "2147483647", "10000"),
    ("group.max.size.synonyms.0.value", "2147483647", "10000"),
    (
        "listener.security.protocol.map.value",
        "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "PLAINTEXT:PLAINTEXT,SSL:SSL,TLS:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
    ),
    ("listener.security.protocol.map.config_source", "4", "5"),
    (
        "listener.security.protocol.map.synonyms.0.value",
        "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "PLAINTEXT:PLAINTEXT,SSL:SSL,TLS:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
    ),
    ("listener.security.protocol.map.synonyms.0.source", "4", "5"),
    (
        "listener.security.protocol.map.synonyms.1",
        "{'name': 'listener.security.protocol.map', *'source': 5}",
        ABSENT,
    ),
    ("listener.security.protocol.map.config_type", "2", "7"),
    ("log.dir.config_source", "5", "4"),
    ("log.dir.synonyms.0.name", "log.dir", "log.dirs"),
    ("log.dir.synonyms.0.source", "5", "4"),
    ("log.dir.synonyms.1", ABSENT, "{'name': 'log.dir', 'value': '<place>', 'source': 5}"),
    ("log.dir.synonyms.2", ABSENT, "{'name': 'log.dirs', 'value': '<place>', 'source': 5}"),
    ("log.dir.config_type", "7", "2"),
    ("log.dirs.synonyms.1", ABSENT, "{'name': 'log.dirs', 'value': '<place>', 'source': 5}"),
    ("log.dirs.synonyms.2", ABSENT, "{'name': 'log.dir', 'value': '<place>', 'source': 5}"),
    ("max.connections.value", "2147483647", "10000"),
    ("max.connections.synonyms.0.value", "2147483647", "10000"),
    ("node.id.config_source", "4", "5"),
    ("node.id.synonyms.0.source", "4", "5"),
    ("node.id.synonyms.1", ABSENT, "{'name': 'broker.id', 'value': '1', 'source': 5}"),
    ("offsets.topic.segment.bytes.value", "104857600", "8388608"),
    ("offsets.topic.segment.bytes.synonyms.0.value", "104857600", "8388608"),
    ("queued.max.request.bytes.value", "-1", "268435456"),
    ("queued.max.request.bytes.synonyms.0.value", "-1", "268435456"),
    ("ssl.keystore.type.value", "JKS", "PEM"),
    ("ssl.keystore.type.synonyms.0.value", "JKS", "PEM"),
    ("ssl.truststore.type.value", "JKS", "PEM"),
    ("ssl.truststore.type.synonyms.0.value", "JKS", "PEM"),
)
"""Field, Kafka's value, Penstock's value."""
