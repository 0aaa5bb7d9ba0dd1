"""What a seed decides before the run: the cluster's size, its clients, and which faults happen when.

A plan is a value. Its faults are a numbered list, so that a failing plan can be made smaller by leaving
some out. Each client and fault draws from its own random numbers, so that the remaining ones behave as
before.

Every fifth seed is a single broker, whose plan is harsh to its log and its disk: small segments, few open
files, any flush policy, keyed records that are compacted. The other seeds are clusters.

Rule: A seed has a few kinds of faults, not all. If everything fails at once, clients reach few states.
"""

from collections.abc import Collection
from enum import StrEnum
from random import Random
from typing import Any, Final, NamedTuple

from penstock.config.topic import FlushPolicy
from penstock.limits import LONG_MAX
from penstock.metadata.cluster_image import GROUP_TOPIC
from penstock.sim.cluster.extras import NO_EXTRAS, NO_LIMIT, WITHOUT_OF_EXTRAS, Extras, draw_extras

# Names of parts that a failing plan may be run without, with the fields that turn them off.
WITHOUT: Final[dict[str, dict[str, Any]]] = {
    "members": {"members": 0},
    "careless": {"careless": 0},
    "readers": {"readers": 0},
    "repeats": {"repeats": 0.0},
    "cold-reads": {"cold_reads": 0.0},
    "topic-changes": {"changes_topics": False},
    "minimum-changes": {"changes_minimum": False},
    "leader-changes": {"changes_leaders": False},
    "extras": {"extras": NO_EXTRAS},
}
WITHOUT_NAMES: Final = (*WITHOUT, *WITHOUT_OF_EXTRAS)
WARM_UP_SECONDS: Final = 3.0
BROKER_COUNTS: Final = (1, 3, 4, 5)
SINGLE_BROKER_EVERY: Final = 5
DELETE_RETENTION_MS: Final = 1_000
"""delete.retention.ms of the coordinator's topic."""
SECONDS: Final = 60.0
SEGMENTS_GROW: Final = 3
PARTITIONS_OF_NEW_LOGS: Final = 24


class FaultKind(StrEnum):
    KILL = "kill"
    """Processes are killed; their disks lose nothing."""
    POWER = "power"
    """Machines lose power: unsynced data is lost, or torn."""
    BLACKOUT = "blackout"
    """All machines lose power at once."""
    DYING = "dying"
    """A machine first no longer reaches the others and then loses power. No other broker has what it
    accepted from clients in between.
    """
    WIPE = "wipe"
    """One disk is lost for good, once, where other replicas are in sync."""
    STOP = "stop"
    """A clean stop, as by an operator."""
    PAUSE = "pause"
    CLOCK = "clock"
    """The wall clock is wrong, by a minute or by an hour."""
    DRIFT = "drift"
    """All clocks of a machine run fast, or slow."""
    CUT = "cut"
    HALF_CUT = "half-cut"
    CUT_CLIENTS = "cut-clients"
    RESET = "reset"
    SLOW_NETWORK = "slow-network"
    LOSS = "loss"
    STORE_UNAVAILABLE = "store-unavailable"
    STORE_CUT = "store-cut"
    STORE_LOSES = "store-loses"
    STALE = "stale"
    """Some nodes receive events of the store late, although it replies to their requests."""
    AMBUSH = "ambush"
    """The next partition change reaches the store late, or its reply is lost, and a broker that it names
    has a fault meanwhile.
    """
    EXPIRE = "expire"
    COMPACT = "compact"
    DISK_FULL = "disk-full"
    SLOW_DISK = "slow-disk"
    SYNC_FAILS = "sync-fails"
    ROT = "rot"
    """A bit of a committed record flips on one platter, and the record may be read."""
    DEPOSE = "depose"
    """A leader is deposed and reinstated during a change of its ISR."""
    DELETION_CRASH = "deletion-crash"
    """All brokers lose power when a deletion of records is confirmed, or when a replica that missed one
    joins the ISR.
    """
    ISOLATE = "isolate"
    """A leader does not reach the other brokers for long. Clients and the metadata store reach it."""
    POWER_AT_CALL = "power-at-call"
    """The power of a single broker fails during a disk call, sometimes during its recovery."""
    SWAP = "swap"
    """A single broker ends, or loses power, while cleaned segments replace others."""
    NEW_LOG = "new-log"
    """A single broker is killed after it created a log, before the first flush, and then loses power."""
    FEW_FILES = "few-files"
    """A single broker may have only a few files open."""


