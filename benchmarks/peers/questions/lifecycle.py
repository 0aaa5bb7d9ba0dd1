"""Questions about a server's life: its start, its idleness, and its return after kill -9."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.peers.clients.work import Work
from benchmarks.peers.results import Sample
from benchmarks.peers.servers.process import memory_bytes
from benchmarks.peers.session import MB, Session
from benchmarks.phase import process_cpu_s

RECORD_BYTES = 1000
AGE_S = 5.0
"""How old the lane is at least when its server is killed.

RabbitMQ 3.10 writes the names of new quorum queues to disk after three seconds; a queue that is younger comes
back empty, whatever it has confirmed. That is worth knowing, and is not what is asked here.
"""
QUIET_S = 2.0
"""A reader that has had nothing for this long has read everything."""


def start(session: Session) -> Iterator[Sample]:
    work = session.work(record_bytes=100)
    session.clients.call("first_record", work)
    yield session.sample("start to first acknowledged record", time.monotonic() - session.server.began, "s")
    time.sleep(session.sizes.settle_s)
    yield session.sample("memory when idle", memory_bytes(session.server.family()) / MB, "MB")
    pids = session.server.pids
    before, since = sum(map(process_cpu_s, pids)), time.monotonic()
    time.sleep(session.sizes.settle_s)
    used = sum(map(process_cpu_s, pids)) - before
    yield session.sample("CPU when idle", 100 * used / (time.monotonic() - since), "% of a core")
    session.clients.call("delete", work)


def make_lane(session: Session) -> tuple[Work, float]:
    """The lane that is to survive, and the monotonic time at which it was made."""
    records = session.sizes.recovery_records
    work = session.work(record_bytes=RECORD_BYTES, records=records, seconds=60)
    session.clients.call("create", work)
    return work, time.monotonic()


def write_before_kill(session: Session, work: Work, made: float) -> Work:
    """Write what must be there again, and kill the server at the last acknowledgement."""
    time.sleep(max(0.0, made + AGE_S - time.monotonic()))
    os.sync()
    phase = session.clients.call("produce", work)
    session.server.kill()
    return replace(work, records=phase.work + work.lanes)


def after_kill(session: Session, written: Work) -> Iterator[Sample]:
    again = replace(written, address=session.server.address, pids=session.server.pids)
    session.clients.call("write_one", again)
    took_s = time.monotonic() - session.server.began
    megabytes = written.records * RECORD_BYTES / MB
    name = f"kill -9 with {megabytes:.0f} MB"
    yield session.sample(f"{name}: until a record is acknowledged", took_s, "s")
    acknowledged = written.records + 1  # with the one that was written just now
    found: int = session.clients.call("count", replace(again, records=acknowledged, seconds=QUIET_S))
    yield session.sample(f"{name}: acknowledged records lost", max(0, acknowledged - found), "records")
