"""What is lost, doubled, changed or out of order is found, each by itself, and nothing else is."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from penstock.cli.client_app import app
from penstock.errors import CommandFailed, ConfigError
from penstock.spark import session
from penstock.spark.lake.description import FORMATS
from penstock.spark.lake.lake_table import DataFile, LakeBatch
from penstock.spark.pipelines.audit.audit import AuditSettings, check, run_audit
from penstock.spark.pipelines.audit.ids import parse_ids
from penstock.spark.pipelines.audit.report import AuditReport
from penstock.spark.pipelines.common.query_run import StopRequest
from penstock.testing import Broker
from tests.integration.broker_process import eventually, penstock
from tests.spark.lake_topics import SCHEMA, backwards, make_lake, make_topic, record, records, send
from tests.spark.topics import create
from tests.unit.spark.lake.lake_tables import TestTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS_MAX = 240  # on a machine with much else to do, Spark takes minutes to start
ROWS = 300
SPANS = [(0, 100), (100, 200), (200, 300)]
KINDS = ("lost", "duplicated", "different", "order", "files", "unknown", "behind")


@pytest.fixture(scope="module")
def topic(running: Broker) -> str:
    """Two partitions with ROWS records each."""
    make_topic(running, "audit-orders", ROWS)
    return "audit-orders"


def settings(running: Broker, topic: str, lake: Path | None = None, **more: Any) -> AuditSettings:
    access = {"kafka.bootstrap.servers": running.bootstrap}
    return AuditSettings((topic,), access, lake)._replace(**more)


def audited(spark: "SparkSession", wanted: AuditSettings) -> AuditReport:
    report = run_audit(spark, wanted, StopRequest(), lambda line: None)
    assert json.loads(json.dumps(report.document()))["clean"] == report.is_clean
    return report


def numbers(report: AuditReport) -> dict[str, int]:
    return {kind: report.total(kind) for kind in KINDS if report.total(kind)}


def file_of(table: TestTable, offset: int) -> str:
    """The archived file that has this offset of the first partition."""
    import pyarrow.parquet as pq

    for path in table.paths():
        rows = pq.ParquetFile(path).read(["partition", "offset"]).to_pylist()
        if {"partition": 0, "offset": offset} in rows:
            return path
    raise AssertionError(offset)


def double(table: TestTable, path: str) -> None:
    """The same rows in another file, committed by one who does not say which rows they are."""
    copy = Path(path).with_name(f"copy-of-{Path(path).name}")
    shutil.copy(path, copy)
    folder = str(copy.parent.relative_to(table.folder))
    file = DataFile("" if folder == "." else folder, copy.name, 100, copy.stat().st_size)
    assert table.commit(LakeBatch("somebody", 0, (file,), {}, SCHEMA))


@pytest.mark.parametrize("form", FORMATS)
def test_a_lake_with_all_records_is_clean_and_damage_is_found(
    spark: "SparkSession", running: Broker, topic: str, tmp_path: Path, form: str
) -> None:
    clean = make_lake(tmp_path / "clean", form, topic, SPANS)
    report = audited(spark, settings(running, topic, clean.folder, complete=True, strict=True))
    assert numbers(report) == {}
    assert report.checked == {"records of topics": 2 * ROWS, "rows of the table": 2 * ROWS}
    damaged = make_lake(tmp_path / "damaged", form, topic, SPANS, {1: backwards})
    double(damaged, file_of(damaged, 200))
    Path(file_of(damaged, 0)).unlink()
    report = audited(spark, settings(running, topic, damaged.folder))
    found = {finding.kind: finding for finding in [*report.violations, *report.notes]}
    # Delta orders files as it likes: that is told, and is no violation.
    order = {} if form == "delta" else {"order": 99}
    assert numbers(report) == {"lost": 100, "duplicated": 100, "files": 1, **order}
    assert found["lost"].examples == ("offsets 0 to 99",)
    assert (found["lost"].where, found["duplicated"].where) == (f"{topic}/0", f"{topic}/0")
    assert found["sorted" if form == "delta" else "order"].number == 99
    assert not report.is_clean


def test_contents_are_compared_unless_only_offsets_are_wanted(
    spark: "SparkSession", running: Broker, topic: str, tmp_path: Path
) -> None:
    def exchanged(rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows 1 and 2 have each other's values: what was sent second comes first."""
        values = rows.column("value").to_pylist()
        values[1], values[2] = values[2], values[1]
        return rows.set_column(6, SCHEMA.field("value"), pa.array(values, pa.binary()))

    table = make_lake(tmp_path / "lake", "parquet", topic, SPANS, {0: exchanged})
    wanted = settings(running, topic, table.folder)
    assert numbers(audited(spark, wanted)) == {"different": 2}
    assert audited(spark, wanted._replace(offsets_only=True)).is_clean


