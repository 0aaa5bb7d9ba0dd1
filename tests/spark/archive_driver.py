"""A program that archives one topic to a lake of each of some formats at the same time, and then ends.

It is what the tests kill: one Spark, a query for each. Run as a module, with the brokers, the topic, a
folder, the number of rows in a batch, and the formats.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.errors import CommandFailed
from penstock.spark.pipelines.archive.archive import ArchiveReport, ArchiveSettings, run_archive
from penstock.spark.pipelines.common.query_run import StopRequest
from penstock.spark.session import spark_session


def settings(bootstrap: str, topic: str, folder: Path, form: str, rows: int) -> ArchiveSettings:
    access = {"kafka.bootstrap.servers": bootstrap}
    return ArchiveSettings(
        (topic,), folder / form, access, format=form, name=form, once=True, rows_per_batch=rows, compact=True
    )


def run_one(spark: SparkSession, wanted: ArchiveSettings) -> ArchiveReport:
    # Spark looks for Python's sinks in the session of the thread, and only the main thread has one.
    jvm = spark._jvm
    assert jvm is not None
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
    return run_archive(spark, wanted, StopRequest(), print)


def main(bootstrap: str, topic: str, folder: Path, rows: int, formats: Sequence[str]) -> int:
    failures = 0
    # A task whose worker is killed is run again, as on a cluster.
    with spark_session("archives", "local[2,4]", log_level="OFF") as spark:
        with ThreadPoolExecutor(len(formats)) as threads:
            runs = [
                threads.submit(run_one, spark, settings(bootstrap, topic, folder, form, rows))
                for form in formats
            ]
        for run in runs:
            try:
                print(run.result().document())
            except CommandFailed as problem:
                print(f"failed: {problem}")
                failures += 1
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]))
