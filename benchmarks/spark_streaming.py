"""Duration of the smallest micro-batch, compared with Spark's rate source.

Two records in a batch, batches without a pause, checkpoints on disk, rows are dropped. The first batches of a
query do not count. Spark itself takes most of the time: it writes two files for each batch.
"""

from collections.abc import Iterator
from itertools import count
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.figures import Choice, Figure
from benchmarks.spark_setting import SparkBenchmark, in_turn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 2
FIRST_BATCHES = 5
RATIO_MAX = 1.7
POLL_INTERVAL_S = 0.2

_numbers = count(1)


def measure(setting: SparkBenchmark) -> Iterator[Figure]:
    numbers = setting.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", str(ROWS)).load()
    options = {"kafka.bootstrap.servers": setting.bootstrap, "subscribe": setting.small}
    records = (
        setting.spark.readStream.format("penstock")
        .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger=str(ROWS))
        .load()
    )
    found = in_turn(
        {"ours": lambda: _batch_ms(setting, records), "numbers": lambda: _batch_ms(setting, numbers)},
        setting.size.pairs,
    )
    yield _time("micro-batch of a topic", found["ours"])
    yield _time("micro-batch of Spark's rate source", found["numbers"])
    ratios = tuple(ours / theirs for ours, theirs in zip(found["ours"], found["numbers"], strict=True))
    yield Figure(
        name="  topic as a multiple of the rate source",
        unit="x",
        samples=ratios,
        choice=Choice.MEDIAN,
        target=RATIO_MAX,
    )


def _batch_ms(setting: SparkBenchmark, stream: "DataFrame") -> float:
    """Median duration of a batch in one run."""
    wanted = FIRST_BATCHES + setting.size.micro_batches
    checkpoint = str(setting.folder / f"micro-{next(_numbers)}")
    query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    try:
        while query.isActive and (query.lastProgress is None or query.lastProgress.batchId < wanted):
            query.awaitTermination(POLL_INTERVAL_S)  # type: ignore[arg-type]
        reports = query.recentProgress[FIRST_BATCHES:]
    finally:
        query.stop()
    return median(report.durationMs["triggerExecution"] for report in reports)


def _time(name: str, samples: list[float]) -> Figure:
    return Figure(name=name, unit="ms", samples=tuple(samples), choice=Choice.MEDIAN)
