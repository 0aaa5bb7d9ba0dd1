"""Description of the machine, and the time that its disk takes to sync 4 KiB."""

import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

from benchmarks.brokers import temporary_folder
from benchmarks.figures import percentile

SYNCS = 300
SYNC_BYTES = 4096


def sync_times_ms() -> list[float]:
    """Times of appends with fdatasync, ascending, on the file system of this run's brokers."""
    took = []
    with temporary_folder() as folder:
        descriptor = os.open(folder / "probe", os.O_CREAT | os.O_WRONLY)
        try:
            for _ in range(SYNCS):
                os.write(descriptor, bytes(SYNC_BYTES))
                began = time.perf_counter()
                os.fdatasync(descriptor)
                took.append((time.perf_counter() - began) * 1000)
        finally:
            os.close(descriptor)
    return sorted(took)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def facts() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "confluent_kafka": version("confluent-kafka"),
        "uvloop": version("uvloop"),
        "load_average_before": os.getloadavg()[0],
        "fdatasync_ms_p50": round(percentile(sync_times_ms(), 0.5), 3),
    }
