"""A first batch that is run again after a crash: what retention has removed meanwhile is told of."""

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from penstock.errors import CommandFailed
from penstock.spark.pipelines.common.first_batch import check_first_batch
from penstock.spark.pipelines.common.query_run import StopRequest
from penstock.spark.pipelines.detect.detect import DetectSettings, run_detect
from penstock.spark.pipelines.detect.rules import DetectRule, DetectRules, RuleKind, StreamSpec
from penstock.spark.pipelines.etl.etl import run_etl
from penstock.spark.pipelines.etl.stages import EtlSettings
from penstock.testing import Broker, broker
from tests.spark.etl_runs import settings_for, written
from tests.spark.topics import create, fill, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOST = r"began at offset 0 when this was first started and begins at 30 now.* give --allow-loss"
RULES = DetectRules(StreamSpec(), (DetectRule("many", RuleKind.COUNT, 2, 60_000),))
SPEC = """
    name = "NAME"
    [extract]
    from = "topic"
    topic = "NAME"
    schema = "id bigint"
    [load]
    to = "topic"
    topic = "NAME-loaded"
"""


class SparkUsed(Exception):
    """What comes before Spark is done."""


class NoSpark:
    """A session that only has settings."""

    conf = SimpleNamespace(get=lambda name, default: default)

    def __getattr__(self, name: str) -> Any:
        raise SparkUsed


NO_SPARK = cast("SparkSession", NoSpark())


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with broker() as started:
        yield started


def filled(running: Broker, topic: str) -> dict[str, str]:
    create(running, topic)
    fill(running, topic, numbered(50))
    return {"kafka.bootstrap.servers": running.bootstrap}


def trim(running: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    (deleted,) = admin.delete_records([KafkaPartition(topic, 0, 30)]).values()
    deleted.result()


def died_in_its_first_batch(checkpoint: Path) -> None:
    (checkpoint / "metadata").touch()
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "0").touch()


def test_records_of_a_first_batch_that_are_gone_are_told_of(
    running: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access = filled(running, "trimmed")

    def check(*, allow_loss: bool = False) -> None:
        check_first_batch(tmp_path, access, ["trimmed"], allow_loss=allow_loss)

    check()
    died_in_its_first_batch(tmp_path)
    check()
    trim(running, "trimmed")
    with pytest.raises(CommandFailed, match=LOST):
        check()
    with caplog.at_level(logging.WARNING):
        check(allow_loss=True)
    assert "retention removed records that were to be read" in caplog.text
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / ".0.crc").touch()
    with pytest.raises(CommandFailed, match=LOST):
        check()
    (tmp_path / "commits" / "0").touch()
    check()


def test_what_was_gone_before_a_query_was_started_was_never_to_be_read(
    running: Broker, tmp_path: Path
) -> None:
    access = filled(running, "trimmed-before")
    check_first_batch(tmp_path, access, ["trimmed-before"], allow_loss=False)
    trim(running, "trimmed-before")
    check_first_batch(tmp_path, access, ["trimmed-before"], allow_loss=False)


def test_detect_does_not_pass_over_records_of_its_first_batch(running: Broker, tmp_path: Path) -> None:
    access = filled(running, "payments")
    settings = DetectSettings("payments", "alerts", RULES, access, tmp_path / "checkpoint")

    def run(settings: DetectSettings) -> None:
        run_detect(NO_SPARK, settings, StopRequest(), lambda line: None)

    with pytest.raises(SparkUsed):
        run(settings)
    died_in_its_first_batch(settings.checkpoint)
    trim(running, "payments")
    with pytest.raises(CommandFailed, match=LOST):
        run(settings)
    with pytest.raises(SparkUsed):
        run(settings._replace(allow_loss=True))


def test_etl_does_not_pass_over_records_of_a_first_batch(running: Broker, tmp_path: Path) -> None:
    filled(running, "purchases")
    settings = settings_for(written(tmp_path, SPEC, NAME="purchases"), running.bootstrap)

    def run(settings: EtlSettings) -> None:
        run_etl(NO_SPARK, settings, StopRequest(), lambda line: None)

    with pytest.raises(SparkUsed):
        run(settings)
    died_in_its_first_batch(settings.checkpoint("extract"))
    trim(running, "purchases")
    with pytest.raises(CommandFailed, match=LOST):
        run(settings)
    with pytest.raises(SparkUsed):
        run(settings._replace(allow_loss=True))
