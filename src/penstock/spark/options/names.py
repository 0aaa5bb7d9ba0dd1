"""The names of options: Penstock's, Spark's, and those of Kafka's clients.

Spark passes a source every option of the query, in lower case. An unknown name is most often a misspelt
one, and ignoring it (`startingOffset`) can lose a user's data. So an unknown name is an error that names a
similar known option.

Rule: Every option of the official Kafka source is listed here, whether it has an effect or not, because
      changing the format's name shall be the whole migration.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from penstock.errors import ConfigError

KAFKA_PREFIX: Final = "kafka."

CONNECTION_OPTIONS: Final = ("bootstrap",)
PAYLOAD_OPTIONS: Final = ("valueFormat", "valueSchema", "valueMessage", "badRows", "deadLetterTopic")
READ_OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    *PAYLOAD_OPTIONS,
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    "mirrorOffsets",
    "queryName",
    # Options of the official source that have no effect here: our client has its own retry rules.
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "partition.metadata.cache.ttl.ms",
)
WRITE_OPTIONS: Final = (*CONNECTION_OPTIONS, "topic", "includeHeaders", "includeTimestamp")

# Options that Spark itself adds to a query, or reads from its options.
_SPARK: Final = frozenset(
    {
        "path",
        "paths",
        "checkpointlocation",
        "queryname",
        "outputmode",
        "mode",
        "truncate",
        "numrows",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
    }
)

# Settings of Kafka's consumers and producers that have an effect here.
KAFKA_OPTIONS: Final = (
    "bootstrap.servers",
    "client.id",
    "request.timeout.ms",
    "default.api.timeout.ms",
    "security.protocol",
    "ssl.protocol",
    "ssl.key.password",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.endpoint.identification.algorithm",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
)
KAFKA_READ_OPTIONS: Final = ("group.id", "isolation.level", "fetch.max.bytes", "max.partition.fetch.bytes")
KAFKA_WRITE_OPTIONS: Final = ("acks", "compression.type", "enable.idempotence", "max.request.size")

# Settings of Kafka's clients without an effect here: they tune a client that is not used. They are accepted
# so that queries can be moved without changes.
_KAFKA_WITHOUT_EFFECT: Final = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.include.jmx.reporter",
        "batch.size",
        "buffer.memory",
        "check.crcs",
        "client.dns.lookup",
        "client.rack",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "connections.max.idle.ms",
        "delivery.timeout.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "internal.leave.group.on.close",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.ignore.keys",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "security.providers",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
        "ssl.engine.factory.class",
        "ssl.keymanager.algorithm",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "transaction.timeout.ms",
    }
)

_BYTES: Final = "keys and values are bytes here; use DataFrame operations to read them"
_KAFKA_REJECTED: Final = {
    "auto.offset.reset": "where a query starts is said by startingOffsets; later it goes on where it was",
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "key.serializer": _BYTES,
    "value.serializer": _BYTES,
    "enable.auto.commit": "Spark's checkpoint holds the position; a group of the query's name mirrors it",
    "interceptor.classes": "there is no Java client whose records could be intercepted",
    "transactional.id": "a task has no transactions: what it sends again after a failure is written again",
    "partitioner.class": "keys choose partitions as with Kafka's own; give a column partition to choose",
}
_SASL_REASON: Final = "SASL is not supported yet; use security.protocol SSL, with a client certificate"


def check_names(options: Iterable[str], known: tuple[str, ...], kafka: tuple[str, ...]) -> None:
    """ConfigError for the first name that is not a known option."""
    ours = {name.lower(): name for name in known}
    for name in options:
        lower = name.lower()
        if lower.startswith(KAFKA_PREFIX):
            _check_kafka_name(lower.removeprefix(KAFKA_PREFIX), kafka)
        elif lower not in ours and lower not in _SPARK:
            everything = {
                **ours,
                **{KAFKA_PREFIX + each: KAFKA_PREFIX + each for each in (*KAFKA_OPTIONS, *kafka)},
            }
            raise ConfigError(f"there is no option {name}{_nearest(lower, everything)}")


def _check_kafka_name(name: str, kafka: tuple[str, ...]) -> None:
    if name.startswith("sasl."):
        raise ConfigError(f"option {KAFKA_PREFIX}{name}: {_SASL_REASON}")
    if name in _KAFKA_REJECTED:
        raise ConfigError(f"option {KAFKA_PREFIX}{name} is not supported: {_KAFKA_REJECTED[name]}")
    known = {*KAFKA_OPTIONS, *KAFKA_READ_OPTIONS, *KAFKA_WRITE_OPTIONS, *_KAFKA_WITHOUT_EFFECT}
    if name not in known:
        near = {each: KAFKA_PREFIX + each for each in (*KAFKA_OPTIONS, *kafka)}
        raise ConfigError(
            f"option {KAFKA_PREFIX}{name} is no setting of Kafka's clients{_nearest(name, near)}"
        )


def _nearest(name: str, names: Mapping[str, str]) -> str:
    near = get_close_matches(name, names, n=1, cutoff=0.75)
    return f"; did you mean {names[near[0]]}?" if near else "; docs/spark.md lists them"
