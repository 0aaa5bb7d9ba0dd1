"""Kafka's own performance tools, with their defaults: the first thing that a Kafka user runs.

Only servers that speak Kafka's protocol can be asked. The producer sends batches of 16 KB, five in flight,
with acks=all; its first records, while its own Java warms up, are left out of its rate and are in the
server's CPU. Each tool runs until two runs differ by little, and the last run counts: a broker in Java
compiles its way of handling these batches during the earlier ones.
"""

import re
import resource
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.figures import Better
from benchmarks.peers.clients.work import ClientFailed, Work
from benchmarks.peers.results import Sample
from benchmarks.peers.servers.kafka import perf_tools
from benchmarks.peers.session import SYSTEM_CPU, Session
from benchmarks.peers.sizes import Sizes
from benchmarks.peers.warm import settled
from benchmarks.phase import Gauge

RECORD_BYTES = 1000
TOOL_S_MAX = 120
HEAP = "-Xmx512M"
SENT = re.compile(
    r"\d+ (?P<kind>steady state )?records sent, [\d.]+ records/sec \((?P<mb>[\d.]+) MB/sec\)"
    r".*?(?P<p50>\d+) ms 50th.*?(?P<p99>\d+) ms 99th"
)
"""The tool's last lines; its MB are of 1,048,576 bytes."""
MIB = 1_048_576 / 1_000_000


class ToolRun(NamedTuple):
    rate_mb: float
    """Megabytes a second."""
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    broker_cpu_s: float = 0.0
    """For each record, as the next one."""
    system_cpu_s: float = 0.0


def java_defaults(session: Session) -> Iterator[Sample]:
    sizes, work = session.sizes, session.work(record_bytes=RECORD_BYTES)
    with session.lanes(work):
        produced = _settled(lambda: _produce(work, sizes), sizes)
        name = f"ProducerPerformance, {RECORD_BYTES} B, 1 partition"
        yield session.sample(name, produced.rate_mb, "MB/s", Better.HIGHER)
        yield session.sample(f"{name}, p50", produced.p50_ms, "ms")
        yield session.sample(f"{name}, p99", produced.p99_ms, "ms")
        yield session.sample(f"server CPU, {name}", produced.broker_cpu_s * 1e6, "s/million records")
        yield session.sample(f"{SYSTEM_CPU}, {name}", produced.system_cpu_s * 1e6, "s/million records")
        consumed = _settled(lambda: _consume(work, sizes), sizes)
        name = f"ConsumerPerformance, {RECORD_BYTES} B, 1 partition"
        yield session.sample(name, consumed.rate_mb, "MB/s", Better.HIGHER)


def _settled(run: Callable[[], ToolRun], sizes: Sizes) -> ToolRun:
    return settled(run, lambda each: each.rate_mb, runs_max=sizes.java_runs_max)


def _produce(work: Work, sizes: Sizes) -> ToolRun:
    options = ["--topic", work.name, "--num-records", str(sizes.java_records), "--throughput", "-1"]
    options += ["--record-size", str(RECORD_BYTES), "--warmup-records", str(sizes.java_warm_up)]
    gauge, tools_cpu_s = Gauge(work.pids), _ended_tools_cpu_s()
    printed = _run("ProducerPerformance", [*options, "--bootstrap-server", work.address])
    phase = gauge.stop(sizes.java_records)
    phase = replace(phase, client_cpu_s=phase.client_cpu_s + _ended_tools_cpu_s() - tools_cpu_s)
    cpu_s = phase.broker_cpu_s / phase.work, phase.system_cpu_s / phase.work
    return ToolRun(*producer_figures(printed), *cpu_s)


def _ended_tools_cpu_s() -> float:
    """CPU time of the tools that have ended: they are the only children that this process has waited for
    meanwhile.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _consume(work: Work, sizes: Sizes) -> ToolRun:
    options = ["--topic", work.name, "--num-records", str(sizes.java_records)]
    printed = _run("ConsumerPerformance", [*options, "--bootstrap-server", work.address])
    return ToolRun(consumer_rate_mb(printed))


def _run(tool: str, options: Sequence[str]) -> str:
    command = ["java", HEAP, "-cp", f"{perf_tools().resolve()}/*", f"org.apache.kafka.tools.{tool}", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S_MAX, check=False)
    except subprocess.TimeoutExpired as late:
        raise ClientFailed(f"{tool} had not ended after {TOOL_S_MAX} s") from late
    if done.returncode != 0:
        raise ClientFailed(f"{tool} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def producer_figures(printed: str) -> tuple[float, float, float]:
    """Megabytes a second, and the waiting times p50 and p99 in milliseconds, of the steady state."""
    lines = [found for line in printed.splitlines() if (found := SENT.search(line))]
    if not lines:
        raise ClientFailed(f"ProducerPerformance printed no result: {printed[-500:]}")
    chosen = next((line for line in lines if line["kind"]), lines[-1])
    return float(chosen["mb"]) * MIB, float(chosen["p50"]), float(chosen["p99"])


def consumer_rate_mb(printed: str) -> float:
    """Megabytes a second while fetching: without the time in which the tool joins its group."""
    rows = [line.split(", ") for line in printed.splitlines() if ", " in line]
    named = [dict(zip(rows[0], row, strict=True)) for row in rows[1:] if len(row) == len(rows[0])]
    if not named:
        raise ClientFailed(f"ConsumerPerformance printed no result: {printed[-500:]}")
    return float(named[-1]["fetch.MB.sec"]) * MIB