def test_a_file_that_only_lies_in_the_folder_is_found(
    spark: "SparkSession", running: Broker, topic: str, tmp_path: Path
) -> None:
    table = make_lake(tmp_path / "lake", "parquet", topic, SPANS)
    path = Path(table.paths()[0])
    shutil.copy(path, path.with_name("stray.parquet"))
    report = audited(spark, settings(running, topic, table.folder))
    assert numbers(report) == {"files": 1}
    assert report.violations[0].examples[0].endswith("stray.parquet")


def test_records_not_archived_yet_are_behind_and_expired_are_no_loss(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    topic = "audit-retention"
    make_topic(running, topic, ROWS)
    table = make_lake(tmp_path / "lake", "parquet", topic, [(0, 40), (50, 100), (100, 200)])
    wanted = settings(running, topic, table.folder)
    report = audited(spark, wanted)
    assert numbers(report) == {"lost": 20, "behind": 200}
    truncate(running, topic, 60)
    report = audited(spark, wanted)
    # Nobody knows what was at offsets 40 to 49: marks of transactions, compacted records, or a loss.
    assert numbers(report) == {"unknown": 20, "behind": 200}
    assert report.is_clean
    assert [finding.kind for finding in audited(spark, wanted._replace(strict=True)).violations] == [
        "unknown"
    ] * 2
    assert not audited(spark, wanted._replace(complete=True)).is_clean
    truncate(running, topic, 250)
    assert numbers(audited(spark, wanted)) == {"unknown": 20, "behind": 100, "lost": 100}


def truncate(running: Broker, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    wanted = [TopicPartition(topic, number, offset) for number in range(2)]
    for future in admin.delete_records(wanted).values():
        future.result(30)


def test_compacted_records_are_no_loss_and_a_topic_made_anew_is_told(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    topic = "audit-anew"
    make_topic(running, topic, 150)
    table = make_lake(tmp_path / "lake", "parquet", topic, SPANS)
    report = audited(spark, settings(running, topic, table.folder))
    assert numbers(report) == {"different": 300}
    assert "deleted and made anew" in report.violations[0].line()


def test_records_are_followed_from_topic_to_topic(spark: "SparkSession", running: Broker, topic: str) -> None:
    """Enriched: 3 and 4 of partition 0 are missing, 20 is there twice, 51 and 61 of one key have changed
    places, one has no id, and the last ten are not there yet."""
    create(running, "audit-enriched", 2)
    first = records(0, 0, ROWS - 10)
    first[51], first[61] = first[61], first[51]
    without_id = record(0, 1) | {"headers": [], "value": b"{}"}
    send(running, "audit-enriched", 0, [*first[:3], *first[5:], record(0, 20), without_id])
    send(running, "audit-enriched", 1, records(1, 0, ROWS))
    wanted = settings(running, topic, against=("audit-enriched",), ids=parse_ids(["header:id"]))
    report = audited(spark, wanted)
    assert numbers(report) == {"lost": 2, "duplicated": 1, "order": 1, "unknown": 1, "behind": 10}
    found = {finding.kind: finding for finding in report.violations}
    assert found["lost"].examples == (f"0-3 from {topic}/0 offset 3", f"0-4 from {topic}/0 offset 4")
    assert found["duplicated"].examples[0].startswith(f"0-20 from {topic}/0 offset 20")
    assert found["order"].examples[0] == f"0-51 from {topic}/0 offset 51 at audit-enriched/0 offset 59"
    assert report.checked == {f"ids of {topic} to audit-enriched": 2 * ROWS}
    ids = parse_ids(["key", "json:number"])
    # Of those beyond offset 30 none is lost or doubled; some of the target have no key or no value.
    where = "value is not null and key is not null and offset > 30"
    report = audited(spark, wanted._replace(ids=ids, where=where))
    assert {kind: number for kind, number in numbers(report).items() if kind != "unknown"} == {
        "order": 1,
        "behind": sum(None not in (each["key"], each["value"]) for each in records(0, 290, 300)),
    }


def test_an_id_that_is_there_twice_is_found_in_one_topic(
    spark: "SparkSession", running: Broker, topic: str
) -> None:
    create(running, "audit-single", 1)
    send(running, "audit-single", 0, [record(0, number) for number in (1, 2, 3, 2, 2)])
    report = audited(spark, settings(running, "audit-single", ids=parse_ids(["json:order.id"])))
    assert numbers(report) == {"duplicated": 2}
    report = audited(spark, settings(running, topic, ids=parse_ids(["header:id"])))
    assert report.is_clean


def test_keys_that_are_spread_over_partitions_have_no_order(spark: "SparkSession", running: Broker) -> None:
    make_topic(running, "audit-keys", 20, partitions=1)
    create(running, "audit-spread", 2)
    rows = records(0, 0, 20)
    send(running, "audit-spread", 0, rows[:11])
    send(running, "audit-spread", 1, rows[11:])
    wanted = settings(running, "audit-keys", against=("audit-spread",), ids=parse_ids(["header:id"]))
    report = audited(spark, wanted)
    spread = {row["key"] for row in rows[:11]} & {row["key"] for row in rows[11:]} - {None}
    assert numbers(report) == {"order": len(spread)}


def test_what_is_wrong_is_said_before_spark_starts(running: Broker, topic: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is nothing to audit: give --lake"):
        check(settings(running, topic))
    with pytest.raises(ConfigError, match="--against needs --id"):
        check(settings(running, topic, tmp_path, against=("other",)))
    with pytest.raises(ConfigError, match="cannot be audited against itself"):
        check(settings(running, topic, against=(topic,), ids=parse_ids(["key"])))
    with pytest.raises(CommandFailed, match="there is no topic nowhere"):
        check(settings(running, topic, against=("nowhere",), ids=parse_ids(["key"])))
    with pytest.raises(CommandFailed, match="no table is in"):
        check(settings(running, topic, tmp_path))
    done = penstock("pipeline", "audit", "--topic", topic, "--id", "colour", "--bootstrap", running.bootstrap)
    assert done.exit_code == 2
    assert "--id 'colour' says not what records are known by: give header:NAME, key" in done.stderr


def test_a_wrong_condition_is_said(spark: "SparkSession", running: Broker, topic: str) -> None:
    wanted = settings(running, topic, ids=parse_ids(["key"]), where="colour = 1")
    with pytest.raises(CommandFailed, match=r"--where 'colour = 1' is no condition on the records"):
        audited(spark, wanted)


def words(running: Broker, topic: str, folder: Path) -> list[str]:
    what = ["pipeline", "audit", "--topic", topic, "--lake", str(folder)]
    return [*what, "--bootstrap", running.bootstrap, "--master", "local[1]"]


def test_the_command_ends_with_3_if_there_is_a_violation(
    spark: "SparkSession", running: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The Spark of these tests is started already, and is not to be stopped.
    monkeypatch.setattr(session, "spark_session", lambda *_, **__: nullcontext(spark))
    table = make_lake(tmp_path / "lake", "parquet", topic, SPANS)
    Path(table.paths()[0]).unlink()
    done = CliRunner().invoke(app, [*words(running, topic, table.folder), "--offsets-only"])
    assert done.exit_code == 3, done.stderr
    assert f"VIOLATION  lost: {topic}/0: 100 records are not in the table (offsets 0 to 99)" in done.stdout
    assert "verdict" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.campaign
def test_ctrl_c_leaves_no_verdict(running: Broker, topic: str, tmp_path: Path) -> None:
    table = make_lake(tmp_path / "lake", "parquet", topic, SPANS)
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *words(running, topic, table.folder)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    try:

        def is_under_way() -> bool:
            assert process.poll() is None, (tmp_path / "stderr").read_text()
            return "600 offsets in 2 partitions against 6 files" in (tmp_path / "stderr").read_text()

        eventually(is_under_way, seconds_max=SECONDS_MAX, every=0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to Spark's processes as well
        stdout, _ = process.communicate(timeout=SECONDS_MAX)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    said = (tmp_path / "stderr").read_text()
    assert (process.returncode, stdout) == (130, ""), said
    assert "there is no verdict" in said
    assert "Traceback" not in said
