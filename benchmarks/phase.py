"""Cost of one phase: wall time, and the CPU time of broker, client and machine.

Measured inside the client process, so that its start and its connecting are excluded. The four numbers show
which part was the bottleneck.
"""

import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
BUSY_SHARE = 0.85
"""A process that uses this much of a core is the bottleneck."""


def process_cpu_s(pid: int) -> float:
    """User and system time of all threads of the process."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / TICKS_PER_SECOND


def own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def machine_busy_s() -> float:
    """CPU time of all cores together, without waiting for devices."""
    user, nice, system, _idle, _wait, *others = map(
        int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    )
    return (user + nice + system + sum(others)) / TICKS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Phase:
    wall_s: float
    broker_cpu_s: float
    client_cpu_s: float
    machine_busy_s: float
    work: int
    """Number of records or requests."""

    @property
    def per_second(self) -> float:
        return self.work / self.wall_s

    @property
    def system_cpu_s(self) -> float:
        """CPU time of everything but the client: of the brokers, and of the kernel's threads that work for
        them. Anything else that runs on the machine is in it too.
        """
        return max(self.broker_cpu_s, self.machine_busy_s - self.client_cpu_s)

    def limited_by(self, cores: int | None = None) -> str:
        """The bottleneck: the busiest process, the machine, or waiting."""
        cores = cores or os.cpu_count() or 1
        broker, client = self.broker_cpu_s / self.wall_s, self.client_cpu_s / self.wall_s
        others = max(0.0, self.machine_busy_s / self.wall_s - broker - client)
        parties = f"broker {broker:.0%}, client {client:.0%}, others {others:.0%} of a core"
        if broker >= BUSY_SHARE and broker >= client:
            return f"broker CPU ({parties})"
        if client >= BUSY_SHARE:
            return f"client CPU ({parties})"
        if broker + client + others >= BUSY_SHARE * cores:
            return f"cores of the machine ({parties})"
        return f"waiting: disk, network, wake-ups ({parties})"


@dataclass(slots=True)
class Gauge:
    """Measures a phase: created at its beginning; `stop` returns it."""

    pids: tuple[int, ...]
    """Process ids of all participating brokers."""
    wall_clock: Callable[[], float] = time.monotonic
    _before: tuple[float, float, float, float] = field(init=False)

    def __post_init__(self) -> None:
        self._before = self._now()

    def _now(self) -> tuple[float, float, float, float]:
        brokers_s = sum(process_cpu_s(pid) for pid in self.pids)
        return self.wall_clock(), brokers_s, own_cpu_s(), machine_busy_s()

    def stop(self, work: int) -> Phase:
        wall, broker, client, machine = (
            after - before for after, before in zip(self._now(), self._before, strict=True)
        )
        return Phase(wall, broker, client, machine, work)
