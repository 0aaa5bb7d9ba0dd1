"""Throughput of writing a topic from Spark, compared with Spark's Kafka connector.

Rows of 100 B with keys, read from Parquet. Both sides wait for acks=all and use no compression.
"""

from collections.abc import Callable, Iterator

from benchmarks.figures import Figure
from benchmarks.spark_setting import (
    FLUSH_POLICY,
    PARTITIONS,
    SparkBenchmark,
    in_turn,
    seconds,
    share,
    speed,
)
from benchmarks.topics import new_topic

CONNECTOR_RATIO_MIN = 1.0


def measure(setting: SparkBenchmark) -> Iterator[Figure]:
    records = setting.size.written_records
    path = str(setting.folder / "rows.parquet")
    ends = ",".join(f'"{number}":{records // PARTITIONS}' for number in range(PARTITIONS))
    some = setting.topic("penstock", setting.small, endingOffsets=f'{{"{setting.small}":{{{ends}}}}}')
    some.select("key", "value").write.parquet(path)
    rows = setting.spark.read.parquet(path)
    with new_topic(setting.bootstrap, PARTITIONS, FLUSH_POLICY) as topic:

        def written_by(form: str) -> Callable[[], float]:
            options = {"kafka.bootstrap.servers": setting.bootstrap, "topic": topic}
            return seconds(lambda: rows.write.format(form).mode("append").options(**options).save())

        runs = {"ours": written_by("penstock")}
        if setting.connector is not None:
            runs["connector"] = written_by("kafka")
        found = in_turn(runs, setting.size.pairs)
    yield speed("write a topic, 100 B", records, found["ours"])
    if "connector" in found:
        yield speed(f"written by the connector {setting.connector}, 100 B", records, found["connector"])
        yield share(
            "writing as a share of the connector", found["ours"], found["connector"], CONNECTOR_RATIO_MIN
        )
