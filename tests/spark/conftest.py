"""One Spark for all tests of a process, beside a real broker.

A JVM takes seconds to start and half a gigabyte, so files that use it run in two workers
(`SPARK_SESSIONS` in tests/conftest.py): two JVMs at most.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.testing import Broker, broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
# Programs that live for seconds are not worth compiling well: a quarter less work in all.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
SPARK_SECONDS_MAX = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_SECONDS_MAX))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    from penstock.spark.session import spark_session

    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        # Queries over a few rows are quicker run than compiled.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.memory": "700m",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        # Queries are stopped at once, whatever they are doing.
        "spark.sql.streaming.stopTimeout": "20s",
    }
    with spark_session("penstock tests", "local[2]", settings, log_level="OFF") as session:
        yield session


@pytest.fixture(scope="session")
def running() -> Iterator[Broker]:
    """The broker that tests of this folder share. Topics have names of their own."""
    with broker(**{"auto.create.topics.enable": False, "group.initial.rebalance.delay.ms": 0}) as one:
        yield one


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
