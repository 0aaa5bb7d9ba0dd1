"""Throughput of reading a topic in Spark, compared with Parquet and with Spark's Kafka connector.

All columns are read and dropped. The Parquet table has the same rows, compressed with lz4 and without
dictionaries, in as many files as the topic has partitions.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.spark_setting import SparkBenchmark, in_turn, seconds, share, speed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARQUET_RATIO_MIN = {"100 B": 0.40, "1 KB": 0.65}
CONNECTOR_RATIO_MIN = 0.8


def measure(setting: SparkBenchmark) -> Iterator[Figure]:
    yield from _read(setting, "100 B", setting.small, setting.size.small_records)
    yield from _read(setting, "1 KB", setting.large, setting.size.large_records)


def _read(setting: SparkBenchmark, kind: str, topic: str, records: int) -> Iterator[Figure]:
    path = str(setting.folder / f"{topic}.parquet")
    ours = setting.topic("penstock", topic)
    ours.write.option("compression", "lz4").option("parquet.enable.dictionary", "false").parquet(path)
    frames = {"ours": ours, "parquet": setting.spark.read.parquet(path)}
    if setting.connector is not None:
        frames["connector"] = setting.topic("kafka", topic)
    runs = {name: seconds(partial(to_nowhere, frame)) for name, frame in frames.items()}
    found = in_turn(runs, setting.size.pairs)
    yield speed(f"read a topic, {kind}", records, found["ours"])
    yield speed(f"read Parquet, {kind}", records, found["parquet"])
    yield share(
        f"topic as a share of Parquet, {kind}", found["ours"], found["parquet"], PARQUET_RATIO_MIN[kind]
    )
    if "connector" in found:
        yield speed(f"read by the connector {setting.connector}, {kind}", records, found["connector"])
        yield share(
            f"topic as a share of the connector, {kind}",
            found["ours"],
            found["connector"],
            CONNECTOR_RATIO_MIN,
        )


def to_nowhere(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()
