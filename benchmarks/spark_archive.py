"""Throughput of `penstock pipeline archive`, compared with Spark's Parquet sink on the same topic.

Both read batches of the same size from their own checkpoints and write snappy Parquet. The pipeline runs as
its command does: it syncs its files and commits them once. Spark's sink does not sync.
"""

from collections.abc import Callable, Iterator
from itertools import count

from benchmarks.figures import Figure
from benchmarks.spark_setting import SparkBenchmark, in_turn, seconds, share, speed
from penstock.spark.lake.time_partitioning import PartitionBy
from penstock.spark.pipelines.archive.archive import ArchiveSettings, run_archive
from penstock.spark.pipelines.archive.archive_tasks import COLUMNS
from penstock.spark.pipelines.common.query_run import StopRequest

BATCHES = 2
RATIO_MIN = 0.95

_numbers = count(1)


def measure(setting: SparkBenchmark) -> Iterator[Figure]:
    for by in (PartitionBy.NONE, PartitionBy.DAY):
        yield from _compared(setting, by)


def _compared(setting: SparkBenchmark, by: PartitionBy) -> Iterator[Figure]:
    records = setting.size.small_records
    found = in_turn(
        {"ours": seconds(_archive(setting, by)), "sink": seconds(_own_sink(setting, by))}, setting.size.pairs
    )
    where = "one folder" if by is PartitionBy.NONE else "folders by day"
    yield speed(f"archive, {where}", records, found["ours"])
    yield speed(f"Spark's own Parquet sink, {where}", records, found["sink"])
    yield share(f"archive as a share of Spark's own, {where}", found["ours"], found["sink"], RATIO_MIN)


def _archive(setting: SparkBenchmark, by: PartitionBy) -> Callable[[], object]:
    def run() -> object:
        return run_archive(
            setting.spark,
            ArchiveSettings(
                (setting.small,),
                setting.folder / f"lake-{next(_numbers)}",
                {"kafka.bootstrap.servers": setting.bootstrap},
                partition_by=by,
                once=True,
                rows_per_batch=setting.size.small_records // BATCHES,
            ),
            StopRequest(),
            lambda line: None,
        )

    return run


def _own_sink(setting: SparkBenchmark, by: PartitionBy) -> Callable[[], object]:
    from pyspark.sql import functions

    options = {"kafka.bootstrap.servers": setting.bootstrap, "subscribe": setting.small}
    limit = {"maxOffsetsPerTrigger": str(setting.size.small_records // BATCHES)}
    stream = setting.spark.readStream.format("penstock").options(**options, **limit)
    rows = stream.options(startingOffsets="earliest", includeHeaders="true").load().select(*COLUMNS)
    if by is PartitionBy.DAY:
        rows = rows.withColumn("date", functions.to_date("timestamp"))

    def run() -> object:
        place = setting.folder / f"own-{next(_numbers)}"
        return (
            rows.writeStream.format("parquet")
            .partitionBy(*(["date"] if by is PartitionBy.DAY else []))
            .option("checkpointLocation", f"{place}-checkpoint")
            .option("path", str(place))
            .option("compression", "snappy")
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    return run
