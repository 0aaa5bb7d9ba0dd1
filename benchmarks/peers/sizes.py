"""How much work a run does. Times, not numbers of records: a fast contender and a slow one take equally
long."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    repetitions: int = 3
    warm_up_s_max: float = 8.0
    """Rounds of warming up end when three in a row differ by less than a tenth, or after this long."""
    round_s: float = 0.8
    produce_s: float = 1.2
    consume_s_max: float = 1.2
    runs_max: int = 4
    """Work is repeated until two runs differ by less than a tenth, or so many times; the last run counts."""
    wait_s: float = 1.5
    steady_s: float = 2.0
    fan_out_s: float = 1.0
    warm_flow_s: float = 1.0
    """A steady flow after those rounds: single records take other ways through a server than batches."""
    crowd_s: float = 1.5
    java_records: int = 250_000
    java_warm_up: int = 100_000
    java_runs_max: int = 4
    """The same for Kafka's own tools."""
    recovery_records: int = 30_000
    kill_after_s: float = 1.0
    outage_s: float = 2.0
    """How long is written after the kill at least."""
    lanes: tuple[int, ...] = (1, 100)
    producers: int = 200
    connections: int = 600
    readers: tuple[int, ...] = (1, 10, 50)
    limit_bytes: int = 512 * 1024 * 1024
    settle_s: float = 1.5
    growth_partitions: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    growth_connections: tuple[int, ...] = (1, 10, 100, 600, 2_000)
    growth_bytes: tuple[int, ...] = (1_000_000_000, 10_000_000_000, 50_000_000_000)
    growth_records: int = 500_000
    growth_waits: int = 2_000


FULL = Sizes()
QUICK = Sizes(
    repetitions=1,
    warm_up_s_max=1.0,
    round_s=0.3,
    produce_s=0.3,
    consume_s_max=1.0,
    runs_max=1,
    wait_s=0.3,
    steady_s=0.5,
    fan_out_s=0.5,
    warm_flow_s=0.2,
    crowd_s=0.5,
    java_records=20_000,
    java_warm_up=5_000,
    java_runs_max=1,
    recovery_records=3_000,
    kill_after_s=0.5,
    outage_s=3.0,
    lanes=(1, 10),
    producers=20,
    connections=60,
    readers=(1, 10),
    limit_bytes=64 * 1024 * 1024,
    settle_s=0.5,
    growth_partitions=(1, 10, 100),
    growth_connections=(1, 10, 100),
    growth_bytes=(100_000_000, 1_000_000_000),
    growth_records=20_000,
    growth_waits=100,
)