KINDS_OF_EXTRAS: Final = frozenset(
    {FaultKind.ROT, FaultKind.DEPOSE, FaultKind.DELETION_CRASH, FaultKind.ISOLATE}
)
"""Kinds that only seeds with such an extra have. Their faults are numbered from FIRST_OF_EXTRAS on, from
FIRST_OF_DELETIONS on, or from FIRST_OF_ISOLATIONS on.
"""
FIRST_OF_EXTRAS: Final = 1_000
FIRST_OF_DELETIONS: Final = 2_000
FIRST_OF_ISOLATIONS: Final = 3_000
KINDS_OF_SINGLE_BROKERS: Final = frozenset(
    {FaultKind.POWER_AT_CALL, FaultKind.SWAP, FaultKind.NEW_LOG, FaultKind.FEW_FILES}
)
"""Kinds that only plans of a single broker have."""
_ENDINGS: Final = (FaultKind.KILL, FaultKind.POWER, FaultKind.POWER, FaultKind.POWER_AT_CALL, FaultKind.STOP)
_DISK_KINDS: Final = (
    FaultKind.DISK_FULL,
    FaultKind.SYNC_FAILS,
    FaultKind.FEW_FILES,
    FaultKind.NEW_LOG,
    FaultKind.SLOW_DISK,
    FaultKind.RESET,
)


class Fault(NamedTuple):
    number: int
    kind: FaultKind
    at: float
    seconds: float
    nodes: tuple[int, ...]
    """The affected nodes, the most affected one first."""

    def __str__(self) -> str:
        nodes = ",".join(map(str, self.nodes))
        return f"{self.number}: {self.kind} at {self.at:.1f} s for {self.seconds:g} s, nodes {nodes}"


class LogPlan(NamedTuple):
    """What a single broker's plan has beside that of a cluster."""

    flushes_at_intervals: bool
    """Without flushes before acknowledgements: flush.policy is interval, not os."""
    segment_bytes: int
    index_interval_bytes: int
    open_files_max: int
    delete_retention_ms: int
    max_compaction_lag_ms: int


class ClusterPlan(NamedTuple):
    seed: int
    brokers: int
    seconds: float
    topics: int
    partitions: int
    idempotent: int
    """The number of idempotent producers with acks=all."""
    careless: int
    """The number of producers with acks=1: their records may be lost, and then have to be truncated."""
    readers: int
    members: int
    in_flight: int
    pause_seconds: float
    """The pause between batches of a producer."""
    repeats: float
    """The probability that a batch is sent twice at once."""
    lag_ms: int
    segment_ms: int
    disk_seconds: float
    """The longest time that a disk job takes while the disk has no fault."""
    cold_reads: float
    changes_topics: bool
    changes_minimum: bool
    changes_leaders: bool
    """An operator moves leaderships back and forth."""
    store_seconds: float
    """The longest time that a request to the metadata store, or its reply, takes on its way."""
    faults: tuple[Fault, ...]
    extras: Extras = NO_EXTRAS
    log: LogPlan | None = None
    """None: a cluster."""

    @property
    def flush_policy(self) -> FlushPolicy:
        if self.extras.flushes_before_ack:
            return FlushPolicy.BEFORE_ACK
        return FlushPolicy.INTERVAL if self.log and self.log.flushes_at_intervals else FlushPolicy.OS

    @property
    def topic_names(self) -> tuple[str, ...]:
        return tuple(f"topic-{number}" for number in range(1, self.topics + 1))

    @property
    def compacted_topics(self) -> tuple[str, ...]:
        if not self.extras.compacts:
            return ()
        return (GROUP_TOPIC,) if self.log is None else self.topic_names[::2]

    @property
    def delete_retention_ms(self) -> int:
        return DELETE_RETENTION_MS if self.log is None else self.log.delete_retention_ms

    def segment_bytes_of_start(self, number: int) -> int | None:
        """The segment size of a process. None: the default.

        With compaction it changes from start to start, as an operator may change it. While all segments are
        full, no two of them fit into one when they are cleaned. After segments became larger, several are
        merged into one, and a process that ends meanwhile leaves some of them beside the one that replaces
        them.
        """
        if self.log is None:
            return None
        is_larger = self.extras.compacts and number % 2 == 0
        return self.log.segment_bytes * (SEGMENTS_GROW if is_larger else 1)

    @property
    def new_members(self) -> int:
        """The number of group members that use the consumer protocol (KIP-848)."""
        return 0 if self.extras.classic and self.extras.is_all_classic else self.members

    @property
    def store_delay(self) -> tuple[float, float]:
        return self.store_seconds / 5, self.store_seconds

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(range(1, self.brokers + 1))

    def with_faults(self, numbers: Collection[int]) -> "ClusterPlan":
        return self._replace(faults=tuple(fault for fault in self.faults if fault.number in numbers))

    def without(self, name: str) -> "ClusterPlan":
        """This plan without the part named in WITHOUT or WITHOUT_OF_EXTRAS."""
        smaller = self._replace(**WITHOUT.get(name, {}))
        if name in WITHOUT_OF_EXTRAS:
            smaller = smaller._replace(extras=self.extras.without(name))
        extras = smaller.extras
        kinds = (*_kinds_of_extras(extras), *_kinds_of_deletions(extras), *_kinds_of_isolations(extras))
        left = [fault for fault in smaller.faults if fault.kind not in KINDS_OF_EXTRAS or fault.kind in kinds]
        return smaller._replace(faults=tuple(left))


