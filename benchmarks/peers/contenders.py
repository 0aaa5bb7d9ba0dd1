"""The contenders: each peer with its recommended settings, and with durability equal to Penstock's.

Every setting that is not a default stands here with its reason; the report repeats them. What a client does
differently stands at the top of its module in `clients/`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.servers import kafka, nats, penstock, rabbitmq, redis
from benchmarks.peers.servers.process import Server

Start = Callable[[Path, Sequence[str]], AbstractContextManager[Server]]
CLIENTS = "benchmarks.peers.clients"
ON_DISK = "on disk"
IN_CACHE = "in the page cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    missing: Callable[[], str | None]
    """The reason why it cannot be had on this machine, with the remedy."""
    version: Callable[[], str]
    speaks_kafka: bool = False
    """Whether Kafka's own Java tools can drive it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    name: str
    peer: Peer
    acknowledged: str
    """Where a record is when a producer gets its acknowledgement."""
    why: str
    """The reasons for the settings, and what else a reader has to know."""
    settings: tuple[str, ...] = ()
    """What is set in the server's own configuration."""
    client: str
    start: Start
    start_cluster: Start
    cluster_note: str
    """What three replicas mean."""
    fails_over: bool = True

    @property
    def is_durable(self) -> bool:
        return self.acknowledged == ON_DISK

    def as_json(self, version: str | None) -> dict[str, Any]:
        return {
            "name": self.name,
            "peer": self.peer.name,
            "version": version,
            "acknowledged": self.acknowledged,
            "settings": list(self.settings),
            "why": self.why,
            "three_replicas": self.cluster_note,
        }


PENSTOCK = Peer(name="penstock", missing=penstock.missing, version=penstock.version, speaks_kafka=True)
KAFKA = Peer(name="kafka", missing=kafka.missing, version=kafka.version, speaks_kafka=True)
NATS = Peer(name="nats", missing=nats.missing, version=nats.version)
RABBITMQ = Peer(name="rabbitmq", missing=rabbitmq.missing, version=rabbitmq.version)
REDIS = Peer(name="redis", missing=redis.missing, version=redis.version)


def _penstock(name: str, **options: Any) -> Contender:
    return Contender(name=name, peer=PENSTOCK, client=f"{CLIENTS}.kafka", start=penstock.running, **options)


def _kafka(name: str, **options: Any) -> Contender:
    return Contender(
        name=name,
        peer=KAFKA,
        client=f"{CLIENTS}.kafka",
        start=kafka.running,
        start_cluster=kafka.running_cluster,
        cluster_note="three nodes, each broker and controller; acks=all, min.insync.replicas=2",
        **options,
    )


def _nats(name: str, **options: Any) -> Contender:
    return Contender(
        name=name,
        peer=NATS,
        client=f"{CLIENTS}.nats",
        start=nats.running,
        start_cluster=nats.running_cluster,
        cluster_note="three servers, streams with three replicas",
        **options,
    )


def _redis(name: str, **options: Any) -> Contender:
    return Contender(
        name=name,
        peer=REDIS,
        client=f"{CLIENTS}.redis",
        start=redis.running,
        start_cluster=redis.running_cluster,
        cluster_note="a primary and two replicas; the client adds WAIT 1 to each pipeline. So an acknowledged"
        " record is in the memory of two. Only Sentinel lets replicas take over, and none is started here",
        fails_over=False,
        **options,
    )


CONTENDERS: tuple[Contender, ...] = (
    _penstock(
        "penstock-before-ack",
        acknowledged=ON_DISK,
        why="the defaults: log.flush.policy=before_ack, and only what is on disk is shown. Threads of the"
        " kernel sync its files: the CPU that this takes, about 50 µs a sync, is not in that of the server",
        start_cluster=penstock.running_cluster,
        cluster_note="three brokers and etcd; acks=all, min.insync.replicas=2, each copy on disk",
    ),
    _penstock(
        "penstock-os",
        acknowledged=IN_CACHE,
        settings=("log.flush.policy=os",),
        why="what Kafka does by default: the operating system writes when it likes",
        start_cluster=penstock.running_cluster,
        cluster_note="three brokers and etcd; acks=all, min.insync.replicas=2, each copy in the page cache",
    ),
    _kafka(
        "kafka-defaults",
        acknowledged=IN_CACHE,
        why="the defaults, with the Java options of its start script (heap 1 GB). Kafka's documentation"
        " advises against flushing by the broker and trusts in replicas instead",
    ),
    _kafka(
        "kafka-flush",
        acknowledged=ON_DISK,
        settings=("log.flush.interval.messages=1",),
        why="equal durability: Kafka flushes after each append, before it acknowledges",
    ),
    _nats(
        "nats-defaults",
        acknowledged=IN_CACHE,
        why="the defaults: JetStream with file storage, flushed every two minutes (sync_interval)",
    ),
    _nats(
        "nats-always",
        acknowledged=ON_DISK,
        settings=("sync_interval: always",),
        why="equal durability: JetStream flushes each write before it acknowledges",
    ),
    Contender(
        name="rabbitmq-quorum",
        peer=RABBITMQ,
        acknowledged=ON_DISK,
        why="the defaults: a quorum queue writes its log to disk before it confirms. To read is to"
        " acknowledge and removes the record, which is more than the others' readers do",
        client=f"{CLIENTS}.quorum",
        start=rabbitmq.running_queues,
        start_cluster=rabbitmq.running_queues_cluster,
        cluster_note="three nodes, queues with three members",
    ),
    Contender(
        name="rabbitmq-streams",
        peer=RABBITMQ,
        acknowledged=IN_CACHE,
        why="the defaults. Streams never flush before they confirm, and no setting makes them: there is no"
        " form with equal durability",
        client=f"{CLIENTS}.streams",
        start=rabbitmq.running_streams,
        start_cluster=rabbitmq.running_streams_cluster,
        cluster_note="three nodes, streams with three replicas",
    ),
    _redis(
        "redis-everysec",
        acknowledged=IN_CACHE,
        settings=("appendfsync everysec",),
        why="the append-only file with the policy that Redis recommends: a flush each second. Every record"
        " also stays in memory",
    ),
    _redis(
        "redis-always",
        acknowledged=ON_DISK,
        settings=("appendfsync always",),
        why="equal durability: Redis flushes before it replies, once for all commands that it has read",
    ),
)
NAMES = tuple(contender.name for contender in CONTENDERS)
PEERS = tuple(dict.fromkeys(contender.peer.name for contender in CONTENDERS))


def chosen(names: Sequence[str]) -> tuple[Contender, ...]:
    """Contenders with one of these names, or of one of these peers; all without a name."""
    if not names:
        return CONTENDERS
    return tuple(each for each in CONTENDERS if each.name in names or each.peer.name in names)
