"""Declarations of broker settings: Kafka's, and the few of our own.

Most of them are the defaults of topics that have no override. Those are derived from the topics'
declarations, so that a default or a bound is written down once. They can be changed while the broker runs; of
the other settings only those whose value is read again at each use.
"""

from penstock.config.group_settings import GROUP_SETTINGS, OFFSET_SETTINGS
from penstock.config.setting import ConfigType, Setting, SettingRule, by_name
from penstock.config.topic_settings import TOPIC_SETTINGS
from penstock.limits import (
    CLEANER_BACKOFF_MS,
    CLEANER_MEMORY_BYTES,
    CLEANER_MEMORY_BYTES_MIN,
    CONNECTION_IDLE_MS_MAX,
    CONNECTIONS_MAX,
    FETCH_BYTES_MAX,
    FETCH_SESSIONS_MAX,
    INT_MAX,
    LONG_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    PRODUCER_EXPIRY_MS,
    REPLICA_LAG_MS_MAX,
    REPLICATION_FACTOR_MAX,
    REQUEST_BYTES_IN_FLIGHT_MAX,
    REQUEST_BYTES_MAX,
    RETENTION_CHECK_MS,
)

BOOLEAN, STRING, INT, LONG = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
LIST, PASSWORD, DOUBLE = ConfigType.LIST, ConfigType.PASSWORD, ConfigType.DOUBLE

_DOUBLE_MAX = 1.7976931348623157e308

# Monitoring tools take this for the version of Kafka that they are connected to.
PROTOCOL_VERSION = "4.2"

ONE_CLEANER = "none: one process cleans one log at a time"

EMBEDDED_STORE = "embedded"
ETCD_SCHEME = "etcd://"

LISTENER_PREFIX = "listener.name."
"""Prefix of a setting for one listener: `listener.name.<name>.ssl.keystore.location`."""

_NODE = (
    Setting(
        "node.id",
        INT,
        1,
        "The number of this broker, unique in its cluster.",
        minimum=0,
        synonyms=("broker.id",),
    ),
    Setting("broker.id", INT, 1, "Another name of node.id.", minimum=0, synonyms=("node.id",)),
    Setting("broker.rack", STRING, None, "Where this broker stands; replicas are spread over racks."),
    Setting(
        "log.dirs",
        LIST,
        ("./penstock-data",),
        "The data directory: logs and metadata.",
        rule=SettingRule(lambda paths: len(paths) == 1, "one directory (several are not supported yet)"),
        synonyms=("log.dir",),
    ),
    Setting(
        "log.dir",
        STRING,
        "./penstock-data",
        "Another name of log.dirs.",
        rule=SettingRule(bool, "a directory"),
        synonyms=("log.dirs",),
    ),
    Setting(
        "metadata.store",
        STRING,
        EMBEDDED_STORE,
        "Where topics and settings are kept: 'embedded' is a file in the data directory of a broker that is "
        "alone, etcd://host:port,host:port[/root] what the brokers of a cluster share. A password in it is "
        "not shown.",
        rule=SettingRule(
            lambda store: store == EMBEDDED_STORE or store.startswith(ETCD_SCHEME),
            f"'{EMBEDDED_STORE}' or {ETCD_SCHEME}host:port,...",
        ),
    ),
    Setting(
        "inter.broker.protocol.version",
        STRING,
        PROTOCOL_VERSION,
        "The version of Kafka that tools should take this broker for.",
        allowed=(PROTOCOL_VERSION,),
    ),
)

_LISTENERS = (
    Setting(
        "listeners",
        LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Where clients connect: NAME://host:port, separated by commas; port 0 takes any free port.",
        rule=SettingRule(bool, "a list of NAME://host:port"),
    ),
    Setting(
        "advertised.listeners",
        LIST,
        None,
        "What clients are told to connect to, by listener name, where it differs from listeners.",
    ),
    Setting(
        "listener.security.protocol.map",
        LIST,
        (
            "PLAINTEXT:PLAINTEXT",
            "SSL:SSL",
            "TLS:SSL",
            "SASL_PLAINTEXT:SASL_PLAINTEXT",
            "SASL_SSL:SASL_SSL",
        ),
        "The protocol of each listener name: PLAINTEXT or SSL.",
    ),
    Setting(
        "http.listener",
        STRING,
        "127.0.0.1:8080",
        "Where health, metrics, groups and the cluster are served over HTTP.",
    ),
    Setting(
        "http.tokens.file",
        STRING,
        None,
        "A file with the tokens that requests need which change something over HTTP: on each line the "
        "SHA-256 of a token in hexadecimal, and a name. Without it such requests are taken on a loopback "
        "address only. It is read again for each of them.",
    ),
)

