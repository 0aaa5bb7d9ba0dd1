"""A Spark session that works after a plain `pip install 'penstock[spark]'`.

    with spark_session("archive") as spark:
        spark.read.format("penstock")...

Rule 1: Java is found or prepared before Spark looks for it, and Python workers run on this Python.
Rule 2: Settings of the caller have precedence over the ones here, which are for one machine and a user at a
        terminal.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigError
from penstock.spark.runtime.hide_jvm_output import failure_reason, stderr_kept
from penstock.spark.runtime.jvm import set_java_home
from penstock.spark.runtime.spark_home import linked_spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ON_THIS_MACHINE: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # What Spark hides in plans and logs by default, and also a private key that is given as text.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|keystore[.]key",
    # Streams keep state for each shuffle partition. Spark's default of 200 is for large clusters.
    "spark.sql.shuffle.partitions": "8",
}


@contextmanager
def spark_session(
    app_name: str,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    *,
    log_level: str = "ERROR",
    quiet: bool = False,
) -> Iterator["SparkSession"]:
    """A session that is stopped when the block ends. If `quiet`, Java writes nothing to the terminal."""
    spark = start_session(app_name, master, settings, log_level=log_level, quiet=quiet)
    try:
        yield spark
    finally:
        spark.stop()


def start_session(
    app_name: str,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    *,
    log_level: str = "ERROR",
    quiet: bool = False,
) -> "SparkSession":
    """Start a session. ConfigError if a package is missing, or Spark does not start."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'penstock[spark]'") from error
    set_java_home()
    # Otherwise executors would run the first `python3` on their PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = (settings or {}).get("spark.master", master)
    local = _ON_THIS_MACHINE if master.startswith("local") else {}
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in {**local, **_SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = _create_session(builder, master, quiet=quiet)
    spark.sparkContext.setLogLevel(log_level)
    return spark


def _create_session(builder: "SparkSession.Builder", master: str, *, quiet: bool) -> "SparkSession":
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    with linked_spark_home(master), stderr_kept() if quiet else nullcontext() as captured:
        try:
            return builder.getOrCreate()
        except (PySparkException, Py4JError) as problem:
            why = (
                failure_reason(str(problem))
                if captured is None
                else failure_reason(captured.text()) or failure_reason(str(problem))
            )
            raise ConfigError(
                f"Spark does not start on {master}: {why or 'no reason was given'}. "
                "Check the address of the master and the settings of Spark"
            ) from problem
