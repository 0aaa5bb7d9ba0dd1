"""`replay`: writes rows of a lake table back to a topic as records.

    table of the lake ──▶ slices by offset ──▶ one task for each partition, in order ──▶ topic

The driver splits the range into slices (`plan.py`) and sends one after the other, as Spark jobs that read
only the necessary files. After each slice, the driver records the progress. A run that crashed is restarted
with the same arguments and continues there.

Rule 1: one task at a time sends the rows of one partition of the table, in offset order. A key goes to the
        partition that Kafka's clients choose for it, so records of a key keep their order.
Rule 2: a slice that was not recorded is sent again: delivery is at least once. The headers of every record
        identify its source record, so that consumers can detect duplicates.
Rule 3: two concurrent runs of the same replay are rejected.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from penstock.errors import CommandFailed, CorruptData
from penstock.spark.lake import disk
from penstock.spark.lake.lake_table import METADATA_FOLDER
from penstock.spark.options.options import write_settings
from penstock.spark.pipelines.common.checkpoint import bind_checkpoint, check_binding
from penstock.spark.pipelines.common.cluster import fetch_partitions, open_client
from penstock.spark.pipelines.common.headers import header_array
from penstock.spark.pipelines.common.lake_rows import read_table_format, read_table_rows, table_files
from penstock.spark.pipelines.common.progress import BatchProgress, Progress
from penstock.spark.pipelines.common.query_run import POLL_INTERVAL_S, StopRequest, reason
from penstock.spark.pipelines.common.run_lock import run_lock
from penstock.spark.pipelines.common.spark_action import RunInterrupted, run_spark_action
from penstock.spark.pipelines.common.truncate_oversized import BATCH_BYTES_MAX, TOPIC_BYTES_MAX
from penstock.spark.pipelines.replay.plan import (
    Bound,
    FileOffsets,
    ReplaySlice,
    ReplayState,
    ReplayThrottle,
    TimeRange,
    initial_state,
    next_slice,
    parse_replay_state,
)
from penstock.spark.pipelines.replay.report import (
    SOURCE_COLUMNS,
    SOURCE_HEADER_PREFIX,
    DryReport,
    ReplayReport,
)
from penstock.spark.source.offsets import to_document
from penstock.spark.topic_table import BEYOND
from penstock.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_BATCH: Final = 500_000
STATE_FILE: Final = "replay.json"
ATTEMPTS_MAX: Final = 3
SENT_MS_END: Final = 1 << 62
STOPS_TO_INTERRUPT_SLICE: Final = 2
"""Number of stop requests after which the current slice is interrupted."""

ShowLine = Callable[[str], None]


class ReplaySettings(NamedTuple):
    folder: Path
    """Table folder, absolute."""
    to: str
    access: Mapping[str, str]
    """Connection options for the brokers, as `format("penstock")` accepts them."""
    topics: tuple[str, ...] = ()
    """Topics of the table to replay; empty for all."""
    start: Bound = Bound()
    end: Bound = Bound()
    where: str | None = None
    rows_per_s: float | None = None
    rows_per_batch: int = ROWS_PER_BATCH
    same_partitions: bool = False
    new_timestamps: bool = False
    checkpoint: Path | None = None
    name: str | None = None
    row_bytes_max: int = TOPIC_BYTES_MAX

    @property
    def replay_name(self) -> str:
        return self.name or f"replay-{self.to}"

    @property
    def checkpoint_folder(self) -> Path:
        return self.checkpoint or self.folder / METADATA_FOLDER / "replays" / self.replay_name

    @property
    def identity(self) -> dict[str, str]:
        """Return the properties that identify this replay."""
        return {
            "pipeline": "replay",
            "table": str(self.folder),
            "to": self.to,
            "topics": ",".join(self.topics) or "all",
            "start": self.start.text or "earliest",
            "end": self.end.text or "latest",
            "where": self.where or "true",
            "partitions": "same" if self.same_partitions else "key",
            "timestamps": "new" if self.new_timestamps else "original",
        }

    @property
    def write_options(self) -> dict[str, str]:
        stamps = {} if self.new_timestamps else {"includeTimestamp": "true"}
        batch_bytes = str(min(self.row_bytes_max, BATCH_BYTES_MAX))
        return {**self.access, "topic": self.to, "kafka.max.request.size": batch_bytes, **stamps}


def check(settings: ReplaySettings) -> None:
    """Run all checks that need no Spark."""
    read_table_format(settings.folder)
    if missing := table_files(settings.folder).missing:
        raise CommandFailed(
            f"{missing[0]} belongs to the table and is missing ({len(missing):,} files in all): the replay "
            "would leave its rows out. `penstock pipeline audit --lake` says which; bring the files back"
        )
    with open_client(settings.access) as client:
        fetch_partitions(client, [settings.to])
    write_settings(settings.write_options)
    if "/" in settings.replay_name:
        raise CommandFailed(f"{settings.replay_name!r} cannot be the name of a replay: it names a folder too")


def _check_condition(spark: "SparkSession", settings: ReplaySettings, stop: StopRequest) -> None:
    """Check the condition before the replay begins: afterwards, the condition is part of the checkpoint."""
    where = settings.where
    if where is None:
        return
    files = table_files(settings.folder).present
    with suppress(RunInterrupted):  # the run's next step raises it again
        run_spark_action(
            spark, lambda: filter_rows(read_table_rows(spark, files), where), stop, stops_to_interrupt=1
        )


def dry_run(spark: "SparkSession", settings: ReplaySettings, stop: StopRequest) -> DryReport:
    check(settings)
    # The progress of another replay under this name would be counted instead.
    check_binding(settings.checkpoint_folder, settings.identity)
    index = _FileIndex(spark, settings)
    file_offsets = run_spark_action(spark, index.file_offsets, stop, stops_to_interrupt=1)
    state = _load_state(settings) or initial_state(file_offsets, settings.start, settings.end)
    everything = next_slice(state, file_offsets, state.left)
    rows = [] if everything is None else _count_rows(spark, settings, state.times, everything, stop)
    partitions = {TopicPartition(row.topic, row.partition): row.rows for row in rows}
    total = sum(partitions.values())
    return DryReport(
        table=str(settings.folder),
        to=settings.to,
        rows=total,
        bytes=sum(row.bytes for row in rows),
        partitions=to_document(partitions),
        first_timestamp=min((row.first for row in rows if row.first), default=None),
        last_timestamp=max((row.last for row in rows if row.last), default=None),
        seconds_at_least=None if settings.rows_per_s is None else total / settings.rows_per_s,
    )


def _count_rows(
    spark: "SparkSession",
    settings: ReplaySettings,
    times: TimeRange,
    everything: ReplaySlice,
    stop: StopRequest,
) -> list[Any]:
    rows = select_rows(spark, settings.where, times, everything)
    size = sum((F.coalesce(F.length(column), F.lit(0)) for column in ("key", "value")), start=F.lit(0))
    counted = rows.groupBy("topic", "partition").agg(
        F.count(F.lit(1)).alias("rows"),
        F.sum(size).alias("bytes"),
        F.min("timestamp").cast("string").alias("first"),
        F.max("timestamp").cast("string").alias("last"),
    )
    return run_spark_action(spark, counted.collect, stop, stops_to_interrupt=1)


def run_replay(
    spark: "SparkSession", settings: ReplaySettings, stop: StopRequest, show_line: ShowLine
) -> ReplayReport:
    """Send all rows of the range, or until a stop is requested."""
    check(settings)
    _check_condition(spark, settings, stop)
    bind_checkpoint(settings.checkpoint_folder, settings.identity)
    began = time.monotonic()
    remedy = "Wait for it, or give another --name for a replay of its own"
    with run_lock(settings.checkpoint_folder, "replay", remedy):
        # Loaded under the lock: another run could still advance the recorded state before.
        run = _ReplayRun(spark, settings, stop, show_line)
        before = run.state
        run.until_done()
        after = run.state
    return ReplayReport(
        name=settings.replay_name,
        table=str(settings.folder),
        to=settings.to,
        rows=after.rows - before.rows,
        bytes=after.bytes - before.bytes,
        batches=after.slices - before.slices,
        seconds=time.monotonic() - began,
        rows_in_all=after.rows,
        left=after.left,
        ends=to_document(after.ends),
        checkpoint=str(settings.checkpoint_folder),
    )


class _ReplayRun:
    def __init__(
        self, spark: "SparkSession", settings: ReplaySettings, stop: StopRequest, show_line: ShowLine
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._stop = stop
        self._show_line = show_line
        self._index = _FileIndex(spark, settings)
        self._progress = Progress(settings.replay_name)
        self.state = _load_state(settings) or self._begin()

    def _begin(self) -> ReplayState:
        try:
            file_offsets = self._file_offsets()
        except RunInterrupted:
            return ReplayState({}, {})
        state = initial_state(file_offsets, self._settings.start, self._settings.end)
        store_state(self._settings, state)
        return state

    def _file_offsets(self) -> list[FileOffsets]:
        return run_spark_action(self._spark, self._index.file_offsets, self._stop, stops_to_interrupt=1)

    def until_done(self) -> None:
        throttle = ReplayThrottle(self._settings.rows_per_s, self._settings.rows_per_batch)
        began = time.monotonic()
        while not self._stop.requested:
            try:
                sent = self._send_next(throttle.offsets_max)
            except RunInterrupted:
                return
            if sent is None:
                self._save_state(self.state.finished())
                return
            elapsed = time.monotonic() - began
            self._pause(throttle.after_slice(offsets=sent.offsets, rows=sent.rows, elapsed_s=elapsed))

    def _send_next(self, offsets_max: int) -> "_Sent | None":
        began = time.monotonic()
        for attempt in range(1, ATTEMPTS_MAX + 1):
            chosen = next_slice(self.state, self._file_offsets(), offsets_max)
            if chosen is None:
                return None
            try:
                rows, size = self._send(chosen)
            except CommandFailed:
                # A concurrent compaction may have replaced these files; the next attempt lists the files
                # again.
                if attempt == ATTEMPTS_MAX or all(Path(path).is_file() for path in chosen.files):
                    raise
                continue
            # Recorded only after all rows are acknowledged: a crash in between sends the slice again (rule
            # 2).
            self._save_state(self.state.after(chosen, rows, size))
            self._report_progress(rows, time.monotonic() - began)
            return _Sent(chosen.offsets, rows)
        raise AssertionError("the last attempt returns or raises")

    def _report_progress(self, rows: int, seconds: float) -> None:
        state = self.state
        if self._progress.add(BatchProgress(state.slices, rows, seconds, state.next, state.ends)):
            self._show_line(self._progress.line())

    def _save_state(self, state: ReplayState) -> None:
        store_state(self._settings, state)
        self.state = state

    def _send(self, chosen: ReplaySlice) -> tuple[int, int]:
        rows = select_rows(self._spark, self._settings.where, self.state.times, chosen)
        records = _records(rows, self._settings)
        task_counts = records.mapInArrow(
            _Sender(self._settings.write_options, self._settings.row_bytes_max),
            "records bigint, bytes bigint",
        )
        done = run_spark_action(
            self._spark, task_counts.collect, self._stop, stops_to_interrupt=STOPS_TO_INTERRUPT_SLICE
        )
        return sum(row[0] for row in done), sum(row[1] for row in done)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stop.requested and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, POLL_INTERVAL_S))


class _Sent(NamedTuple):
    offsets: int
    rows: int


class _FileIndex:
    """Index of the offsets in each file. Files never change, so each file is read once."""

    def __init__(self, spark: "SparkSession", settings: ReplaySettings) -> None:
        self._spark = spark
        self._settings = settings
        self._known: dict[str, list[FileOffsets]] = {}

    def file_offsets(self) -> list[FileOffsets]:
        files = table_files(self._settings.folder).present
        if new := [path for path in files if path not in self._known]:
            found = self._read_offsets(new)
            self._known |= {path: found.get(path, []) for path in new}
        file_offsets = [each for path in files for each in self._known[path]]
        return self._select_topics(file_offsets)

    def _select_topics(self, file_offsets: list[FileOffsets]) -> list[FileOffsets]:
        present = {each.partition.topic for each in file_offsets}
        if missing := [topic for topic in self._settings.topics if topic not in present]:
            raise CommandFailed(
                f"the table holds no rows of topic {missing[0]},"
                f" only of {', '.join(sorted(present)) or 'none'}"
            )
        wanted = set(self._settings.topics) or present
        return [each for each in file_offsets if each.partition.topic in wanted]

    def _read_offsets(self, files: list[str]) -> dict[str, list[FileOffsets]]:
        rows = read_table_rows(self._spark, files)
        counted = rows.groupBy(F.col("_metadata.file_path").alias("path"), "topic", "partition").agg(
            F.min("offset").alias("first"), F.max("offset").alias("last"), F.count(F.lit(1)).alias("rows")
        )
        found: dict[str, list[FileOffsets]] = {}
        for row in counted.collect():
            path = unquote(urlsplit(row.path).path)
            partition = TopicPartition(row.topic, row.partition)
            found.setdefault(path, []).append(FileOffsets(path, partition, row.first, row.last, row.rows))
        return found


def select_rows(
    spark: "SparkSession", where: str | None, times: TimeRange, chosen: ReplaySlice
) -> "DataFrame":
    """Return the rows of a slice that pass the filters."""

    spans = [(*partition, *span) for partition, span in chosen.spans.items()]
    first = min(span.start for span in chosen.spans.values())
    last = max(span.end for span in chosen.spans.values()) - 1
    # This filter lets Spark skip files and row groups outside of all spans.
    rows = read_table_rows(spark, chosen.files).where(F.col("offset").between(first, last))
    # A join instead of a condition: conditions for a thousand partitions would be too deep a tree for Spark.
    columns = "topic string, partition int, start bigint, end bigint"
    wanted = F.broadcast(spark.createDataFrame(spans, columns))
    is_wanted = (
        (rows["topic"] == wanted["topic"])
        & (rows["partition"] == wanted["partition"])
        & (rows["offset"] >= wanted["start"])
        & (rows["offset"] < wanted["end"])
    )
    rows = rows.join(wanted, is_wanted, "left_semi")
    # If `timestamp` cannot represent a time, the time is in BEYOND. So exactly one of the two is null.
    if times.start_ms is not None:
        is_after = F.col("timestamp") >= F.timestamp_millis(F.lit(times.start_ms))
        rows = rows.where(F.coalesce(is_after, F.col(BEYOND) >= times.start_ms))
    if times.end_ms is not None:
        is_before = F.col("timestamp") < F.timestamp_millis(F.lit(times.end_ms))
        rows = rows.where(F.coalesce(is_before, F.col(BEYOND) < times.end_ms))
    return rows if where is None else filter_rows(rows, where)


def filter_rows(rows: "DataFrame", where: str) -> "DataFrame":
    try:
        found = rows.where(where)
    except PySparkException as problem:
        raise CommandFailed(
            f"--where {where!r} is no condition on the rows of the table: {reason(problem)}"
        ) from problem
    if _uses_current_time(found):
        raise CommandFailed(
            f"--where {where!r} asks for the current time, or for who or where the session is. A replay that "
            "goes on later would be given another answer, and select other rows: give --start and --end, "
            "which keep what they meant at the first start, or write the time out "
            "(timestamp '2026-03-01 12:00:00')"
        )
    return found


def _uses_current_time(rows: "DataFrame") -> bool:
    """Whether the condition uses the current time.

    Spark's analyzed plan covers every such function, at any place in the condition.
    """
    spark: Any = rows.sparkSession
    current = spark._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    plan: Any = rows
    return bool(plan._jdf.queryExecution().analyzed().containsPattern(current))


def _records(rows: "DataFrame", settings: ReplaySettings) -> "DataFrame":
    """Return the records to write, in order."""
    added = header_array({f"{SOURCE_HEADER_PREFIX}{name}": F.col(name) for name in SOURCE_COLUMNS})
    # Headers of an earlier replay would identify another source record.
    kept = F.filter("headers", lambda header: ~F.startswith(header["key"], F.lit(SOURCE_HEADER_PREFIX)))
    headers = F.concat(F.coalesce(kept, F.array().cast(rows.schema["headers"].dataType)), added)
    # Timestamp deltas within a batch must fit 64 bits: extreme times are replaced by the current time.
    beyond = F.when(F.abs(F.col(BEYOND)) < SENT_MS_END, F.col(BEYOND)).alias(BEYOND)
    columns = [F.col("key"), F.col("value"), headers.alias("headers"), F.col("timestamp"), beyond]
    if settings.same_partitions:
        columns.append(F.col("partition"))
    # One task per source partition, which sends its rows in order (rule 1).
    ordered = rows.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")
    return ordered.select(*columns)


class _Sender:
    """Function of a task that sends rows."""

    def __init__(self, options: Mapping[str, str], row_bytes_max: int) -> None:
        self._options = dict(options)
        self._row_bytes_max = row_bytes_max

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        from penstock.spark.topic_sink import RowTooLarge, write_rows

        try:
            written = write_rows(write_settings(self._options), batches, row_bytes_max=self._row_bytes_max)
        except RowTooLarge as problem:
            raise CommandFailed(
                f"a row takes {problem.row_bytes} bytes, and {problem.row_bytes_max} are the most that are "
                f"sent in one record: give --max-record-bytes {problem.row_bytes} or more, and raise "
                f"max.message.bytes of topic {problem.partition.topic} to that; or leave it out by --where"
            ) from problem
        counts = {"records": [written.records], "bytes": [written.bytes_sent]}
        yield pa.RecordBatch.from_pydict(counts, pa.schema([(name, pa.int64()) for name in counts]))


# How far it is, on disk


def _load_state(settings: ReplaySettings) -> ReplayState | None:
    path = settings.checkpoint_folder / STATE_FILE
    try:
        return parse_replay_state(json.loads(path.read_bytes()), str(path))
    except FileNotFoundError:
        return None
    except ValueError as problem:
        raise CorruptData(f"{path} is not what was written there: {problem}") from problem


def store_state(settings: ReplaySettings, state: ReplayState) -> None:
    path = settings.checkpoint_folder / STATE_FILE
    try:
        disk.replace(path, json.dumps(state.document()).encode())
    except OSError as problem:
        raise CommandFailed(f"cannot write to {path}: {problem.strerror or problem}") from problem