def draw_plan(seed: int, *, brokers: int | None = None, seconds: float = SECONDS) -> ClusterPlan:
    """`brokers`: None for as many as the seed says."""
    if brokers == 1 or (brokers is None and seed % SINGLE_BROKER_EVERY == 0):
        return _draw_single_broker(seed, seconds)
    random = Random(f"plan {seed}")
    drawn_brokers = random.choice((3, 3, 3, 4, 5))
    count = drawn_brokers if brokers is None else brokers
    changes_minimum = random.random() < 0.4
    kinds = _kinds(random, may_wipe=not changes_minimum)
    extras = draw_extras(seed, changes_minimum=changes_minimum, wipes=FaultKind.WIPE in kinds)
    return ClusterPlan(
        seed=seed,
        brokers=count,
        seconds=seconds,
        topics=random.choice((1, 1, 2)),
        partitions=random.choice((1, 2, 3)),
        idempotent=random.choice((2, 3, 4)),
        careless=random.choice((0, 1, 1)),
        readers=random.choice((1, 1, 2)),
        members=random.choice((0, 2, 2, 3)),
        in_flight=random.choice((1, 3, 5)),
        pause_seconds=random.choice((0.2, 0.5, 1.0)),
        repeats=random.choice((0.0, 0.05, 0.3)),
        lag_ms=random.choice((1_000, 3_000, 10_000)),
        segment_ms=random.choice((500, 5_000, 600_000)),
        disk_seconds=random.choice((0.002, 0.01, 0.05)),
        cold_reads=random.choice((0.0, 0.0, 0.2)),
        changes_topics=random.random() < 0.4,
        changes_minimum=changes_minimum,
        changes_leaders=random.random() < 0.4,
        store_seconds=random.choice((0.003, 0.03, 0.2)),
        faults=_faults(random, kinds, count, seconds) + _faults_of_extras(seed, extras, count, seconds),
        extras=extras,
    )


def _draw_single_broker(seed: int, seconds: float) -> ClusterPlan:
    random = Random(f"single broker {seed}")
    compacts = random.random() < 0.5
    policy = random.choice((*[FlushPolicy.BEFORE_ACK] * 3, FlushPolicy.INTERVAL, FlushPolicy.OS))
    segment_bytes = random.choice((2_000, 4_000) if compacts else (2_000, 4_000, 20_000))
    kinds = [*_ENDINGS, *random.sample(_DISK_KINDS, random.choice((0, 1, 2)))]
    limit = random.choice(("none", "ms", "bytes"))
    # The delete horizon of a tombstone follows the wall clock.
    kinds += [FaultKind.SWAP] * 8 if compacts else [FaultKind.CLOCK] if random.random() < 0.2 else []
    return ClusterPlan(
        seed=seed,
        brokers=1,
        seconds=seconds,
        topics=1 if FaultKind.NEW_LOG in kinds else random.choice((1, 1, 2, 3)),
        partitions=PARTITIONS_OF_NEW_LOGS if FaultKind.NEW_LOG in kinds else 1,
        idempotent=random.choice((2, 3, 4)),
        careless=1 if FaultKind.NEW_LOG in kinds else random.choice((0, 1, 1)),
        readers=random.choice((1, 2, 3)),
        members=0,
        in_flight=random.choice((1, 3, 5)),
        pause_seconds=random.choice((0.2, 0.4, 0.8)),
        repeats=random.choice((0.0, 0.05, 0.3)),
        lag_ms=10_000,
        segment_ms=600_000,
        disk_seconds=random.choice((0.001, 0.02, 0.1)),
        cold_reads=random.choice((0.0, 0.3, 1.0)),
        changes_topics=False,
        changes_minimum=False,
        changes_leaders=False,
        store_seconds=0.003,
        faults=_faults(random, kinds, 1, seconds),
        extras=Extras(
            deletes_records=random.random() < 0.4,
            retention_ms=5_000 if limit == "ms" else NO_LIMIT,
            retention_bytes=4_000 if limit == "bytes" else NO_LIMIT,
            compacts=compacts,
            flushes_before_ack=policy is FlushPolicy.BEFORE_ACK,
            job_steps=random.choice((0.0, 0.0, 0.0, 0.1)),
        ),
        log=LogPlan(
            flushes_at_intervals=policy is FlushPolicy.INTERVAL,
            segment_bytes=segment_bytes,
            index_interval_bytes=random.choice((1, 150, 1_000)),
            open_files_max=random.choice((3, 3, 7)),
            delete_retention_ms=random.choice((0, 500, 5_000)),
            max_compaction_lag_ms=random.choice((3_000, 10_000, LONG_MAX)),
        ),
    )


