"""Rows of a lake as records again: all of them, in order, and no more than once but after a crash."""

import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.errors import CommandFailed
from penstock.spark.lake.description import FORMATS, open_table
from penstock.spark.lake.lake_table import OffsetSpan
from penstock.spark.pipelines.audit.audit import AuditSettings, run_audit
from penstock.spark.pipelines.audit.ids import parse_ids
from penstock.spark.pipelines.common.lake_rows import SCHEMA
from penstock.spark.pipelines.common.query_run import StopRequest
from penstock.spark.pipelines.common.run_lock import run_lock
from penstock.spark.pipelines.replay import replay as module
from penstock.spark.pipelines.replay.plan import Bound, ReplaySlice, ReplayState, TimeRange
from penstock.spark.pipelines.replay.replay import ReplaySettings, check, dry_run, run_replay
from penstock.spark.pipelines.replay.report import ReplayReport
from penstock.testing import Broker
from penstock.types import TopicPartition
from tests.integration.broker_process import eventually, penstock
from tests.spark.lake_topics import backwards, make_lake, make_topic, table_rows
from tests.spark.topics import create
from tests.unit.spark.lake.lake_tables import TestTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1_200
SECONDS_MAX = 240  # on a machine with much else to do, Spark takes minutes to start


class Original:
    """A topic of two partitions, and a table of each format with its records."""

    def __init__(self, running: Broker, folder: Path) -> None:
        self.access = {"kafka.bootstrap.servers": running.bootstrap}
        self.topic = "replay-original"
        self.folder = folder
        make_topic(running, self.topic, ROWS // 2)
        for form in FORMATS:
            # Some rows lie backwards in their file: their offsets say in which order they are sent.
            spans = [(0, 250), (250, 500), (500, 600)]
            make_lake(folder / form, form, self.topic, spans, {1: backwards})

    def settings(self, to: str, form: str = "parquet", **more: Any) -> ReplaySettings:
        return ReplaySettings(self.folder / form, to, self.access)._replace(**more)


@pytest.fixture(scope="module")
def original(running: Broker, tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(running, tmp_path_factory.mktemp("replay"))


def replayed(spark: "SparkSession", wanted: ReplaySettings, stop: StopRequest | None = None) -> ReplayReport:
    return run_replay(spark, wanted, stop or StopRequest(), lambda line: None)


def records_of(spark: "SparkSession", running: Broker, topic: str) -> list[Any]:
    options = {"kafka.bootstrap.servers": running.bootstrap, "subscribe": topic, "includeHeaders": "true"}
    rows = spark.read.format("penstock").options(**options).load().collect()
    return sorted(rows, key=lambda row: (row.partition, row.offset))


def source_of(row: Any) -> tuple[str, int, int]:
    headers = {header.key: bytes(header.value).decode() for header in row.headers}
    names = [f"penstock-replay-source-{part}" for part in ("topic", "partition", "offset")]
    topic, partition, offset = (headers[name] for name in names)
    return topic, int(partition), int(offset)


def offsets_of(rows: list[Any]) -> Counter[tuple[int, int]]:
    return Counter(source_of(row)[1:] for row in rows)


@pytest.mark.parametrize("form", FORMATS)
def test_records_come_back_as_they_were_and_in_order(
    spark: "SparkSession", running: Broker, original: Original, form: str
) -> None:
    copy = f"replay-copy-{form}"
    create(running, copy, 3)
    report = replayed(spark, original.settings(copy, form, rows_per_batch=500))
    assert (report.rows, report.batches, report.left) == (ROWS, 3, 0)
    before = {(row.partition, row.offset): row for row in records_of(spark, running, original.topic)}
    after = records_of(spark, running, copy)
    assert offsets_of(after) == Counter(dict.fromkeys(before, 1))
    of_key: dict[bytes, list[int]] = defaultdict(list)
    partitions_of_key: dict[bytes, set[int]] = defaultdict(set)
    for row in after:
        topic, partition, offset = source_of(row)
        was = before[partition, offset]
        assert topic == original.topic
        assert (row.key, row.value, row.timestamp) == (was.key, was.value, was.timestamp)
        assert row.headers[: len(was.headers)] == was.headers
        if row.key is not None:
            of_key[bytes(row.key)].append(offset)
            partitions_of_key[bytes(row.key)].add(row.partition)
    assert all(offsets == sorted(offsets) for offsets in of_key.values())
    assert all(len(partitions) == 1 for partitions in partitions_of_key.values())
    # What was done is not done again, and that is said.
    again = replayed(spark, original.settings(copy, form, rows_per_batch=500))
    assert (again.rows, again.rows_in_all) == (0, ROWS)
    assert any("give another --name" in line for line in again.lines())
    # The audit knows copies by their headers.
    wanted = AuditSettings((original.topic,), original.access, against=(copy,), ids=parse_ids(["replay"]))
    assert run_audit(spark, wanted._replace(complete=True), StopRequest(), print).is_clean


def test_a_part_is_replayed_by_offset_time_and_condition(
    spark: "SparkSession", running: Broker, original: Original
) -> None:
    create(running, "replay-part", 2)
    first = TopicPartition(original.topic, 0)
    wanted = original.settings(
        "replay-part",
        start=Bound("100", offset=100),
        end=Bound("json", offsets={first: 300}),
        where="partition = 0 and value is not null",
        same_partitions=True,
    )
    would = dry_run(spark, wanted, StopRequest())
    report = replayed(spark, wanted)
    rows = records_of(spark, running, "replay-part")
    was = [row for row in records_of(spark, running, original.topic) if row.partition == 0]
    expected = [row.offset for row in was if 100 <= row.offset < 300 and row.value is not None]
    assert [source_of(row)[2] for row in rows] == expected
    assert {row.partition for row in rows} == {0}
    assert would.rows == report.rows == len(expected)
    assert would.partitions == {original.topic: {"0": len(expected)}}
    # Times, and without a record of what was sent: a dry run leaves nothing.
    middle = int(was[200].timestamp.timestamp() * 1000)
    later = original.settings("replay-part", start=Bound("then", timestamp_ms=middle), name="later")
    after = [row for row in records_of(spark, running, original.topic) if _ms(row) >= middle]
    assert dry_run(spark, later, StopRequest()).rows == len(after)
    earlier = later._replace(start=Bound(), end=Bound("then", timestamp_ms=middle))
    assert dry_run(spark, earlier, StopRequest()).rows == ROWS - len(after)
    assert not later.checkpoint_folder.exists()


def _ms(row: Any) -> int:
    return int(row.timestamp.timestamp() * 1000)


def test_the_rate_is_kept_over_the_whole_run(
    spark: "SparkSession", running: Broker, original: Original
) -> None:
    create(running, "replay-slow", 1)
    wanted = original.settings("replay-slow", rows_per_s=400.0, end=Bound("600", offset=600))
    would = dry_run(spark, wanted, StopRequest())
    assert would.seconds_at_least == ROWS / 400
    report = replayed(spark, wanted)
    assert report.rows == ROWS
    assert report.rows_per_s <= 400
    assert report.batches >= 2


def test_a_crash_before_a_slice_is_recorded_sends_only_it_again(
    spark: "SparkSession", running: Broker, original: Original, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(running, "replay-crash", 2)
    wanted = original.settings("replay-crash", rows_per_batch=400)
    keep, kept = module.store_state, []

    def crash(settings: ReplaySettings, record: ReplayState) -> None:
        kept.append(record.slices)
        if record.slices == 2:
            raise OSError("the machine is gone")
        keep(settings, record)

    monkeypatch.setattr(module, "store_state", crash)
    with pytest.raises(OSError, match="the machine is gone"):
        replayed(spark, wanted)
    monkeypatch.undo()
    assert kept == [0, 1, 2]
    report = replayed(spark, wanted)
    assert (report.rows, report.rows_in_all, report.left) == (800, ROWS, 0)
    sent = offsets_of(records_of(spark, running, "replay-crash"))
    assert len(sent) == ROWS
    assert Counter(sent.values()) == {1: 800, 2: 400}
    ids = AuditSettings((original.topic,), original.access, against=("replay-crash",))
    found = run_audit(spark, ids._replace(ids=parse_ids(["replay"])), StopRequest(), print)
    assert (found.total("duplicated"), found.total("lost"), found.total("order")) == (400, 0, 0)


def test_a_stop_ends_it_after_the_slice_and_the_next_run_goes_on(
    spark: "SparkSession", running: Broker, original: Original
) -> None:
    create(running, "replay-stop", 2)
    wanted = original.settings("replay-stop", rows_per_batch=400)
    stop = StopRequest()
    report = run_replay(spark, wanted, stop, lambda line: stop.request())
    assert (report.rows, report.left) == (400, 800)
    assert replayed(spark, wanted).rows == 800
    assert set(offsets_of(records_of(spark, running, "replay-stop")).values()) == {1}


def test_a_replay_of_the_last_day_keeps_its_bounds_when_it_goes_on_later(
    spark: "SparkSession", running: Broker, original: Original
) -> None:
    """`--start 24h --end 1h` mean other times at every start of the command: those of the first count."""
    create(running, "replay-day", 2)
    times = sorted(_ms(row) for row in records_of(spark, running, original.topic))
    day = original.settings("replay-day", rows_per_batch=200)
    first, last = times[ROWS // 4], times[-ROWS // 4]
    begun = day._replace(start=Bound("24h", timestamp_ms=first), end=Bound("1h", timestamp_ms=last))
    stop = StopRequest()
    run_replay(spark, begun, stop, lambda line: stop.request())
    later = times[-1] + 1  # the clock has moved on: nothing lies between the new bounds
    resumed = day._replace(start=Bound("24h", timestamp_ms=later), end=Bound("1h", timestamp_ms=later + 1))
    assert dry_run(spark, resumed, StopRequest()).rows > 0
    # What is left of this replay says nothing of another one.
    with pytest.raises(CommandFailed, match="was made for start"):
        dry_run(spark, resumed._replace(start=Bound("7d", timestamp_ms=0)), StopRequest())
    replayed(spark, resumed)
    sent = sorted(_ms(row) for row in records_of(spark, running, "replay-day"))
    assert sent == [time for time in times if first <= time < last]
    for changed in (resumed._replace(same_partitions=True), resumed._replace(new_timestamps=True)):
        with pytest.raises(CommandFailed, match="was made for"):
            replayed(spark, changed)


def test_a_time_that_no_timestamp_can_hold_comes_back(
    spark: "SparkSession", running: Broker, tmp_path: Path
) -> None:
    create(running, "replay-far", 1, message_timestamp_after_max_ms=str(2**63 - 1))
    rows = table_rows("far", 0, [0, 1])
    names = [*rows.schema.names, "timestampBeyond"]
    columns = {name: rows.column(name) for name in rows.schema.names}
    columns["timestamp"] = pc.if_else(pa.array([True, False]), columns["timestamp"], None)
    arrays = [*columns.values(), pa.array([None, 10**16], pa.int64())]
    TestTable(tmp_path / "lake", "parquet").append(0, pa.RecordBatch.from_arrays(arrays, names))
    access = {"kafka.bootstrap.servers": running.bootstrap}
    start = Bound("then", timestamp_ms=1)
    replayed(spark, ReplaySettings(tmp_path / "lake", "replay-far", access, start=start))
    options = {**access, "subscribe": "replay-far"}
    schema = "offset bigint, timestamp timestamp, timestampBeyond bigint"
    found = spark.read.format("penstock").options(**options).schema(schema).load().collect()
    assert [(row.timestamp is None, row.timestampBeyond) for row in found] == [(False, None), (True, 10**16)]


def test_what_is_wrong_is_said(
    spark: "SparkSession", running: Broker, original: Original, tmp_path: Path
) -> None:
    create(running, "replay-wrong", 1)
    wanted = original.settings("replay-wrong")
    with pytest.raises(CommandFailed, match=r"no table is in .*: name the folder that"):
        check(wanted._replace(folder=tmp_path))
    with pytest.raises(CommandFailed, match="there is no topic nowhere"):
        check(wanted._replace(to="nowhere"))
    with pytest.raises(CommandFailed, match="holds no rows of topic payments, only of replay-original"):
        replayed(spark, wanted._replace(topics=("payments",), name="topics"))
    with pytest.raises(CommandFailed, match=r"--where 'colour = 1' is no condition .*colour"):
        replayed(spark, wanted._replace(where="colour = 1", name="column"))
    with pytest.raises(CommandFailed, match=r"--where 'sum\(' is no condition"):
        dry_run(spark, wanted._replace(where="sum(", name="syntax"), StopRequest())
    with pytest.raises(CommandFailed, match="is for partition 1 of topic replay-wrong, which has 1"):
        replayed(spark, wanted._replace(same_partitions=True, name="partitions"))
    replayed(spark, wanted._replace(end=Bound("10", offset=10), name="twice"))
    with pytest.raises(CommandFailed, match="was made for end 10, not for end 20"):
        replayed(spark, wanted._replace(end=Bound("20", offset=20), name="twice"))
    with (
        run_lock(tmp_path, "replay", ""),
        pytest.raises(CommandFailed, match="another run of this replay is under way"),
    ):
        replayed(spark, wanted._replace(checkpoint=tmp_path))


def test_a_slice_may_be_of_thousands_of_partitions(spark: "SparkSession", original: Original) -> None:
    with open_table(original.folder / "parquet") as table:
        files = tuple(table.files())
    spans = {TopicPartition(original.topic, number): OffsetSpan(10, 20 + number) for number in range(3_000)}
    spans[TopicPartition("another", 0)] = OffsetSpan(0, 1_000)
    chosen = module.select_rows(spark, None, TimeRange(), ReplaySlice(spans, files))
    found = Counter((row.partition, row.offset) for row in chosen.select("partition", "offset").collect())
    wanted = [(0, offset) for offset in range(10, 20)] + [(1, offset) for offset in range(10, 21)]
    assert found == Counter(wanted)


def test_a_folder_with_strange_signs_and_a_missing_file(
    spark: "SparkSession", running: Broker, original: Original, tmp_path: Path
) -> None:
    create(running, "replay-strange", 1)
    folder = tmp_path / "a lake [of] {mine} 100%?"
    make_lake(folder, "parquet", original.topic, [(0, 300), (300, 600)])
    settings = ReplaySettings(folder, "replay-strange", original.access)
    assert replayed(spark, settings).rows == ROWS
    with open_table(folder) as table:
        Path(table.files()[0]).unlink()
    with pytest.raises(CommandFailed, match=r"belongs to the table and is missing \(1 files in all\)"):
        check(settings)


@pytest.mark.parametrize(
    "where",
    [
        "timestamp > now() - interval 1 day",
        "partition = 0 and timestamp > current_timestamp() - interval 1 day",
        "timestamp between dateadd(day, -1, NOW()) and current_timestamp",
        "date(timestamp) = current_date",
        "date(timestamp) = curdate()",
        "timestamp > localtimestamp()",
        "offset > unix_timestamp()",
        "exists(headers, header -> now() > timestamp)",
        "offset in (select id from range(5) where now() > timestamp '2020-01-01')",
    ],
)
def test_a_condition_that_asks_for_the_time_is_refused(spark: "SparkSession", where: str) -> None:
    with pytest.raises(CommandFailed, match=r"asks for the current time.*: give --start and --end"):
        module.filter_rows(spark.createDataFrame([], SCHEMA), where)


def test_what_was_refused_for_its_condition_was_not_begun(
    spark: "SparkSession", running: Broker, original: Original
) -> None:
    """A replay is known by its condition: the right one would otherwise need another --name."""
    create(running, "replay-now", 2)
    wanted = original.settings("replay-now")
    for where, message in (
        ("timestamp > now() - interval 1 day", "asks for the current time"),
        ("colour = 1", "is no condition on the rows"),
    ):
        for act in (replayed, partial(dry_run, stop=StopRequest())):
            with pytest.raises(CommandFailed, match=message):
                act(spark, wanted._replace(where=where))
    assert replayed(spark, wanted._replace(where="value = 'now()' or offset < 10")).rows == 20


@pytest.mark.campaign
def test_killed_in_the_middle_it_goes_on_where_it_was(
    spark: "SparkSession", running: Broker, original: Original, tmp_path: Path
) -> None:
    """The command, with signal 9."""
    create(running, "replay-killed", 2)
    words = ["pipeline", "replay", "--lake", str(original.folder / "parquet"), "--to", "replay-killed"]
    words += ["--bootstrap", running.bootstrap, "--master", "local[2]", "--rate", "100"]
    words += ["--max-rows-per-batch", "50"]
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *words], stderr=stderr, start_new_session=True
        )
    try:

        def is_under_way() -> bool:
            assert process.poll() is None, (tmp_path / "stderr").read_text()
            return "batch 2:" in (tmp_path / "stderr").read_text()

        eventually(is_under_way, seconds_max=SECONDS_MAX, every=0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    report = replayed(spark, original.settings("replay-killed"))
    assert (report.rows_in_all, report.left) == (ROWS, 0)
    assert 0 < report.rows < ROWS
    sent = offsets_of(records_of(spark, running, "replay-killed"))
    assert len(sent) == ROWS
    assert sent.total() - ROWS <= 50


def test_the_command_refuses_what_is_no_range_or_name(running: Broker, original: Original) -> None:
    words = ["pipeline", "replay", "--lake", str(original.folder / "delta"), "--to", original.topic]
    words += ["--bootstrap", running.bootstrap]
    for wrong, sentence in {
        ("--start", "soon"): "is no place in a log",
        ("--start", "latest"): "would leave nothing to replay",
        ("--end", '{"a": 1}'): "give JSON such as",
        ("--rate", "0"): "--rate",
        ("--name", "a/b"): "cannot be the name of a pipeline",
    }.items():
        refused = penstock(*words, *wrong)
        assert refused.exit_code == 2, refused
        assert sentence in refused.stderr
        assert "Traceback" not in refused.stderr
