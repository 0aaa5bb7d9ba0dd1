"""Setting of the Spark benchmarks: one broker, one Spark session, topics with records, and pairs of runs.

Rule 1: both sides of a comparison run in the same Spark session, alternately, and in the opposite order every
        other time, so that both share the state of the machine. The median of the ratios counts.
Rule 2: both sides run before they are measured, until Java has compiled their code.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyspark

from benchmarks.brokers import running_broker, temporary_folder
from benchmarks.figures import Better, Choice, Figure
from benchmarks.topics import create_topic
from penstock.protocol.compression import Codec
from penstock.spark.options.client import client_settings
from penstock.spark.options.options import write_settings
from penstock.spark.pool import borrowed_client
from penstock.spark.records.encode import encode
from penstock.spark.session import spark_session
from penstock.types import TopicPartition
from tests.spark.connector import ConnectorUnavailable, jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
CORES = "local[2]"
FLUSH_POLICY = "before_ack"
BATCH_BYTES = 500_000
ROWS_AT_ONCE = 20_000
WARM_UP_RUNS = 2


class Size(NamedTuple):
    small_records: int
    """Number of records of 100 B."""
    large_records: int
    """Number of records of 1 KB."""
    written_records: int
    micro_batches: int
    pairs: int


FULL = Size(4_000_000, 800_000, 1_000_000, 40, 3)
QUICK = Size(800_000, 160_000, 200_000, 20, 2)


class SparkBenchmark(NamedTuple):
    spark: "SparkSession"
    bootstrap: str
    folder: Path
    """Temporary folder for everything that is written."""
    size: Size
    small: str
    """A topic with records of 100 B."""
    large: str
    """A topic with records of 1 KB."""
    connector: str | None
    """Version of Spark's Kafka connector; None if it is not available."""

    def topic(self, form: str, name: str, **more: str) -> "DataFrame":
        options = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": name, **more}
        return self.spark.read.format(form).option("startingOffsets", "earliest").options(**options).load()


@contextmanager
def setting(size: Size, report: Callable[[str], None]) -> Iterator[SparkBenchmark]:
    version, files = _connector(report)
    with (
        temporary_folder() as folder,
        running_broker(folder) as broker,
        spark_session("bench-spark", CORES, {"spark.jars": files}, log_level="OFF") as spark,
    ):
        small, large = (create_topic(broker.bootstrap, PARTITIONS, FLUSH_POLICY) for _ in range(2))
        fill(broker.bootstrap, small, size.small_records, 100)
        fill(broker.bootstrap, large, size.large_records, 1000)
        yield SparkBenchmark(spark, broker.bootstrap, folder / "out", size, small, large, version)


def _connector(report: Callable[[str], None]) -> tuple[str | None, str]:
    """Version of the connector, and its jars in the form that Spark takes."""
    try:
        version, files = jars()
    except ConnectorUnavailable as problem:
        report(f"NOT MEASURED: Spark's own Kafka connector. {problem}")
        return None, ""
    if version != pyspark.__version__:
        report(f"Spark is {pyspark.__version__}; its Kafka connector could be had as {version}")
    return version, ",".join(str(file.resolve()) for file in files)


def fill(bootstrap: str, topic: str, records: int, value_bytes: int) -> None:
    """Produce batches of up to 500 kB, with values that do not repeat, so that no dictionary helps."""
    rows = min(ROWS_AT_ONCE, records // PARTITIONS)
    keys = pa.array([b"key-%06d" % number for number in range(rows)], pa.binary())
    values = pa.array([_value(number, value_bytes) for number in range(rows)], pa.binary())
    with borrowed_client(
        client_settings(write_settings({"kafka.bootstrap.servers": bootstrap}).access)
    ) as client:
        written = 0
        while written < records:
            count = min(rows, (records - written) // PARTITIONS)
            times = pa.array(time.time_ns() // 1_000_000 + np.arange(count) // 3)
            batches = encode(
                keys[:count], values[:count], None, times, codec=Codec.NONE, batch_bytes_max=BATCH_BYTES
            )
            client.produce_many({TopicPartition(topic, each): batches for each in range(PARTITIONS)})
            written += count * PARTITIONS


def _value(number: int, size: int) -> bytes:
    """Orders as text, each different, with a realistic compression ratio."""
    orders: list[bytes] = []
    while sum(map(len, orders)) < size:
        order = (number * 31 + len(orders)) * 2_654_435_761 % 2**40
        orders.append(b'{"order": %d, "customer": "customer %d", "amount": 12.50}' % (order, order % 977))
    return b"".join(orders)[:size]


# Comparing


def in_turn(runs: Mapping[str, Callable[[], float]], pairs: int) -> dict[str, list[float]]:
    """Results of both sides, one pair for each repetition, after the warm-up."""
    for _ in range(WARM_UP_RUNS):
        for run in runs.values():
            run()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for pair in range(pairs):
        names = list(runs)[:: 1 if pair % 2 == 0 else -1]
        for name in names:
            found[name].append(runs[name]())
    return found


def seconds(work: Callable[[], object]) -> Callable[[], float]:
    def timed() -> float:
        began = time.monotonic()
        work()
        return time.monotonic() - began

    return timed


def speed(name: str, records: int, took: list[float]) -> Figure:
    samples = tuple(records / each / 1000 for each in took)
    return Figure(name=name, unit="k rows/s", samples=samples, better=Better.HIGHER)


def share(name: str, ours: list[float], theirs: list[float], target: float | None = None) -> Figure:
    """Ratio of Penstock's speed to that of the other side."""
    samples = tuple(their / our for our, their in zip(ours, theirs, strict=True))
    return Figure(
        name=f"  {name}",
        unit="x",
        samples=samples,
        better=Better.HIGHER,
        choice=Choice.MEDIAN,
        target=target,
    )
