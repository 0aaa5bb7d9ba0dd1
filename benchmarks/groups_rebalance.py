"""The effect of a member that joins or leaves on a group of 20 members and 100 partitions.

A producer sends a record to every partition each 100 ms. The members are librdkafka consumers in five
processes with default settings, so the classic protocol has a heartbeat every three seconds. The time counts
from the creation of the new member, or the call that closes one, to the last change of an assignment.

Members send heartbeats at fixed intervals, so the result depends on the moment of a change: changes come at
irregular times, and the worst result counts.

A pause is the time that a record arrives later than its producer's rate explains (groups_timeline.py). A
member that keeps a partition should see no gap longer than two intervals and 100 ms, which is a pause of one
interval and 100 ms. The longest pause of a period without a rebalance shows what the machine adds.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from random import Random
from typing import Any, NamedTuple

from benchmarks.brokers import Broker, fresh_broker
from benchmarks.clients import LOG_ERRORS, ClientFailed
from benchmarks.figures import Choice, Figure
from benchmarks.groups_members import End, Flow, Join, Leave, run_crew, run_source
from benchmarks.groups_timeline import Event, Holdings, Kind, Receipt, kept, longest_pause
from benchmarks.phase import machine_busy_s, process_cpu_s
from benchmarks.settings import Settings
from benchmarks.topics import new_topic
from penstock.limits import CONSUMER_HEARTBEAT_MS, CONSUMER_HEARTBEAT_REBALANCING_MS

MEMBERS = 20
PARTITIONS = 100
CREWS = 5
INTERVAL_S = 0.1
ROUNDS = 5
"""Number of rounds; each has one join and one leave."""
QUIET_S = 5.0
SETTLE_S = 3.0
"""Time after the last change of an assignment in which every partition must have delivered a record."""
IRREGULAR_S_MAX = 3.0
STABLE_S_MAX = 90.0
END_S_MAX = 20.0

STABLE_S_TARGET = 2.0
PAUSE_MS_TARGET = (INTERVAL_S + 0.1) * 1000


class RebalanceMode(NamedTuple):
    """A group protocol, and the interval that bounds its reaction."""

    name: str
    settings: dict[str, str]
    pace: str
    has_target: bool = False


MODES = (
    RebalanceMode(
        "eager (range)", {"partition.assignment.strategy": "range"}, "members' heartbeats, 3 s apart"
    ),
    RebalanceMode(
        "cooperative (cooperative-sticky)",
        {"partition.assignment.strategy": "cooperative-sticky"},
        "members' heartbeats, 3 s apart, for two rounds",
    ),
    RebalanceMode(
        "KIP-848 (uniform)",
        {"group.protocol": "consumer"},
        f"members' heartbeats, {CONSUMER_HEARTBEAT_MS / 1000:g} s apart,"
        f" {CONSUMER_HEARTBEAT_REBALANCING_MS / 1000:g} s while partitions change hands",
        has_target=True,
    ),
)


class Costs(NamedTuple):
    """CPU time of the participating processes at one moment."""

    at: float
    broker_s: float
    members_s: float
    machine_s: float

    def shares_since(self, earlier: "Costs") -> str:
        took_s = max(self.at - earlier.at, 0.001)
        broker = (self.broker_s - earlier.broker_s) / took_s
        members = (self.members_s - earlier.members_s) / took_s
        others = max(0.0, (self.machine_s - earlier.machine_s) / took_s - broker - members)
        return f"broker {broker:.0%}, clients {members:.0%}, others {others:.0%} of a core"


class Change(NamedTuple):
    """The measurement of one join or leave."""

    window: tuple[float, float]
    stable_s: float
    kept: set[int]
    moved: set[int]
    shares: str
    broker_cpu_s: float
    """CPU time of the broker beyond what it uses in the same time without a change."""


class RebalanceRun(NamedTuple):
    quiet: tuple[float, float]
    joins: list[Change]
    leaves: list[Change]
    receipts: list[Receipt]


def measure(settings: Settings) -> Iterator[Figure]:
    for mode in MODES:
        with fresh_broker() as broker, new_topic(broker.bootstrap, PARTITIONS, "os") as topic:
            rebalance_run = _run_rounds(broker, topic, mode, settings.scaled(ROUNDS))
        yield from _figures(mode, rebalance_run)


# Figures


def _figures(mode: RebalanceMode, rebalance_run: RebalanceRun) -> Iterator[Figure]:
    yield Figure(
        name=f"longest pause, {mode.name}, nothing changes",
        unit="ms",
        samples=(_pause_ms(rebalance_run, range(PARTITIONS), rebalance_run.quiet),),
        limited_by="cores of the machine; the floor of the pauses below",
    )
    for what, changes in (("one joins", rebalance_run.joins), ("one leaves", rebalance_run.leaves)):
        where = f"{mode.name}, {what}"
        shares = max(changes, key=lambda change: change.stable_s).shares
        yield Figure(
            name=f"until stable, {where}",
            unit="s",
            samples=tuple(change.stable_s for change in changes),
            choice=Choice.WORST,
            target=STABLE_S_TARGET if mode.has_target else None,
            limited_by=f"{mode.pace} ({shares})",
        )
        yield Figure(
            name=f"longest pause of a kept partition, {where}",
            unit="ms",
            samples=tuple(_pause_ms(rebalance_run, change.kept, change.window) for change in changes),
            choice=Choice.WORST,
            target=PAUSE_MS_TARGET if mode.has_target else None,
            limited_by=f"{min(len(change.kept) for change in changes)} partitions or more were kept",
        )
        yield Figure(
            name=f"longest pause of a partition that moves, {where}",
            unit="ms",
            samples=tuple(_pause_ms(rebalance_run, change.moved, change.window) for change in changes),
            choice=Choice.WORST,
        )
        yield Figure(
            name=f"broker CPU of the rebalance, {where}",
            unit="ms",
            samples=tuple(change.broker_cpu_s * 1000 for change in changes),
            choice=Choice.MEDIAN,
            limited_by="broker code, beyond the flow of records",
        )


def _pause_ms(rebalance_run: RebalanceRun, partitions: Collection[int], window: tuple[float, float]) -> float:
    return longest_pause(rebalance_run.receipts, partitions, window, INTERVAL_S) * 1000


# The group


class Group:
    """Crews with members, the source of their records, and the current assignments."""

    def __init__(self, broker: Broker, crews: Sequence[tuple[SpawnProcess, Connection]]) -> None:
        self._broker = broker
        self._processes = [process for process, _ in crews]
        self._pipes = [pipe for _, pipe in crews]
        self._began: dict[tuple[int, Kind], float] = {}
        """Times at which members reported the beginning of a join or leave since the last order."""
        self.members: set[int] = set()
        self.holdings = Holdings(PARTITIONS)

    def join(self, member: int) -> None:
        self._began.clear()
        self.members.add(member)
        self._pipes[member % CREWS].send(Join(member))

    def leave(self, member: int) -> None:
        self._began.clear()
        self.members.remove(member)
        self._pipes[member % CREWS].send(Leave(member))

    def began(self, member: int, kind: Kind) -> float:
        return self._began[member, kind]

    def watch(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            self._read_events(left_s)

    def wait_until_stable(self, member: int, kind: Kind) -> None:
        deadline = time.monotonic() + STABLE_S_MAX
        while (member, kind) not in self._began or not self.holdings.is_stable(self.members):
            if time.monotonic() > deadline:
                raise ClientFailed(f"the group was not stable after {STABLE_S_MAX} s")
            self._read_events(1.0)

    def _read_events(self, seconds_max: float) -> None:
        for pipe in wait(self._pipes, seconds_max):
            assert isinstance(pipe, Connection)
            event = pipe.recv()
            assert isinstance(event, Event)
            self.holdings.note(event)
            if event.kind in (Kind.JOINING, Kind.LEAVING):
                self._began[event.member, event.kind] = event.at

    def costs(self) -> Costs:
        members_s = sum(process_cpu_s(process.pid) for process in self._processes if process.pid is not None)
        return Costs(time.monotonic(), process_cpu_s(self._broker.pid), members_s, machine_busy_s())

    def end(self) -> list[Receipt]:
        receipts: list[Receipt] = []
        for pipe in self._pipes:
            pipe.send(End())
            while isinstance(message := pipe.recv(), Event):
                continue
            receipts += message
        return receipts


def _run_rounds(broker: Broker, topic: str, mode: RebalanceMode, rounds: int) -> RebalanceRun:
    assert rounds <= MEMBERS, "a member leaves once"
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "benchmarks",
        "auto.offset.reset": "earliest",
        "log_level": LOG_ERRORS,
        **mode.settings,
    }
    flow = Flow(broker.bootstrap, topic, PARTITIONS, INTERVAL_S)
    with ExitStack() as stack:
        crews = [stack.enter_context(_process(run_crew, settings, topic)) for _ in range(CREWS)]
        stack.enter_context(_process(run_source, flow))
        group = Group(broker, crews)
        for member in range(MEMBERS):
            group.join(member)
        group.wait_until_stable(MEMBERS - 1, Kind.JOINING)
        group.watch(SETTLE_S)
        before = group.costs()
        group.watch(QUIET_S)
        after = group.costs()
        idle_share = (after.broker_s - before.broker_s) / (after.at - before.at)
        joins, leaves = [], []
        spare, moments = MEMBERS, Random(0)
        for number in range(rounds):
            group.watch(moments.uniform(0, IRREGULAR_S_MAX))
            joins.append(_change(group, spare, Kind.JOINING, idle_share))
            spare = number
            group.watch(moments.uniform(0, IRREGULAR_S_MAX))
            leaves.append(_change(group, spare, Kind.LEAVING, idle_share))
        return RebalanceRun((before.at, after.at), joins, leaves, group.end())


def _change(group: Group, member: int, kind: Kind, idle_share: float) -> Change:
    holders, before = group.holdings.holders(), group.costs()
    if kind is Kind.JOINING:
        group.join(member)
    else:
        group.leave(member)
    group.wait_until_stable(member, kind)
    after = group.costs()
    began = group.began(member, kind)
    group.watch(SETTLE_S)
    group.wait_until_stable(member, kind)  # what looked stable may have been a moment between two rounds
    unchanged = kept(holders, group.holdings.holders())
    return Change(
        window=(began, time.monotonic()),
        stable_s=group.holdings.changed_at - began,
        kept=unchanged,
        moved=set(range(PARTITIONS)) - unchanged,
        shares=after.shares_since(before),
        broker_cpu_s=max(0.0, after.broker_s - before.broker_s - idle_share * (after.at - before.at)),
    )


@contextmanager
def _process(target: Callable[..., None], *arguments: Any) -> Iterator[tuple[SpawnProcess, Connection]]:
    """Run a process with a pipe as its first argument. It is ended with the block."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()  # so that the end of either is noticed by the other
    try:
        yield process, ours
    finally:
        ours.close()
        process.join(END_S_MAX)
        process.kill()  # does nothing to one that has ended
        process.join()
