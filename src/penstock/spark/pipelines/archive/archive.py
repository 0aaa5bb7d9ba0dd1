"""`archive`: writes the records of topics to a table of files, each record exactly once.

    topics ── ranges of offsets ──▶ micro-batches ── tasks fetch and write ──▶ Parquet, Delta, Iceberg

The pipeline is a plain streaming query with a checkpoint. Spark's checkpoint records which offsets a batch
has; the table records which batches it holds (`lake/`). A run that crashed is restarted with the same
arguments. Spark passes only offsets from task to task; tasks copy records from the broker to the files
(`archive_tasks.py`).

Rule 1: errors are found before Spark starts where possible, since starting Spark takes seconds.
Rule 2: a table that holds records of a topic continues with the checkpoint that wrote these records, or the
        pipeline fails: another checkpoint would begin at the start of the topic.
Rule 3: records that retention removed before they were archived stop the pipeline. With `allow_loss`, the
        pipeline continues, and both the report and the table record how many offsets were lost. Loss is
        counted from where the topics began when the archive was first started.
Rule 4: one run at a time per checkpoint. Two runs could not both commit, but both would read everything, and
        the second run would record its own start as the first. So the lock is taken before any note is
        written.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import CommandFailed
from penstock.limits import DAY_MS
from penstock.spark.lake.compaction import TARGET_BYTES
from penstock.spark.lake.description import (
    TableDescription,
    check_checkpoint,
    check_folder,
    make_table,
    open_table,
)
from penstock.spark.lake.lake_table import METADATA_FOLDER, CompactionResult, LakeTable, RecordedQuery
from penstock.spark.lake.time_partitioning import PartitionBy
from penstock.spark.options.options import ISOLATION_LEVELS, ISOLATION_OPTION, READ_COMMITTED
from penstock.spark.pipelines.archive import archive_tasks
from penstock.spark.pipelines.common import report
from penstock.spark.pipelines.common.checkpoint import (
    bind_checkpoint,
    is_new,
    make_folder,
    noted_topic_ids,
    recorded_starts,
)
from penstock.spark.pipelines.common.cluster import fetch_partitions, look_up_topic_ids, open_client
from penstock.spark.pipelines.common.progress import BatchProgress, Progress, lag
from penstock.spark.pipelines.common.query_run import (
    StopRequest,
    reporting_data_loss,
    reporting_spark_errors,
    run,
)
from penstock.spark.pipelines.common.run_lock import run_lock
from penstock.spark.source.offsets import PartitionOffsets, to_document
from penstock.types import TopicId, TopicPartition
from penstock.wire.cluster_client import EARLIEST, LATEST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCH_COLUMN: Final = "ingestBatch"
ROWS_PER_BATCH: Final = 2_000_000
ROWS_PER_TASK_MIN: Final = 100_000
EVERY_S: Final = 10.0
COMPACT_EVERY_S: Final = 600.0
ORPHAN_FILE_AGE_MS: Final = DAY_MS
"""Age after which files that no commit lists are removed. No batch takes that long."""

ShowLine = Callable[[str], None]


class ArchiveSettings(NamedTuple):
    topics: tuple[str, ...]
    folder: Path
    """Table folder, absolute."""
    access: Mapping[str, str]
    """Connection options for the brokers, as `format("penstock")` accepts them."""
    format: str = "parquet"
    partition_by: PartitionBy = PartitionBy.DAY
    compression: str = "snappy"
    checkpoint: Path | None = None
    name: str | None = None
    """Name of the query, and of the group that reports its lag."""
    once: bool = False
    every_s: float = EVERY_S
    rows_per_batch: int = ROWS_PER_BATCH
    compact: bool = False
    allow_loss: bool = False
    """Whether to continue at the topic's start if retention removed the offsets that were next."""
    isolation: str = READ_COMMITTED

    @property
    def query_name(self) -> str:
        return self.name or f"archive-{'-'.join(sorted(self.topics))}"

    @property
    def checkpoint_folder(self) -> Path:
        return self.checkpoint or self.folder / METADATA_FOLDER / "checkpoints" / self.query_name

    @property
    def description(self) -> TableDescription:
        return TableDescription(self.format, self.partition_by)

    @property
    def read_options(self) -> dict[str, str]:
        return {
            **self.access,
            "subscribe": ",".join(self.topics),
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(self.rows_per_batch),
            "failOnDataLoss": "false" if self.allow_loss else "true",
            ISOLATION_OPTION: self.isolation,
        }


