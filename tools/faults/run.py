"""One run: start the clients, inject faults, wait for recovery, read everything at the end."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import Final, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tools.faults.clients import CRASH_EVERY_S, GROUPS, Member, Reader, Writer, read_all
from tools.faults.cluster import Cluster
from tools.faults.history import FaultSpan, History, Outcome, Read
from tools.faults.schedule import Step, carry_out

TOPIC: Final = "history"
PARTITIONS: Final = 4
BROKERS: Final = 3
READERS: Final = 2
MEMBERS: Final = 2
SETTLE_SECONDS_MAX: Final = 150.0
CALM_AT_END_S: Final = 2.0


class Amount(NamedTuple):
    faults: int | None
    seconds: float | None
    is_hurried: bool
    """The next fault does not wait until the cluster has recovered from the one before."""


def run(cluster: Cluster, steps: Iterator[Step], amount: Amount) -> tuple[History, int]:
    """Run the clients under the faults. Returns the history and the number of writes without an outcome."""
    history = History()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "socket.timeout.ms": 3_000, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, BROKERS)])[TOPIC].result(30)
    clients = _Clients(cluster.bootstrap, history)
    clients.start()
    cluster.wait_until_healthy()
    _inject_faults(cluster, admin, history, steps, amount)
    time.sleep(CALM_AT_END_S)
    cluster.wait_until_healthy()
    return history, clients.end()


def _inject_faults(
    cluster: Cluster, admin: AdminClient, history: History, steps: Iterator[Step], amount: Amount
) -> None:
    began = time.monotonic()
    for number, step in enumerate(steps, start=1):
        time.sleep(step.calm_s)
        span = carry_out(step, cluster, _leaders(cluster, admin))
        if not amount.is_hurried:
            cluster.wait_until_healthy()
            _wait_until_writable(history)
            span = span._replace(until=time.monotonic())
        history.faults.append(span)
        print(f"{number:3}: {_shown(span)}", flush=True)
        has_time = amount.seconds is None or time.monotonic() - began < amount.seconds
        if number == amount.faults or not has_time:
            return


def _wait_until_writable(history: History) -> None:
    """Wait until a write that begins from now on is acknowledged for every partition."""
    now, looked_at = time.monotonic(), len(history.writes)
    missing = set(range(PARTITIONS))
    while missing:
        if time.monotonic() > now + SETTLE_SECONDS_MAX:
            raise RuntimeError(f"nothing can be written to {missing} although all replicas are in sync")
        time.sleep(0.02)
        told = history.writes[looked_at:]
        looked_at += len(told)
        is_new = {w.partition for w in told if w.began >= now and w.outcome is Outcome.ACKNOWLEDGED}
        missing -= is_new


def _leaders(cluster: Cluster, admin: AdminClient) -> dict[int, str]:
    """Leaders by partition, as soon as any partition has one."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while not (leaders := cluster.leaders(admin, TOPIC)):
        if time.monotonic() > deadline:
            raise RuntimeError("no partition has a leader")
        time.sleep(0.1)
    return leaders


def _shown(span: FaultSpan) -> str:
    """One line for a fault, with the time in the form of the brokers' logs."""
    at = datetime.fromtimestamp(time.time() - (time.monotonic() - span.began), UTC)
    well = f", well after {span.until - span.ended:.1f} s" if span.until else ""
    led = ",".join(map(str, span.partitions))
    return f"{at:%H:%M:%S.%f}"[:-3] + f" {span.kind} ({span.what}, leads {led}){well}"


class _Clients:
    def __init__(self, bootstrap: str, history: History) -> None:
        self._bootstrap = bootstrap
        self._history = history
        count = PARTITIONS + READERS + MEMBERS * len(GROUPS)
        # Crashes are spread out, so that not all clients crash at once.
        crashes = (CRASH_EVERY_S * (1 + number / count) for number in range(count))
        self._writers = [
            Writer(bootstrap, TOPIC, number, history, first_crash_s=next(crashes))
            for number in range(PARTITIONS)
        ]
        self._readers = [
            Reader(bootstrap, TOPIC, PARTITIONS, history, f"reader-{number}", first_crash_s=next(crashes))
            for number in range(READERS)
        ]
        self._members = [
            Member(bootstrap, TOPIC, history, group, f"member-{number}", first_crash_s=next(crashes))
            for group in GROUPS
            for number in range(MEMBERS)
        ]

    def start(self) -> None:
        for client in chain(self._writers, self._readers, self._members):
            client.start()

    def end(self) -> int:
        """Stop the clients. Returns the number of writes without an outcome."""
        unresolved = sum(writer.end(SETTLE_SECONDS_MAX) for writer in self._writers)
        self._history.final = read_all(self._bootstrap, TOPIC, PARTITIONS, SETTLE_SECONDS_MAX)
        ends = {read.partition: read.offset for read in self._history.final}
        self._wait_until_read(ends)
        for client in chain(self._readers, self._members):
            client.stop()
        return unresolved

    def _wait_until_read(self, ends: dict[int, int]) -> None:
        """Wait until readers and groups are at the end. The checker reports what they missed."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        for reads in (self._history.reads, *self._history.group_reads.values()):
            while time.monotonic() < deadline and not _has_reached(reads, ends):
                time.sleep(0.1)


def _has_reached(reads: list[Read], ends: dict[int, int]) -> bool:
    reached: dict[int, int] = {}
    for read in reads:
        reached[read.partition] = max(reached.get(read.partition, -1), read.offset)
    return all(reached.get(partition, -1) >= end for partition, end in ends.items())
