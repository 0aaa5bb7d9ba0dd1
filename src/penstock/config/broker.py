"""BrokerConfig: the typed form of a broker's settings, one small part for each part of the broker.

`BrokerConfig` holds the given texts and, built from them, the typed parts. Code receives its part, never the
whole. A change at run time makes a new `BrokerConfig`.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final, NamedTuple

from penstock.config.broker_settings import EMBEDDED_STORE, LISTENER_PREFIX, find_setting
from penstock.config.groups import GroupConfig
from penstock.config.layers import NO_SETTINGS, NOTHING_GIVEN, GivenSettings, part_of, value_of
from penstock.config.listeners import (
    Address,
    Listener,
    SecurityProtocol,
    parse_http,
    parse_listeners,
)
from penstock.config.topic import TopicConfig
from penstock.errors import ConfigError
from penstock.types import NodeId

REPLICATION_FACTOR_UNSET: Final = -1


class ClientAuth(StrEnum):
    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class NodeConfig(NamedTuple):
    node_id: NodeId
    rack: str | None
    data_dir: str
    metadata_store: str = EMBEDDED_STORE

    @property
    def is_standalone(self) -> bool:
        """Whether the broker keeps its own metadata and is the only broker."""
        return self.metadata_store == EMBEDDED_STORE


class TopicCreationConfig(NamedTuple):
    partitions_default: Annotated[int, "num.partitions"]
    replication_factor_default: int
    """-1: three, or as many as there are registered brokers."""
    auto_create: Annotated[bool, "auto.create.topics.enable"]
    delete_enabled: Annotated[bool, "delete.topic.enable"]


class ReplicationConfig(NamedTuple):
    lag_ms_max: Annotated[int, "replica.lag.time.max.ms"]
    auto_balance: Annotated[bool, "auto.balance"]
    auto_leader_rebalance: Annotated[bool, "auto.leader.rebalance.enable"]
    imbalance_percentage_max: Annotated[int, "leader.imbalance.per.broker.percentage"]
    """Percentage of the partitions a broker is preferred to lead that other brokers may lead."""
    is_rack_aware: bool
    """Whether consumers are redirected to a replica in their rack."""
    copied_bytes_per_second_max: Annotated[int, "follower.replication.throttled.rate"]
    """Limit on copying replicas that a reassignment adds on this broker."""


class NetworkConfig(NamedTuple):
    request_bytes_max: Annotated[int, "socket.request.max.bytes"]
    request_bytes_in_flight_max: Annotated[int, "queued.max.request.bytes"]
    connections_max: Annotated[int, "max.connections"]
    connections_per_address_max: Annotated[int, "max.connections.per.ip"]
    connection_idle_ms_max: Annotated[int, "connections.max.idle.ms"]
    """-1 never closes idle connections."""


class FetchConfig(NamedTuple):
    fetch_bytes_max: Annotated[int, "fetch.max.bytes"]
    sessions_max: Annotated[int, "max.incremental.fetch.session.cache.slots"]


class LogConfig(NamedTuple):
    """Settings that all logs of a broker share; settings that a topic can override are in TopicConfig."""

    retention_check_ms: Annotated[int, "log.retention.check.interval.ms"]
    producer_expiry_ms: Annotated[int, "producer.id.expiration.ms"]


class CleanerConfig(NamedTuple):
    """Settings of log compaction."""

    is_enabled: Annotated[bool, "log.cleaner.enable"]
    backoff_ms: Annotated[int, "log.cleaner.backoff.ms"]
    memory_bytes: Annotated[int, "log.cleaner.dedupe.buffer.size"]
    bytes_per_second_max: Annotated[float, "log.cleaner.io.max.bytes.per.second"]


class TlsConfig(NamedTuple):
    keystore_path: str
    """PEM file with the private key and the certificate chain."""
    key_password: str | None
    truststore_path: str | None
    client_auth: ClientAuth
    versions: tuple[str, ...]


class BrokerConfig(NamedTuple):
    given: GivenSettings
    insecure: bool
    node: NodeConfig
    listeners: tuple[Listener, ...]
    http: Address
    http_tokens_path: str | None
    """The file with the tokens of users who may make changes over HTTP."""
    tls: Mapping[str, TlsConfig]
    """By listener name, for the listeners that use TLS."""
    topic_creation: TopicCreationConfig
    replication: ReplicationConfig
    network: NetworkConfig
    fetch: FetchConfig
    log: LogConfig
    cleaner: CleanerConfig
    groups: GroupConfig
    topic_defaults: TopicConfig
    warnings: tuple[str, ...] = ()
    """Warnings for the operator about the given settings."""

    @classmethod
    def of(cls, given: GivenSettings = NOTHING_GIVEN, *, insecure: bool = False) -> "BrokerConfig":
        """Build the config. ConfigError if the listeners are invalid. `checks` verifies the other
        constraints.
        """
        listeners, http = _addresses(given, insecure=insecure)
        return cls(
            given=given,
            insecure=insecure,
            node=_node(given),
            listeners=listeners,
            http=http,
            http_tokens_path=value_of("http.tokens.file", given) or None,
            tls=_tls(listeners, given),
            topic_creation=part_of(
                TopicCreationConfig, given, replication_factor_default=_replication_factor(given)
            ),
            replication=part_of(
                ReplicationConfig, given, is_rack_aware=bool(value_of("replica.selector.class", given))
            ),
            network=part_of(NetworkConfig, given),
            fetch=part_of(FetchConfig, given),
            log=part_of(LogConfig, given),
            cleaner=part_of(CleanerConfig, given),
            groups=GroupConfig.of(given),
            topic_defaults=TopicConfig.defaults(given),
        )

    def with_dynamic(
        self, *, own: Mapping[str, str] = NO_SETTINGS, cluster: Mapping[str, str] = NO_SETTINGS
    ) -> "BrokerConfig":
        """The same broker with other dynamic settings, its own and the cluster-wide ones.

        The warnings name values that have no effect because they cannot be parsed: an earlier release, which
        did not know the setting, stored them unchecked.
        """
        warnings: list[str] = []
        given = GivenSettings(self.given.static, _parsed(cluster, warnings), _parsed(own, warnings))
        return BrokerConfig.of(given, insecure=self.insecure)._replace(warnings=tuple(warnings))


def _parsed(texts: Mapping[str, str], warnings: list[str]) -> Mapping[str, str]:
    kept = {}
    for name, text in texts.items():
        setting = find_setting(name)
        try:
            if setting is not None:
                setting.parse(text)
        except ConfigError as problem:
            warnings.append(f"{problem}: stored by an earlier release, and passed over")
        else:
            kept[name] = text
    return MappingProxyType(kept)


def _addresses(given: GivenSettings, *, insecure: bool) -> tuple[tuple[Listener, ...], Address]:
    """The Kafka listeners and the HTTP address. All problems of both are reported together."""
    problems: list[str] = []
    listeners: tuple[Listener, ...] = ()
    http = Address("", 0)
    try:
        listeners = parse_listeners(
            value_of("listeners", given),
            value_of("advertised.listeners", given) or (),
            value_of("listener.security.protocol.map", given),
            insecure=insecure,
        )
    except ConfigError as problem:
        problems.append(str(problem))
    try:
        http = parse_http(value_of("http.listener", given), insecure=insecure)
    except ConfigError as problem:
        problems.append(str(problem))
    if problems:
        raise ConfigError("\n".join(problems))
    return listeners, http


def _node(given: GivenSettings) -> NodeConfig:
    return NodeConfig(
        node_id=NodeId(value_of("node.id", given)),
        rack=value_of("broker.rack", given) or None,
        data_dir=value_of("log.dirs", given)[0],
        metadata_store=value_of("metadata.store", given),
    )


def _replication_factor(given: GivenSettings) -> int:
    """The default replication factor. Where it is not set, a cluster chooses one that survives the loss of a
    disk.
    """
    name = "default.replication.factor"
    is_chosen = any(name in layer for layer in given)
    is_standalone = _node(given).is_standalone
    factor = value_of(name, given) if is_chosen or is_standalone else REPLICATION_FACTOR_UNSET
    assert isinstance(factor, int)
    return factor


def _tls(listeners: tuple[Listener, ...], given: GivenSettings) -> Mapping[str, TlsConfig]:
    return MappingProxyType(
        {
            listener.name: _tls_of(f"{LISTENER_PREFIX}{listener.name.lower()}.", given)
            for listener in listeners
            if listener.protocol is SecurityProtocol.SSL
        }
    )


def _tls_of(prefix: str, given: GivenSettings) -> TlsConfig:
    return TlsConfig(
        keystore_path=value_of(f"{prefix}ssl.keystore.location", given) or "",
        key_password=value_of(f"{prefix}ssl.key.password", given),
        truststore_path=value_of(f"{prefix}ssl.truststore.location", given) or None,
        client_auth=ClientAuth(value_of(f"{prefix}ssl.client.auth", given)),
        versions=value_of(f"{prefix}ssl.enabled.protocols", given),
    )