# Each may also be set for one listener, as listener.name.<name>.<setting>.
_TLS = (
    Setting(
        "ssl.keystore.type", STRING, "PEM", "The form of the key and certificate file.", allowed=("PEM",)
    ),
    Setting(
        "ssl.keystore.location",
        STRING,
        None,
        "A PEM file with the broker's private key and its certificate chain.",
    ),
    Setting("ssl.key.password", PASSWORD, None, "The password of the private key, if it has one."),
    Setting(
        "ssl.truststore.type", STRING, "PEM", "The form of the trusted certificates' file.", allowed=("PEM",)
    ),
    Setting(
        "ssl.truststore.location",
        STRING,
        None,
        "A PEM file with the certificates that clients' certificates must lead to.",
    ),
    Setting(
        "ssl.client.auth",
        STRING,
        "none",
        "Whether a client must show a certificate.",
        allowed=("required", "requested", "none"),
    ),
    Setting(
        "ssl.enabled.protocols",
        LIST,
        ("TLSv1.2", "TLSv1.3"),
        "The versions of TLS that are accepted.",
        rule=SettingRule(
            lambda versions: bool(versions) and set(versions) <= {"TLSv1.2", "TLSv1.3"},
            "a list of TLSv1.2, TLSv1.3",
        ),
    ),
)

_TOPICS = (
    Setting(
        "num.partitions",
        INT,
        1,
        "The partitions of a topic that is created without saying how many.",
        minimum=1,
        maximum=PARTITIONS_PER_TOPIC_MAX,
    ),
    Setting(
        "default.replication.factor",
        INT,
        1,
        "The replicas of a topic that is created without saying how many. In a cluster where this is not "
        "set: three, or as many as there are registered brokers, running or not. A topic keeps that number "
        "when brokers join later, except the topics of the broker itself.",
        minimum=1,
        maximum=REPLICATION_FACTOR_MAX,
    ),
    Setting(
        "auto.create.topics.enable",
        BOOLEAN,
        True,
        "Whether asking for a topic that does not exist may create it.",
    ),
    Setting("delete.topic.enable", BOOLEAN, True, "Whether topics can be deleted."),
)

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

_REPLICATION = (
    Setting(
        "replica.selector.class",
        STRING,
        None,
        "Which replica consumers read. Without it the leader; with the one that is allowed the replica in "
        "the consumer's own rack (client.rack, broker.rack), if one is in sync there.",
        allowed=(RACK_AWARE,),
    ),
    Setting(
        "replica.lag.time.max.ms",
        LONG,
        REPLICA_LAG_MS_MAX,
        "A follower that has not had everything for so long is out of sync.",
        minimum=1000,
        dynamic=True,
    ),
    Setting(
        "auto.balance",
        BOOLEAN,
        True,
        "Whether brokers that join are given some of the replicas of others.",
        dynamic=True,
    ),
    Setting(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        True,
        "Whether partitions are given back to their preferred leaders.",
        dynamic=True,
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        INT,
        10,
        "How many percent of the partitions that a broker is preferred to lead others may lead.",
        minimum=0,
        maximum=100,
        dynamic=True,
    ),
    Setting(
        "follower.replication.throttled.rate",
        LONG,
        LONG_MAX,
        "Bytes per second that this broker copies at most of replicas that a reassignment gives to it. Those "
        "that are in sync are not held back.",
        minimum=1,
        dynamic=True,
    ),
    Setting(
        "leader.replication.throttled.rate",
        LONG,
        LONG_MAX,
        "Bytes per second that a leader sends at most to replicas that a reassignment adds.",
        minimum=1,
        dynamic=True,
        effect="none: the follower that receives them keeps to follower.replication.throttled.rate",
    ),
)

_NETWORK = (
    Setting(
        "socket.request.max.bytes",
        INT,
        REQUEST_BYTES_MAX,
        "The largest request; a client that announces more is disconnected.",
        minimum=1024,
    ),
    Setting(
        "queued.max.request.bytes",
        LONG,
        REQUEST_BYTES_IN_FLIGHT_MAX,
        "The bytes of all requests being received or answered; beyond it reading pauses.",
        minimum=1024,
    ),
    Setting(
        "max.connections",
        INT,
        CONNECTIONS_MAX,
        "The connections of all listeners together; more are closed at once.",
        minimum=1,
        dynamic=True,
    ),
    Setting(
        "max.connections.per.ip",
        INT,
        INT_MAX,
        "The connections from one address; more are closed at once.",
        minimum=1,
        dynamic=True,
    ),
    Setting(
        "connections.max.idle.ms",
        LONG,
        CONNECTION_IDLE_MS_MAX,
        "A connection without a request for so long is closed; -1 leaves it open.",
        minimum=-1,
    ),
    Setting(
        "fetch.max.bytes",
        INT,
        FETCH_BYTES_MAX,
        "The largest fetch reply, whatever the client asked for.",
        minimum=1024,
        maximum=FETCH_BYTES_MAX,
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        INT,
        FETCH_SESSIONS_MAX,
        "The fetch sessions kept; beyond it the longest unused makes room.",
        minimum=0,
    ),
)