class ArchiveReport(NamedTuple):
    name: str
    topics: tuple[str, ...]
    table: str
    format: str
    rows: int
    bytes: int
    files: int
    batches: int
    seconds: float
    lag: int
    ends: dict[str, dict[str, int]]
    """One past the last offset that the table holds, per partition."""
    lost: int
    """Offsets that retention removed before they were archived."""
    compacted: CompactionResult
    removed: int
    checkpoint: str

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    def document(self) -> dict[str, Any]:
        rest = {"compacted": self.compacted._asdict(), "rows_per_s": self.rows_per_s}
        return report.document({"pipeline": "archive", **self._asdict(), **rest})

    def lines(self) -> list[str]:
        compacted = f"{self.compacted.files_before:,} files became {self.compacted.files_after:,}"
        return report.lines(
            {
                "archived": ", ".join(self.topics),
                "to": f"{self.table} ({self.format})",
                "rows": self.rows,
                "size": report.size_text(self.bytes),
                "files": self.files,
                "batches": self.batches,
                "seconds": self.seconds,
                "rows/s": round(self.rows_per_s),
                "lag left": self.lag,
                "lost": f"{self.lost:,} offsets were gone before they were archived" if self.lost else None,
                "compacted": compacted if self.compacted.files_before else None,
                "removed": f"{self.removed:,} files of failed attempts" if self.removed else None,
                "checkpoint": self.checkpoint,
            }
        )


def check(settings: ArchiveSettings) -> PartitionOffsets:
    """Run all checks that need no Spark, and create the table and the checkpoint if they are new.

    Returns where the topics began when the archive was first started.
    """
    with _locked_checkpoint(settings) as starts:
        return starts


@contextmanager
def _locked_checkpoint(settings: ArchiveSettings) -> Iterator[PartitionOffsets]:
    """Hold the lock of the checkpoint; yield where the topics began when the archive was first started."""
    with open_client(settings.access) as client:
        partitions = fetch_partitions(client, settings.topics)
        ids = look_up_topic_ids(client, settings.topics, noted_topic_ids(settings.checkpoint_folder))
        firsts = client.offsets(dict.fromkeys(partitions, EARLIEST), read_committed=False)
    check_checkpoint(settings.folder, settings.checkpoint_folder)
    folder = settings.checkpoint_folder
    if not check_folder(settings.folder, settings.description) and not is_new(folder):
        raise CommandFailed(
            f"the checkpoint {folder} is in use and there is no table in {settings.folder}: what was "
            "archived would be missing. Bring the table back, or begin anew with another --to and "
            "--checkpoint"
        )
    make_folder(folder)
    # Lock first: a second run must not overwrite the recorded starts of the first (rule 4).
    with run_lock(folder, "archive", "Wait for it, or end it"):
        _bind_checkpoint(settings, partitions, ids)
        yield recorded_starts(folder, {partition: offset for partition, (offset, _) in firsts.items()})


def _bind_checkpoint(
    settings: ArchiveSettings, partitions: Sequence[TopicPartition], ids: Mapping[str, TopicId]
) -> None:
    folder = settings.checkpoint_folder
    make_table(settings.folder, settings.description)
    with open_table(settings.folder) as table:
        ends = table.ends(partitions)
    # A new checkpoint starts at the beginning of the topic, so it would write these rows twice (rule 2).
    if ends and is_new(folder):
        partition, end = next(iter(ends.items()))
        raise CommandFailed(
            f"{settings.folder} already holds {partition.topic}/{partition.partition} up to offset {end}, "
            f"and the checkpoint {folder} is new: it would begin at the start and bring these records again. "
            "Give --name or --checkpoint as in the run that wrote the table, or another --to"
        )
    wanted = {"pipeline": "archive", "topics": ",".join(settings.topics), "table": str(settings.folder)}
    bind_checkpoint(folder, wanted, ids, remedy="another --to (and another --checkpoint, if you gave one)")


def run_archive(
    spark: "SparkSession", settings: ArchiveSettings, stop: StopRequest, show_line: ShowLine
) -> ArchiveReport:
    """Archive until all records present at the start are archived (`once`), or until a stop is requested."""
    with _locked_checkpoint(settings) as starts:
        return _run_query(spark, settings, starts, stop, show_line)


def _run_query(
    spark: "SparkSession",
    settings: ArchiveSettings,
    starts: PartitionOffsets,
    stop: StopRequest,
    show_line: ShowLine,
) -> ArchiveReport:
    began = time.monotonic()
    with reporting_spark_errors():
        archive_tasks.register(spark)
        query = _start(spark, settings, starts)
        app = query.id
    with open_table(settings.folder) as table:
        before = table.recorded_query(app)
        maintenance = _TableMaintenance(settings)
        progress = _Progress(settings.query_name, _starts(settings, table))
        with reporting_data_loss():
            # With `once`, compaction runs only after the query.
            run(query, progress, stop, show_line, None if settings.once else maintenance.run_if_due)
        seconds = time.monotonic() - began
        after = table.recorded_query(app)
    if settings.compact:
        maintenance.do()
    return _report(settings, progress, (before, after), seconds, maintenance)


