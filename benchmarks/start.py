"""Time until a broker is ready, and its memory then."""

import time
from collections.abc import Iterator

from benchmarks.brokers import fresh_broker
from benchmarks.figures import Choice, Figure
from benchmarks.phase import process_cpu_s
from benchmarks.settings import Settings

STARTS = 7
SETTLE_S = 1.0
START_S_MAX = 0.5
IDLE_MB_MAX = 60.0
MB = 1_000_000


def measure(_: Settings) -> Iterator[Figure]:
    with fresh_broker():
        pass  # leaves the byte code compiled
    starts, used, resident, anonymous = [], [], [], []
    for number in range(STARTS):
        with fresh_broker() as broker:
            starts.append(broker.start_s)
            used.append(process_cpu_s(broker.pid))
            if number < 3:
                time.sleep(SETTLE_S)
                memory = broker.memory()
                resident.append(memory.resident / MB)
                anonymous.append(memory.anonymous / MB)
    yield Figure(
        name="start to ready, empty data directory",
        unit="s",
        samples=tuple(starts),
        choice=Choice.MEDIAN,
        target=START_S_MAX,
        limited_by="imports; see -X importtime",
    )
    yield Figure(name="CPU from start to ready", unit="s", samples=tuple(used))
    yield Figure(
        name="memory of an idle broker",
        unit="MB",
        samples=tuple(resident),
        choice=Choice.MEDIAN,
        target=IDLE_MB_MAX,
        limited_by="modules that are loaded",
    )
    yield Figure(
        name="memory of an idle broker, its own (anonymous)",
        unit="MB",
        samples=tuple(anonymous),
        choice=Choice.MEDIAN,
    )
