"""Plan of a local cluster: addresses and folders, computed before any process starts.

    DIR/cluster.json              record: DIR is a cluster, its number of brokers, etcd's ports
    DIR/etcd/, etcd.log, etcd.pid
    DIR/broker-N/                 the data directory of node N, with penstock.log and penstock.pid

Rule 1: node N, from 0, listens on the given ports plus N. etcd keeps its previous ports if they are free.
Rule 2: an existing cluster continues: brokers may be added to it, and none can be left out by mistake.
"""

import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.errors import ConfigError

HOST: Final = "127.0.0.1"
RECORD_FILE: Final = "cluster.json"
RECORD_FORMAT: Final = 1
BROKERS_DEFAULT: Final = 3
PORT_MAX: Final = 65_535


class LocalClusterOptions(NamedTuple):
    """Options of `cluster up`."""

    folder: str
    brokers: int | None
    """None: the existing brokers, or three."""
    kafka_port: int
    http_port: int
    settings: tuple[str, ...] = ()
    """Settings of every broker, as "key=value"."""


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of cluster.json."""

    format: int = RECORD_FORMAT
    brokers: int
    etcd_ports: tuple[int, int]


class LocalBroker(NamedTuple):
    id: int
    folder: str
    kafka_port: int
    http_port: int
    settings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"node {self.id}"

    @property
    def kafka(self) -> str:
        return f"{HOST}:{self.kafka_port}"

    @property
    def http(self) -> str:
        return f"{HOST}:{self.http_port}"

    @property
    def log_path(self) -> str:
        return f"{self.folder}/penstock.log"

    @property
    def pid_path(self) -> str:
        return f"{self.folder}/penstock.pid"

    def command(self, store: str) -> list[str]:
        return [
            *(sys.executable, "-m", "penstock", "serve"),
            *("--data-dir", self.folder, "--node-id", str(self.id)),
            *("--kafka", self.kafka, "--http", self.http, "--metadata", store),
            *(word for setting in self.settings for word in ("--set", setting)),
        ]


class LocalEtcd(NamedTuple):
    program: str
    folder: str
    """Folder of the cluster."""
    client_port: int
    peer_port: int

    @property
    def address(self) -> str:
        """Return the address in the form of `--metadata`."""
        return f"etcd://{HOST}:{self.client_port}"

    @property
    def log_path(self) -> str:
        return f"{self.folder}/etcd.log"

    @property
    def pid_path(self) -> str:
        return f"{self.folder}/etcd.pid"

    def command(self) -> list[str]:
        client, peer = f"http://{HOST}:{self.client_port}", f"http://{HOST}:{self.peer_port}"
        flags = {
            "--name": "penstock",
            "--data-dir": f"{self.folder}/etcd",
            "--listen-client-urls": client,
            "--advertise-client-urls": client,
            "--listen-peer-urls": peer,
            "--initial-advertise-peer-urls": peer,
            "--initial-cluster": f"penstock={peer}",
            "--auto-compaction-mode": "periodic",
            "--auto-compaction-retention": "1h",
            "--log-level": "warn",
        }
        return [self.program, *(word for flag in flags.items() for word in flag)]


class LocalClusterPlan(NamedTuple):
    folder: str
    nodes: tuple[LocalBroker, ...]
    etcd: LocalEtcd

    @property
    def bootstrap(self) -> str:
        return ",".join(node.kafka for node in self.nodes)

    @property
    def record(self) -> ClusterRecord:
        return ClusterRecord(brokers=len(self.nodes), etcd_ports=(self.etcd.client_port, self.etcd.peer_port))


def nodes_of(options: LocalClusterOptions, known: ClusterRecord | None) -> tuple[LocalBroker, ...]:
    """Return the brokers; raise ConfigError if the options cannot be met."""
    count = _count(options, known)
    _require_ports(options, count)
    return tuple(
        LocalBroker(
            number,
            f"{options.folder}/broker-{number}",
            options.kafka_port + number,
            options.http_port + number,
            options.settings,
        )
        for number in range(count)
    )


def _count(options: LocalClusterOptions, known: ClusterRecord | None) -> int:
    there = 0 if known is None else known.brokers
    if options.brokers is None:
        return there or BROKERS_DEFAULT
    if options.brokers < there:
        raise ConfigError(
            f"the cluster in {options.folder} has {there} brokers, and what they hold would be missing with "
            f"{options.brokers}: leave out --brokers, or choose another folder with --data-dir"
        )
    return options.brokers


def _require_ports(options: LocalClusterOptions, count: int) -> None:
    kafka, http = (range(first, first + count) for first in (options.kafka_port, options.http_port))
    for option, ports in (("--kafka-port", kafka), ("--http-port", http)):
        if ports[-1] > PORT_MAX:
            raise ConfigError(
                f"{option} {ports[0]}: node {count - 1} would listen on {ports[-1]}, which is no port"
            )
    if shared := set(kafka) & set(http):
        raise ConfigError(
            f"port {min(shared)} would be used both for Kafka and for HTTP: "
            f"keep --kafka-port and --http-port at least {count} apart"
        )


def ports_of(nodes: Sequence[LocalBroker]) -> set[int]:
    return {port for node in nodes for port in (node.kafka_port, node.http_port)}
