"""Questions to three servers that keep three copies."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from benchmarks.figures import Better
from benchmarks.peers.clients.work import ClientFailed, Work
from benchmarks.peers.results import Sample
from benchmarks.peers.session import MB, Session
from benchmarks.peers.warm import settled
from benchmarks.phase import Phase

REPLICAS = 3
RECORD_BYTES = 1000
STEADY_RATE = 1_000
STEADY_BYTES = 100
LEAD_S = 1.0
SETTLE_S = 0.5
"""A client without an acknowledgement for this long tries again through a new connection.

librdkafka tries again by itself.
"""


def replicated(session: Session) -> Iterator[Sample]:
    sizes, where = session.sizes, "three replicas"
    work = session.work(lanes=3, replicas=REPLICAS, record_bytes=RECORD_BYTES, seconds=sizes.produce_s)
    with session.lanes(work):
        phase: Phase = settled(
            lambda: session.clients.call("produce", work),
            lambda each: each.per_second,
            runs_max=sizes.runs_max,
        )
    rate_mb = phase.per_second * RECORD_BYTES / MB
    name = f"produced, {RECORD_BYTES} B, 3 partitions, {where}"
    yield session.sample(name, rate_mb, "MB/s", Better.HIGHER, phase.limited_by())
    cpu_s = phase.broker_cpu_s / phase.work
    yield session.sample(f"CPU of all servers, {name}", cpu_s * 1e6, "s/million records")
    phase, ages_ms = session.steady_flow(
        LEAD_S,
        replicas=REPLICAS,
        record_bytes=STEADY_BYTES,
        rate=STEADY_RATE,
        seconds=sizes.steady_s,
        is_paced=True,
    )
    expected = int(STEADY_RATE * sizes.steady_s)
    name = f"end to end, {STEADY_RATE:,} records/s, {where}"
    yield from session.ages(name, ages_ms, expected=expected, sent=phase.work, limited_by=phase.limited_by())


def leader_kill(session: Session) -> Iterator[Sample]:
    """Kill the member that leads what is written to. The last question of a session: a member is gone."""
    sizes = session.sizes
    work = session.work(replicas=REPLICAS, record_bytes=STEADY_BYTES, is_paced=True, settle_s=SETTLE_S)
    session.clients.call("create", work)
    session.clients.call("write_one", work)
    victim: int = session.clients.call("leader", work)
    writing = replace(
        work, address=survivors_first(work, victim), seconds=sizes.kill_after_s + sizes.outage_s
    )
    call = session.clients.begin("write_through", writing)
    time.sleep(sizes.kill_after_s)
    killed = time.monotonic()
    session.server.kill(victim)
    acknowledged: list[float] = call.wait()
    yield session.sample(
        "silence of a writer after its leader was killed", silence_s(acknowledged, killed), "s"
    )


def survivors_first(work: Work, victim: int) -> str:
    """The addresses, the victim's last: a client connected to it would measure its own reconnecting."""
    addresses = work.address.split(",")
    return ",".join([*addresses[:victim], *addresses[victim + 1 :], addresses[victim]])


def silence_s(acknowledged: Sequence[float], killed: float) -> float:
    """The longest time between two acknowledgements, of those that ended after the kill.

    ClientFailed: the writer had no acknowledgement before the kill, so that its silence has no beginning.
    """
    if not acknowledged or acknowledged[0] > killed:
        raise ClientFailed("no record was acknowledged before the leader was killed")
    return max(after - before for before, after in pairwise(acknowledged) if after >= killed)
