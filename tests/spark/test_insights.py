"""A topic measured: what was planted in it is found, in numbers and in advice, and nothing else."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import CommandFailed
from penstock.protocol.compression import Codec
from penstock.spark.pipelines.common.query_run import StopRequest
from penstock.spark.pipelines.common.spark_action import RunInterrupted
from penstock.spark.pipelines.insights.insights import (
    InsightsReport,
    InsightsSettings,
    check,
    parse_created_field,
    run_insights,
)
from penstock.spark.pipelines.replay.plan import Bound
from penstock.spark.records.encode import encode
from penstock.spark.records.key_partitioner import assign_partitions
from penstock.testing import Broker
from penstock.types import Offset, TopicPartition
from tests.integration.broker_process import penstock
from tests.spark.topics import client_of, create

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
START_MS = 1_770_000_000_000
ROWS = 4_000
HOT_EVERY = 2
LATE = (1_001, 2_001, 3_001)
LATE_MS = 90_000
FUTURE = 1_501


def key_of(number: int) -> bytes:
    return b"whale" if number % HOT_EVERY == 0 else b"key-%d" % (number % 997)


def time_of(number: int) -> int:
    """Ten in a second; some are late."""
    return START_MS + 100 * number - (LATE_MS if number in LATE else 0)


def fill(running: Broker, topic: str, *, hot: bool) -> None:
    """Records say in a header that they were made 40 ms ago, the late ones as much earlier."""
    from confluent_kafka import Producer

    create(running, topic, PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": running.bootstrap, "partitioner": "murmur2_random", "linger.ms": 50}
    )
    for number in range(ROWS):
        made_ms = time_of(number) - 40 + (5_000 if number == FUTURE else 0)
        headers: list[tuple[str, str | bytes | None]] = [("made-at", b"%d" % made_ms)]
        key = key_of(number) if hot else b"key-%d" % number
        producer.produce(
            topic, b"v" * 90, key, timestamp=time_of(number), headers=headers[number % 100 == 99 :]
        )
    assert producer.flush(60) == 0


def settings(running: Broker, topic: str, folder: Path, **more: Any) -> InsightsSettings:
    access = {"kafka.bootstrap.servers": running.bootstrap}
    return InsightsSettings(topic, access, folder / "report.html")._replace(**more)


def looked_at(spark: "SparkSession", wanted: InsightsSettings) -> InsightsReport:
    return run_insights(spark, wanted, check(wanted), StopRequest(), lambda line: None)


def test_what_was_planted_is_found_and_nothing_else(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    fill(running, "insights-hot", hot=True)
    with client_of(running) as client:
        client.commit("billing", {TopicPartition("insights-hot", 0): Offset(1)})
    wanted = settings(
        running, "insights-hot", tmp_path, made=parse_created_field("header:made-at"), groups=("billing",)
    )
    report = looked_at(spark, wanted)
    found = report.measured
    expected = [0] * PARTITIONS
    keys = pa.array([key_of(number) for number in range(ROWS)], pa.binary())
    for partition in assign_partitions(keys, PARTITIONS).tolist():
        expected[partition] += 1
    assert [each.rows for each in found.partitions] == expected
    assert found.bytes == sum(len(key_of(number)) + 90 for number in range(ROWS))
    whale = found.keys[0]
    assert (whale.key, whale.rows, whale.bytes) == (b"whale", ROWS // HOT_EVERY, ROWS // HOT_EVERY * 95)
    assert (found.distinct_keys, found.scattered_keys) == (998, 0)
    assert found.behind is not None
    assert found.late_rows[1_000] == len(LATE)
    assert found.late_rows[10 * 60_000] == 0
    assert LATE_MS - 2_000 <= found.behind.max_ms <= LATE_MS
    assert found.latency is not None
    assert (found.latency.max_ms, found.from_the_future) == (40, 1)
    assert 38 <= found.latency.p50_ms <= 40
    assert found.without_made == ROWS // 100
    assert found.slice_ms == 10_000
    assert sum(each.rows for each in found.slices) == ROWS
    assert found.peak.rows == 101, "a late row counts where its time is"
    (wait,) = found.groups
    assert (wait.group, wait.partition, wait.waiting) == ("billing", 0, expected[0] - 1)
    assert [each.about for each in report.advice] == ["hot key", "compression", "late rows"]
    assert "the key whale over" in report.advice[0].advice
    text = wanted.page.read_text()
    assert text.startswith("<!doctype html>")
    assert text.count("<svg") == text.count("</svg>") == 6
    assert "whale" in text
    document = json.loads(json.dumps(report.document()))
    assert (document["pipeline"], document["rows"], len(document["keys"])) == ("insights", ROWS, 20)
    assert any("whale" in line for line in report.lines())


def test_an_even_topic_has_no_hot_key_and_a_range_is_a_range(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    fill(running, "insights-even", hot=False)
    start = Bound("", timestamp_ms=time_of(1_100))
    end = Bound("", timestamp_ms=time_of(1_900))
    report = looked_at(spark, settings(running, "insights-even", tmp_path, start=start, end=end))
    found = report.measured
    assert (found.rows, found.distinct_keys, found.latency, found.without_made) == (800, 800, None, 0)
    assert [each.about for each in report.advice] == ["compression"]


def test_times_that_cannot_be_are_no_failure(spark: "SparkSession", running: Broker, tmp_path: Path) -> None:
    """Timestamps beyond what Spark can hold, and creation times whose difference to them fits no integer."""
    create(running, "insights-strange")
    values = pa.array([b'{"made": %d}' % made for made in (START_MS, -(2**63), START_MS)], pa.binary())
    times = pa.array([START_MS, START_MS, -(10**16)], pa.int64())
    with client_of(running) as client:
        batches = encode(None, values, None, times, codec=Codec.NONE, batch_bytes_max=1 << 20)
        client.produce(TopicPartition("insights-strange", 0), batches)
    wanted = settings(running, "insights-strange", tmp_path, made=parse_created_field("json:made"))
    found = looked_at(spark, wanted).measured
    assert (found.rows, found.partitions[0].oldest_ms, found.without_made) == (3, START_MS, 2)
    assert [(each.start_ms, each.rows) for each in found.slices] == [(START_MS, 2)]


def test_a_topic_without_records_is_no_failure(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    create(running, "insights-empty", 2)
    report = looked_at(spark, settings(running, "insights-empty", tmp_path))
    assert (report.measured.rows, report.advice) == (0, ())
    assert "no records" in (tmp_path / "report.html").read_text()
    stop = StopRequest()
    stop.request()
    wanted = settings(running, "insights-empty", tmp_path, page=tmp_path / "none.html")
    with pytest.raises(RunInterrupted):
        run_insights(spark, wanted, check(wanted), stop, lambda line: None)
    assert not (tmp_path / "none.html").exists()


def test_what_is_wrong_is_said_before_spark_starts(running: Broker, tmp_path: Path) -> None:
    create(running, "insights-wrong")
    wanted = settings(running, "insights-wrong", tmp_path)
    with pytest.raises(CommandFailed, match="there is no topic nowhere"):
        check(wanted._replace(topic="nowhere"))
    with pytest.raises(CommandFailed, match="is a folder: name the file"):
        check(wanted._replace(page=tmp_path))
    with pytest.raises(CommandFailed, match="there is no folder"):
        check(wanted._replace(page=tmp_path / "none" / "report.html"))
    with pytest.raises(CommandFailed, match="group nobody has committed no offset of insights-wrong"):
        check(wanted._replace(groups=("nobody",)))
    for text in ("made-at", "header:", "json:a'b"):
        with pytest.raises(CommandFailed, match="give header:NAME, or json:FIELD"):
            parse_created_field(text)


def test_the_command_says_what_is_wrong_in_one_sentence(running: Broker) -> None:
    done = penstock("pipeline", "insights", "--bootstrap", running.bootstrap, "--topic", "nowhere")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("penstock: there is no topic nowhere")
