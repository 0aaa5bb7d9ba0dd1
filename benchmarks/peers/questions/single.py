"""Questions to one server: throughput, waiting times, many readers, many connections."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from benchmarks.figures import Better
from benchmarks.peers.clients.processes import PROCESSES
from benchmarks.peers.clients.work import Work
from benchmarks.peers.results import Missing, Sample
from benchmarks.peers.servers.process import settled_disk_bytes
from benchmarks.peers.session import MB, SYSTEM_CPU, Session
from benchmarks.peers.warm import settled
from benchmarks.phase import Phase

GB = 1_000_000_000
RECORD_BYTES = (100, 1000)
STEADY_RATES = (1_000, 10_000)
FAN_OUT_RATE = 200
STEADY_BYTES = 100
LEAD_S = 0.3
LEAD_EACH_S = 0.03
"""Readers connect before records flow, one after the other."""


def lanes_text(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


def batched(session: Session) -> Iterator[Sample | Missing]:
    for record_bytes in RECORD_BYTES:
        for lanes in session.sizes.lanes:
            yield from _batched_once(session, record_bytes, lanes)


class _Round(NamedTuple):
    produced: Phase
    consumed: Phase
    disk_bytes: float
    """By how much the server's folder grew for each record that was produced."""


def _batched_once(session: Session, record_bytes: int, lanes: int) -> Iterator[Sample | Missing]:
    sizes, where = session.sizes, f"{record_bytes} B, {lanes_text(lanes)}"
    work = session.work(lanes=lanes, record_bytes=record_bytes, seconds=sizes.produce_s)
    with session.lanes(work):
        last = settled(
            lambda: _produce_and_read(session, work),
            lambda each: each.produced.per_second,
            lambda each: each.consumed.per_second,
            runs_max=sizes.runs_max,
        )
    for what, phase in (("produced", last.produced), ("consumed", last.consumed)):
        yield session.sample(
            f"{what}, {where}",
            phase.per_second * record_bytes / MB,
            "MB/s",
            Better.HIGHER,
            phase.limited_by(),
        )
        cpu_s = phase.broker_cpu_s / phase.work
        yield session.sample(f"server CPU, {what}, {where}", cpu_s * 1e6, "s/million records")
        if record_bytes == max(RECORD_BYTES):
            yield session.sample(f"server CPU, {what}, {where}", cpu_s * GB / record_bytes, "s/GB")
    per_million_s = last.produced.system_cpu_s * 1e6 / last.produced.work
    yield session.sample(f"{SYSTEM_CPU}, produced, {where}", per_million_s, "s/million records")
    if lanes == 1:
        yield _disk(session, where, last.disk_bytes, record_bytes)


def _produce_and_read(session: Session, work: Work) -> _Round:
    """The reader begins with the oldest record that the server has."""
    before = settled_disk_bytes(session.server.data)
    produced: Phase = session.clients.call("produce", work)
    grown = settled_disk_bytes(session.server.data) - before
    records = produced.work + work.lanes  # one for each lane, before the clock starts
    reading = replace(work, seconds=session.sizes.consume_s_max, records=records)
    return _Round(produced, session.clients.call("consume", reading), grown / produced.work)


def _disk(session: Session, where: str, grown: float, record_bytes: int) -> Sample | Missing:
    if grown < record_bytes:  # Redis writes its file anew from time to time, without what was deleted
        reason = f"disk, {where}: the server removed older data from its disk meanwhile"
        return Missing(session.contender.name, session.question, reason)
    return session.sample(f"disk, {where}", grown, "bytes/record")


def latency(session: Session) -> Iterator[Sample]:
    work = session.work(is_paced=True, record_bytes=STEADY_BYTES, seconds=session.sizes.wait_s)
    with session.lanes(work):
        phase, took_ms = session.clients.call("produce_and_wait", work)
    yield from session.percentiles("produce and wait", took_ms, phase.limited_by())


def end_to_end(session: Session) -> Iterator[Sample]:
    for rate in STEADY_RATES:
        yield from _steady(
            session, f"{rate:,} records/s", rate=rate, readers=1, seconds=session.sizes.steady_s
        )


def fan_out(session: Session) -> Iterator[Sample]:
    for readers in session.sizes.readers:
        name = f"{FAN_OUT_RATE} records/s to {readers} {'group' if readers == 1 else 'groups'}"
        seconds = session.sizes.fan_out_s
        yield from _steady(session, name, rate=FAN_OUT_RATE, readers=readers, seconds=seconds)


def _steady(session: Session, name: str, *, rate: int, readers: int, seconds: float) -> Iterator[Sample]:
    lead_s = LEAD_S + readers * LEAD_EACH_S
    phase, ages_ms = session.steady_flow(
        lead_s, is_paced=True, record_bytes=STEADY_BYTES, rate=rate, readers=readers, seconds=seconds
    )
    expected = int(rate * seconds) * readers
    yield from session.ages(
        f"end to end, {name}",
        ages_ms,
        expected=expected,
        sent=phase.work * readers,
        limited_by=phase.limited_by(),
    )
    if readers > 1:
        cpu_s = phase.broker_cpu_s / (phase.work * readers)
        yield session.sample(f"server CPU, {name}", cpu_s * 1e6, "s/million deliveries")


def connections(session: Session) -> Iterator[Sample]:
    """Two client processes with half of the producers each: one would be the limit of a fast server."""
    sizes = session.sizes
    work = session.work(
        is_paced=True,
        record_bytes=STEADY_BYTES,
        producers=sizes.producers // PROCESSES,
        connections=sizes.connections // PROCESSES,
        seconds=sizes.crowd_s,
    )
    name = f"{sizes.connections} connections, {sizes.producers} producers that wait"
    with session.lanes(work):
        calls = [session.clients.begin("many_producers", work) for _ in range(PROCESSES)]
        phases: list[Phase] = [call.wait() for call in calls]
    rate = sum(phase.per_second for phase in phases)
    limited_by = phases[0].limited_by()
    yield session.sample(name, rate, "records/s", Better.HIGHER, limited_by)
    # Both see the CPU time of the same server, each over its own time.
    cpu_share = sum(phase.broker_cpu_s / phase.wall_s for phase in phases) / PROCESSES
    yield session.sample(f"server CPU, {name}", cpu_share * 1e6 / rate, "µs/record")
    client_share = sum(phase.client_cpu_s / phase.wall_s for phase in phases)
    machine_share = sum(phase.machine_busy_s / phase.wall_s for phase in phases) / PROCESSES
    system_share = max(cpu_share, machine_share - client_share)
    yield session.sample(f"{SYSTEM_CPU}, {name}", system_share * 1e6 / rate, "µs/record")
