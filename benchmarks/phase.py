"""What one stretch of work cost: wall time, and the processor time of broker, client and machine.

Taken inside the client process, so that starting it and connecting are left out. From the four
numbers follows what the work waited for.
"""

import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
BUSY_SHARE = 0.85
"""A process that uses this much of a core is what the others wait for."""


def process_cpu_s(pid: int) -> float:
    """User and system time of all threads of a process."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / TICKS_PER_SECOND


def own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def machine_busy_s() -> float:
    """Of all cores together, waiting for devices not counted."""
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
    """Records, or requests: whatever was counted."""

    @property
    def per_second(self) -> float:
        return self.work / self.wall_s

    def limited_by(self, cores: int | None = None) -> str:
        """The busiest party, or the machine, or waiting."""
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
    """Started where the work starts; `stop` gives the phase."""

    pids: tuple[int, ...]
    """Of all brokers that take part."""
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