_LOG = (
    Setting(
        "log.retention.check.interval.ms",
        LONG,
        RETENTION_CHECK_MS,
        "How often it is checked whether segments can be removed.",
        minimum=1,
    ),
    Setting(
        "producer.id.expiration.ms",
        INT,
        PRODUCER_EXPIRY_MS,
        "How long a partition remembers a producer that wrote nothing.",
        minimum=1,
        dynamic=True,
    ),
    Setting("log.retention.minutes", INT, None, "log.retention.ms in minutes; -1 is for ever.", minimum=-1),
    Setting("log.retention.hours", INT, 168, "log.retention.ms in hours; -1 is for ever.", minimum=-1),
    Setting("log.roll.hours", INT, 168, "log.roll.ms in hours.", minimum=1),
    Setting("log.roll.jitter.hours", INT, 0, "log.roll.jitter.ms in hours.", minimum=0),
    Setting(
        "log.flush.scheduler.interval.ms",
        LONG,
        LONG_MAX,
        "The value of log.flush.interval.ms while that is not set.",
        minimum=0,
    ),
)

_COMPACTION = (
    Setting(
        "log.cleaner.enable", BOOLEAN, True, "Whether compacted topics are cleaned at all.", dynamic=True
    ),
    Setting(
        "log.cleaner.backoff.ms",
        LONG,
        CLEANER_BACKOFF_MS,
        "How long to wait before looking again, when no log was worth cleaning.",
        minimum=0,
        dynamic=True,
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        CLEANER_MEMORY_BYTES,
        "The memory in which a cleaning keeps the keys it has seen, 27 to 64 bytes for each.",
        minimum=CLEANER_MEMORY_BYTES_MIN,
        dynamic=True,
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        _DOUBLE_MAX,
        "How fast a cleaning may read and write, both counted together.",
        minimum=1,
        dynamic=True,
    ),
    Setting(
        "log.cleaner.threads",
        INT,
        1,
        "The logs cleaned at once.",
        minimum=0,
        dynamic=True,
        effect=ONE_CLEANER,
    ),
    Setting(
        "log.cleaner.io.buffer.size",
        INT,
        512 * 1024,
        "The memory for reading and writing.",
        minimum=0,
        dynamic=True,
        effect="none: a cleaning reads and writes a mebibyte at a time",
    ),
    Setting(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        0.9,
        "How full the memory for keys may become.",
        minimum=0,
        dynamic=True,
        effect="none: three quarters, beyond which searching takes long",
    ),
)


def _topic_default(topic: Setting) -> Setting:
    """The broker setting that topics follow. If topics follow further settings, this one has no default
    itself.
    """
    name, *further = topic.synonyms
    return topic._replace(
        name=name,
        default=None if further else topic.default,
        doc=f"The value of {topic.name} for topics that do not set it.",
        synonyms=(),
        dynamic=True,
    )


_TOPIC_DEFAULTS = tuple(_topic_default(topic) for topic in TOPIC_SETTINGS.values() if topic.synonyms)

SECTIONS: tuple[tuple[str, tuple[Setting, ...]], ...] = (
    ("Node and data", _NODE),
    ("Listeners", _LISTENERS),
    ("TLS", _TLS),
    ("Topics", _TOPICS),
    ("Replication", _REPLICATION),
    ("Network and fetching", _NETWORK),
    ("Log", _LOG),
    ("Compaction", _COMPACTION),
    ("Consumer groups", GROUP_SETTINGS),
    ("Committed offsets", OFFSET_SETTINGS),
    ("Defaults of topics", _TOPIC_DEFAULTS),
)

BROKER_SETTINGS = by_name(setting for _, section in SECTIONS for setting in section)


def listener_and_setting(key: str) -> tuple[str | None, str]:
    """The listener that a key is for, or None if it is for all listeners; and the name of the setting."""
    if not key.startswith(LISTENER_PREFIX):
        return None, key
    listener, _, name = key.removeprefix(LISTENER_PREFIX).partition(".")
    return listener, name


def find_setting(key: str) -> Setting | None:
    """The declaration of a key, which may be a setting for one listener."""
    listener, name = listener_and_setting(key)
    setting = BROKER_SETTINGS.get(name)
    if listener is None or setting is None:
        return setting
    return setting._replace(name=key, synonyms=(name,)) if name.startswith("ssl.") else None
