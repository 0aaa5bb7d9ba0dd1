"""Every default that differs from Kafka's, and why; a test proves that the table is complete.

`NOT_IN_KAFKA` are settings that Kafka does not have, so their defaults cannot differ.
"""

from typing import NamedTuple


class KafkaDifference(NamedTuple):
    kafka: str
    reason: str
    ours: str = ""
    """Our default, where it is not a single value."""


_ACKNOWLEDGED = (
    "An acknowledged record is on disk. Kafka acknowledges what replicas hold in memory,"
    " which a loss of power can undo."
)
_LOCAL = "A broker just started is for this machine; opening it to others is a decision."
_FOLDER = "Records should not vanish when temporary files are cleared."
_FIRST = "The first broker needs no configuration to start."
_PEM = "Certificates come as PEM files from every tool; no Java is needed to make them."

KAFKA_DIFFERENCES = {
    "flush.policy": KafkaDifference("as os", _ACKNOWLEDGED),
    "log.flush.policy": KafkaDifference("as os", _ACKNOWLEDGED),
    "default.replication.factor": KafkaDifference(
        "1",
        "One lost disk loses nothing. A topic that is made while a broker is down gets a replica on it, too.",
        "1 alone; in a cluster 3, or as many as there are registered brokers",
    ),
    "min.insync.replicas": KafkaDifference(
        "1",
        "With 1, a leader that is left alone acknowledges what only its disk has.",
        "2 where there are three replicas, else 1",
    ),
    "listeners": KafkaDifference("PLAINTEXT://:9092", _LOCAL),
    "listener.security.protocol.map": KafkaDifference(
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "TLS is what most people call it.",
    ),
    "log.dirs": KafkaDifference("a folder for temporary files", _FOLDER),
    "log.dir": KafkaDifference("a folder for temporary files", _FOLDER),
    "node.id": KafkaDifference("none: must be set", _FIRST),
    "broker.id": KafkaDifference("none: must be set", _FIRST),
    "ssl.keystore.type": KafkaDifference("JKS", _PEM),
    "ssl.truststore.type": KafkaDifference("JKS", _PEM),
    "queued.max.request.bytes": KafkaDifference(
        "-1", "Without a limit, clients decide how much memory the broker needs."
    ),
    "max.connections": KafkaDifference(
        "2147483647", "Each connection costs memory and a file descriptor, of which there are fewer."
    ),
    "offsets.topic.segment.bytes": KafkaDifference(
        "104857600", "A start reads this topic; the segment being written is what compaction cannot shrink."
    ),
    "group.max.size": KafkaDifference(
        "2147483647", "A group is written as one record, so it cannot grow without limit."
    ),
    "group.consumer.max.size": KafkaDifference(
        "2147483647", "As group.max.size, so that groups can migrate."
    ),
    "group.consumer.heartbeat.interval.ms": KafkaDifference(
        "5000",
        "Members learn of a change when they report next: a rebalance is over in a second or two."
        " Groups of more than a thousand members report less often by themselves.",
    ),
    "group.consumer.min.heartbeat.interval.ms": KafkaDifference(
        "5000", "As group.consumer.heartbeat.interval.ms, of which it is Kafka's default too."
    ),
}

NOT_IN_KAFKA = frozenset(
    {
        "flush.policy",
        "log.flush.policy",
        "retention.topic.bytes",
        "log.retention.topic.bytes",
        "metadata.store",
        "auto.balance",
        "http.listener",
        "http.tokens.file",
        "group.consumer.rebalance.heartbeat.interval.ms",
        # Kafka 4 removed this setting; tools still read it to determine the version.
        "inter.broker.protocol.version",
    }
)
