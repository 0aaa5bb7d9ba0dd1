"""How fast a topic becomes a lake, against Spark's own Parquet sink on the same rows.

    python -m benchmarks.spark_archive              two million records, four pairs
    python -m benchmarks.spark_archive --quick      a fifth of them, two pairs

Both sides read the same topic with the same source in batches of the same size, from a checkpoint of their
own, and write snappy Parquet. What differs is the sink. Ours syncs its files and commits them; Spark's does
not sync. They take turns in one Spark that was warmed by a run of each, so that each pair shares the
state of the machine; the ratio is the median over the pairs.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Producer

from benchmarks.brokers import running_broker, temporary_folder
from benchmarks.figures import Better, Choice, Figure, table
from benchmarks.topics import new_topic
from penstock.spark.lake import sink
from penstock.spark.pipelines.archive import COLUMNS
from penstock.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 2_000_000
VALUE_BYTES = 100
PARTITIONS = 4
ROWS_PER_BATCH = 1_000_000
RATIO_MIN = 0.95
FORMATS = ("parquet", "delta", "iceberg")


class Size(NamedTuple):
    records: int
    pairs: int


def measure(size: Size) -> Iterator[Figure]:
    with (
        temporary_folder() as folder,
        running_broker(folder) as broker,
        spark_session("archive", "local[*]", log_level="OFF") as spark,
        new_topic(broker.bootstrap, PARTITIONS, "before_ack") as topic,
    ):
        fill(broker.bootstrap, topic, size.records)
        sink.register(spark)
        run = Runs(spark, broker.bootstrap, topic, folder / "out")
        for by in ("none", "day"):
            yield from _compared(run, size, by)


def _compared(run: "Runs", size: Size, by: str) -> Iterator[Figure]:
    run.native(by)
    for form in FORMATS:
        run.lake(form, by)
    native: list[float] = []
    ours: dict[str, list[float]] = {form: [] for form in FORMATS}
    ratios: dict[str, list[float]] = {form: [] for form in FORMATS}
    for _ in range(size.pairs):
        for form in FORMATS:
            own, spark = run.lake(form, by), run.native(by)
            ours[form].append(size.records / own / 1000)
            native.append(size.records / spark / 1000)
            ratios[form].append(spark / own)
    where = "one folder" if by == "none" else "folders by day"
    yield _figure(f"Spark's own Parquet sink, {where}", "k rows/s", native)
    for form in FORMATS:
        yield _figure(f"archive to {form}, {where}", "k rows/s", ours[form])
        target = RATIO_MIN if form == "parquet" else None
        yield _figure(f"  as a share of Spark's own, {where}", "x", ratios[form], target)


def _figure(name: str, unit: str, samples: list[float], target: float | None = None) -> Figure:
    return Figure(
        name=name,
        unit=unit,
        samples=tuple(samples),
        better=Better.HIGHER,
        choice=Choice.MEDIAN,
        target=target,
    )


class Runs:
    """Queries over the whole topic, each with a folder and a checkpoint of its own."""

    def __init__(self, spark: "SparkSession", bootstrap: str, topic: str, folder: Path) -> None:
        self._spark = spark
        self._options = {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(ROWS_PER_BATCH),
        }
        self._folder = folder
        self._count = 0

    def native(self, by: str) -> float:
        from pyspark.sql import functions

        stream = self._stream()
        if by == "day":
            stream = stream.withColumn("date", functions.to_date("timestamp"))
        return self._timed(
            lambda place: (
                stream.writeStream.format("parquet")
                .partitionBy(*(["date"] if by == "day" else []))
                .option("checkpointLocation", f"{place}-checkpoint")
                .option("path", str(place))
                .option("compression", "snappy")
                .trigger(availableNow=True)
                .start()
                .awaitTermination()
            )
        )

    def lake(self, form: str, by: str) -> float:
        return self._timed(
            lambda place: (
                self._stream()
                .writeStream.format(sink.NAME)
                .option("checkpointLocation", f"{place}-checkpoint")
                .option("path", str(place))
                .option("lakeFormat", form)
                .option("partitionBy", by)
                .option("batchColumn", "ingestBatch")
                .trigger(availableNow=True)
                .start()
                .awaitTermination()
            )
        )

    def _stream(self) -> "DataFrame":
        return self._spark.readStream.format("penstock").options(**self._options).load().select(*COLUMNS)

    def _timed(self, run: Callable[[Path], object]) -> float:
        self._count += 1
        began = time.monotonic()
        run(self._folder / str(self._count))
        return time.monotonic() - began


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Values that no dictionary shortens."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 500_000})
    for number in range(records):
        value = (f"{number * 2_654_435_761 % 2**64:020d}" * (VALUE_BYTES // 20)).encode()
        producer.produce(topic, value, b"key-%06d" % (number % 50_000), number % PARTITIONS)
        if number % 50_000 == 0:
            producer.flush()
    producer.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the records")
    size = Size(RECORDS // 5, 2) if parser.parse_args().quick else Size(RECORDS, 4)
    figures = list(measure(size))
    print(table(figures))
    shares = [figure for figure in figures if figure.unit == "x" and figure.target is not None]
    print(f"median share of Spark's own sink: {median(figure.value for figure in shares):.2f}")


if __name__ == "__main__":
    main()