def _kinds(random: Random, *, may_wipe: bool) -> list[FaultKind]:
    plain = [kind for kind in FaultKind if kind not in KINDS_OF_EXTRAS | KINDS_OF_SINGLE_BROKERS]
    possible = [kind for kind in plain if kind is not FaultKind.WIPE or may_wipe]
    return sorted(random.sample(possible, random.choice((2, 3, 5, 8))))


def _faults(random: Random, kinds: list[FaultKind], brokers: int, seconds: float) -> tuple[Fault, ...]:
    """The plain faults, close together or far apart; some begin while others last."""
    gap = random.choice((1.5, 4.0, 8.0))
    at = WARM_UP_SECONDS
    faults: list[Fault] = []
    while True:
        at += gap * random.uniform(0.2, 1.8)
        lasts = random.choice((0.1, 1.0, 3.0, 9.0))
        nodes = random.sample(range(1, brokers + 1), min(random.choice((1, 1, 1, 2)), brokers))
        kind = random.choice(kinds)
        if at > seconds:
            return tuple(faults)
        faults.append(Fault(len(faults), kind, round(at, 3), lasts, tuple(nodes)))


def _faults_of_extras(seed: int, extras: Extras, brokers: int, seconds: float) -> tuple[Fault, ...]:
    """Those of deletions and isolations come from streams of their own, and leave the others as they are."""
    plain = _sparse_faults(f"extras {seed}", _kinds_of_extras(extras), brokers, seconds)
    deletions = _sparse_faults(f"deletions {seed}", _kinds_of_deletions(extras), brokers, seconds)
    isolations = _sparse_faults(f"isolations {seed}", _kinds_of_isolations(extras), brokers, seconds)
    return tuple(
        fault._replace(number=first + number)
        for first, faults in (
            (FIRST_OF_EXTRAS, plain),
            (FIRST_OF_DELETIONS, deletions),
            (FIRST_OF_ISOLATIONS, isolations),
        )
        for number, fault in enumerate(faults)
    )


def _sparse_faults(stream: str, kinds: list[FaultKind], brokers: int, seconds: float) -> list[Fault]:
    """A few faults, far apart, each with enough time to take effect."""
    random = Random(f"faults of {stream}")
    faults: list[Fault] = []
    at = WARM_UP_SECONDS
    while kinds:
        at += random.uniform(4.0, 25.0)
        lasts = random.choice((1.0, 3.0, 9.0))
        node = random.randint(1, brokers)
        if at > seconds:
            break
        kind = random.choice(kinds)
        faults.append(Fault(len(faults), kind, round(at, 3), lasts, (node,)))
    return faults


def _kinds_of_extras(extras: Extras) -> list[FaultKind]:
    return [FaultKind.ROT] * extras.rots + [FaultKind.DEPOSE] * extras.deposes


def _kinds_of_isolations(extras: Extras) -> list[FaultKind]:
    return [FaultKind.ISOLATE] * extras.isolates


def _kinds_of_deletions(extras: Extras) -> list[FaultKind]:
    return [FaultKind.DELETION_CRASH] * extras.crashes_at_deletions
