"""What a seed decides before the run: the cluster's size, its clients, and which faults happen when.

A plan is a value. Its faults are a numbered list, so that a failing plan can be made smaller by leaving
some out. Each client and fault draws from its own random numbers, so that the remaining ones behave as
before.

Rule: A seed has a few kinds of faults, not all. If everything fails at once, clients reach few states.
"""

from collections.abc import Collection
from enum import StrEnum
from random import Random
from typing import Any, Final, NamedTuple

from penstock.sim.cluster.extras import NO_EXTRAS, WITHOUT_OF_EXTRAS, Extras, draw_extras

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
BROKERS_MIN: Final = 3
BROKERS_MAX: Final = 5
SECONDS: Final = 60.0


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
    STORE_AWAY = "store-away"
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


KINDS_OF_EXTRAS: Final = frozenset({FaultKind.ROT, FaultKind.DEPOSE})
"""Kinds that only seeds with such an extra have. Their faults are numbered from FIRST_OF_EXTRAS on."""
FIRST_OF_EXTRAS: Final = 1_000


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
        kinds = _kinds_of_extras(smaller.extras)
        left = [fault for fault in smaller.faults if fault.kind not in KINDS_OF_EXTRAS or fault.kind in kinds]
        return smaller._replace(faults=tuple(left))


def draw_plan(seed: int, *, brokers: int | None = None, seconds: float = SECONDS) -> ClusterPlan:
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


def _kinds(random: Random, *, may_wipe: bool) -> list[FaultKind]:
    plain = [kind for kind in FaultKind if kind not in KINDS_OF_EXTRAS]
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
        nodes = random.sample(range(1, brokers + 1), random.choice((1, 1, 1, 2)))
        kind = random.choice(kinds)
        if at > seconds:
            return tuple(faults)
        faults.append(Fault(len(faults), kind, round(at, 3), lasts, tuple(nodes)))


def _faults_of_extras(seed: int, extras: Extras, brokers: int, seconds: float) -> tuple[Fault, ...]:
    """A few faults of extras, far apart, each with enough time to take effect."""
    kinds = _kinds_of_extras(extras)
    if not kinds:
        return ()
    random = Random(f"faults of extras {seed}")
    faults: list[Fault] = []
    at = WARM_UP_SECONDS
    while True:
        at += random.uniform(4.0, 25.0)
        lasts = random.choice((1.0, 3.0, 9.0))
        node = random.randint(1, brokers)
        if at > seconds:
            return tuple(faults)
        kind = random.choice(kinds)
        faults.append(Fault(FIRST_OF_EXTRAS + len(faults), kind, round(at, 3), lasts, (node,)))


def _kinds_of_extras(extras: Extras) -> list[FaultKind]:
    return [FaultKind.ROT] * extras.rots + [FaultKind.DEPOSE] * extras.deposes