def _start(spark: "SparkSession", settings: ArchiveSettings, starts: PartitionOffsets) -> "StreamingQuery":
    # Several tasks read one partition of a large batch, so that few partitions keep all cores busy. A small
    # batch is not split: each task would write one small file.
    share = max(settings.rows_per_batch // spark.sparkContext.defaultParallelism, ROWS_PER_TASK_MIN)
    stream = (
        spark.readStream.format(archive_tasks.SOURCE)
        .options(**settings.read_options)
        .option("maxRecordsPerPartition", str(share))
        .load()
    )
    writer = (
        stream.writeStream.format(archive_tasks.SINK)
        .options(
            **{f"{archive_tasks.READ_PREFIX}{name}": value for name, value in settings.read_options.items()}
        )
        .queryName(settings.query_name)
        .option("checkpointLocation", str(settings.checkpoint_folder))
        .option("path", str(settings.folder))
        .option("lakeFormat", settings.format)
        .option("partitionBy", settings.partition_by.value)
        .option("batchColumn", BATCH_COLUMN)
        .option("compression", settings.compression)
        .option(archive_tasks.STARTS_OPTION, json.dumps(to_document(starts)))
    )
    if settings.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.every_s} seconds").start()


class _Progress(Progress):
    """Progress that counts records by their offsets: for Spark, a range of records is one row."""

    def __init__(self, name: str, starts: PartitionOffsets) -> None:
        super().__init__(name)
        self._reached = dict(starts)

    def add(self, step: BatchProgress) -> bool:
        records = sum(max(end - self._reached.get(each, 0), 0) for each, end in step.ends.items())
        is_new = super().add(step._replace(rows=records if step.rows else 0))
        if is_new:
            self._reached |= step.ends
        return is_new


def _starts(settings: ArchiveSettings, table: LakeTable) -> PartitionOffsets:
    """Return the offsets where the run begins, as far as known before Spark reports them."""
    with open_client(settings.access) as client:
        partitions = fetch_partitions(client, settings.topics, existed=True)
        found = client.offsets(dict.fromkeys(partitions, EARLIEST), read_committed=False)
    ends = table.ends(partitions)
    return {each: max(offset, ends.get(each, 0)) for each, (offset, _) in found.items()}


class _TableMaintenance:
    """Compaction of small files, and removal of files that failed attempts left."""

    def __init__(self, settings: ArchiveSettings) -> None:
        self._settings = settings
        self._due = time.monotonic() + COMPACT_EVERY_S
        self.compacted = CompactionResult()
        self.removed = 0

    def run_if_due(self) -> None:
        if self._settings.compact and time.monotonic() >= self._due:
            self.do()
            self._due = time.monotonic() + COMPACT_EVERY_S

    def do(self) -> None:
        with open_table(self._settings.folder) as table:
            before, after = table.compact(TARGET_BYTES)
            # Only old files: young ones may belong to a batch that is being written.
            self.removed += len(table.vacuum(older_than_ms=time.time_ns() // 1_000_000 - ORPHAN_FILE_AGE_MS))
        done = self.compacted
        self.compacted = CompactionResult(done.files_before + before, done.files_after + after)


def _report(
    settings: ArchiveSettings,
    progress: Progress,
    recorded: tuple[RecordedQuery, RecordedQuery],
    seconds: float,
    maintenance: _TableMaintenance,
) -> ArchiveReport:
    before, after = recorded
    with open_client(settings.access) as client, open_table(settings.folder) as table:
        partitions = fetch_partitions(client, settings.topics, existed=True)
        found = client.offsets(
            dict.fromkeys(partitions, LATEST), read_committed=ISOLATION_LEVELS[settings.isolation]
        )
        ends = dict(table.ends(partitions))
    # The source may be further than the table: transaction markers have offsets but are no rows.
    read = progress.last.ends if progress.last is not None else {}
    reached = {each: max(ends.get(each, 0), read.get(each, 0)) for each in partitions}
    return ArchiveReport(
        name=settings.query_name,
        topics=settings.topics,
        table=str(settings.folder),
        format=settings.format,
        rows=after.rows - before.rows,
        bytes=after.bytes - before.bytes,
        files=after.files - before.files,
        batches=progress.batches,
        seconds=seconds,
        lag=lag({partition: offset for partition, (offset, _) in found.items()}, reached),
        ends=to_document(ends),
        lost=after.lost - before.lost,
        compacted=maintenance.compacted,
        removed=maintenance.removed,
        checkpoint=str(settings.checkpoint_folder),
    )
