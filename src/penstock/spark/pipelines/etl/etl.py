"""`etl`: runs all stages, or some of them, in one process.

With `once`, the stages run one after the other, so that all rows that the first stage extracted are loaded at
the end. Otherwise all stages run at the same time until a stop is requested. If one stage fails, the other
stages finish their batch and end, too: so the error is the last output and is not buried under progress
lines.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import CommandFailed
from penstock.spark.options.options import ISOLATION_LEVELS
from penstock.spark.pipelines.common import report
from penstock.spark.pipelines.common.checkpoint import bind_checkpoint, last_offset, noted_topic_ids
from penstock.spark.pipelines.common.cluster import fetch_partitions, look_up_topic_ids, open_client
from penstock.spark.pipelines.common.first_batch import check_first_batch
from penstock.spark.pipelines.common.progress import Progress, lag
from penstock.spark.pipelines.common.query_run import (
    StopRequest,
    reporting_data_loss,
    reporting_spark_errors,
    run,
)
from penstock.spark.pipelines.common.run_lock import run_lock
from penstock.spark.pipelines.etl.database import DATABASE_ERRORS, NewestRows
from penstock.spark.pipelines.etl.extract import held_back, prepare_extract, source_notes
from penstock.spark.pipelines.etl.load import check_target
from penstock.spark.pipelines.etl.spec import (
    EtlSpec,
    FromDatabase,
    FromFiles,
    FromTopic,
    PythonFunction,
    ToTopic,
    endpoint_text,
)
from penstock.spark.pipelines.etl.stages import EtlSettings, start
from penstock.spark.pipelines.etl.transform import load_function
from penstock.types import TopicPartition
from penstock.wire.cluster_client import LATEST, ClusterClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ShowLine = Callable[[str], None]


class StageReport(NamedTuple):
    name: str
    """Name of the query, and of the group that reports its lag."""
    rows: int
    batches: int
    lag: int | None
    """None for a stage that reads no topic, and for a stage that had nothing to read."""


class EtlReport(NamedTuple):
    name: str
    source: str
    target: str
    stages: dict[str, StageReport]
    seconds: float
    dead_letters: int
    dead_letter_topic: str
    checkpoint: str
    held_back: NewestRows | None = None
    """Rows of a table that wait for a larger value of the column by which the table is read."""

    def document(self) -> dict[str, Any]:
        stages = {stage: stage_progress._asdict() for stage, stage_progress in self.stages.items()}
        held = {"held_back": None if self.held_back is None else self.held_back._asdict()}
        return report.document({"pipeline": "etl", **self._asdict(), "stages": stages, **held})

    def lines(self) -> list[str]:
        shown: dict[str, report.ReportValue] = {"from": self.source, "to": self.target}
        for stage, stage_progress in self.stages.items():
            behind = f", {stage_progress.lag:,} behind" if stage_progress.lag is not None else ""
            shown[stage] = f"{stage_progress.rows:,} rows, batches: {stage_progress.batches:,}{behind}"
        letters = f"{self.dead_letters:,} in topic {self.dead_letter_topic}" if self.dead_letters else None
        held = None
        if self.held_back is not None:
            rows, value = self.held_back
            held = f"{rows:,} rows with the largest value, {value}: read when there is a larger one"
        rest: dict[str, report.ReportValue] = {
            "held back": held,
            "dead letters": letters,
            "seconds": self.seconds,
        }
        return report.lines({**shown, **rest, "checkpoint": self.checkpoint})


def check(settings: EtlSettings) -> None:
    """Run all checks that need no Spark, and create new topics, tables and checkpoints."""
    spec = settings.spec
    if unknown := [stage for stage in settings.stages if stage not in spec.stages]:
        raise CommandFailed(f"{spec.file} has no stage {unknown[0]}; it has {', '.join(spec.stages)}")
    if "extract" in settings.stages:
        prepare_extract(spec)
    if isinstance(spec.transform, PythonFunction):
        load_function(spec.transform, spec)
    if "load" in settings.stages:
        check_target(spec, settings.checkpoint("load"))
    with open_client(settings.access) as client:
        _make_topics(client, spec)
        ids = {
            stage: look_up_topic_ids(
                client, spec.topics_read(stage), noted_topic_ids(settings.checkpoint(stage))
            )
            for stage in settings.stages
        }
    for stage in settings.stages:
        bind_checkpoint(settings.checkpoint(stage), spec.checkpoint_identity(stage), ids[stage])


def _make_topics(client: ClusterClient, spec: EtlSpec) -> None:
    if isinstance(spec.extract, FromTopic):
        fetch_partitions(client, [spec.extract.topic])
    ours = [*spec.topics.values(), *([spec.load.topic] if isinstance(spec.load, ToTopic) else [])]
    there = client.topics([*ours, spec.dead_letters])
    for topic in ours:
        if topic not in there:
            client.create_topic(topic, spec.partitions)
    if spec.dead_letters not in there:
        client.create_topic(spec.dead_letters, 1)


def run_etl(
    spark: "SparkSession", settings: EtlSettings, stop: StopRequest, show_line: ShowLine
) -> EtlReport:
    """Run until all rows present at the start are loaded (`once`), or until a stop is requested."""
    _check_session(spark)
    check(settings)
    for note in _notes(settings):
        show_line(note)
    began = time.monotonic()
    progress = {stage: Progress(settings.spec.query_name(stage)) for stage in settings.stages}
    with _run_locks(settings), reporting_data_loss():
        for stage in settings.stages:
            check_first_batch(
                settings.checkpoint(stage),
                settings.access,
                settings.spec.topics_read(stage),
                allow_loss=settings.allow_loss,
            )
        dead_letters_before = _dead_letter_count(settings)
        _run(spark, settings, progress, stop, show_line)
    return EtlReport(
        name=settings.spec.name,
        source=endpoint_text(settings.spec.extract),
        target=endpoint_text(settings.spec.load),
        stages={
            stage: _stage_report(settings, stage, stage_progress)
            for stage, stage_progress in progress.items()
        },
        seconds=time.monotonic() - began,
        dead_letters=_dead_letter_count(settings) - dead_letters_before,
        dead_letter_topic=settings.spec.dead_letters,
        checkpoint=str(settings.spec.checkpoint),
        held_back=_held_back(settings, show_line),
    )


@contextmanager
def _run_locks(settings: EtlSettings) -> Iterator[None]:
    """Lock the stages: two runs of a stage would read the same rows and both write them."""
    with ExitStack() as held:
        for stage in settings.stages:
            held.enter_context(
                run_lock(settings.checkpoint(stage), f"stage ({stage})", "Wait for it, or end it")
            )
        yield


def _run(
    spark: "SparkSession",
    settings: EtlSettings,
    progress: Mapping[str, Progress],
    stop: StopRequest,
    show_line: ShowLine,
) -> None:
    if settings.once:
        for stage in settings.stages:
            if stop.requested:
                stop.cut_short = True
                break
            run(_start_stage(spark, settings, stage), progress[stage], stop, show_line)
    else:
        with reporting_spark_errors():
            queries = [_start_stage(spark, settings, stage) for stage in settings.stages]
        _run_together(queries, list(progress.values()), stop, show_line)


def _notes(settings: EtlSettings) -> Iterator[str]:
    """Yield warnings about settings that are right for some data and wrong for other data."""
    spec = settings.spec
    if isinstance(spec.extract, FromDatabase) and "extract" in settings.stages:
        yield from source_notes(spec.extract)
    if isinstance(spec.extract, FromFiles) and spec.key_in_every_stage:
        yield (
            f"rows of several files have no order: of two with the same {', '.join(spec.key)} any can stay. "
            "If there are such, name a column that grows with every change: [load] version"
        )


def _held_back(settings: EtlSettings, show_line: ShowLine) -> NewestRows | None:
    source = settings.spec.extract
    if not isinstance(source, FromDatabase) or "extract" not in settings.stages:
        return None
    try:
        return held_back(source, (last_offset(settings.checkpoint("extract")) or {}).get("after"))
    except (CommandFailed, *DATABASE_ERRORS) as problem:
        # The rows are loaded already: a database that is unreachable now is no failure of the run.
        show_line(f"how many rows are held back is not known: {problem}")
        return None


def _check_session(spark: "SparkSession") -> None:
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise CommandFailed(
            "spark.speculation is on: two attempts of a task at the same time would write rows of topics "
            "twice. Leave it off for etl"
        )


def _start_stage(spark: "SparkSession", settings: EtlSettings, stage: str) -> "StreamingQuery":
    with reporting_spark_errors():
        return start(spark, settings, stage)


def _run_together(
    queries: "Sequence[StreamingQuery]", progress: Sequence[Progress], stop: StopRequest, show_line: ShowLine
) -> None:
    def until_end(query: "StreamingQuery", stage_progress: Progress) -> None:
        try:
            run(query, stage_progress, stop, show_line)
        except CommandFailed as problem:
            # One failed stage stops the other stages after their current batch.
            stop.request()
            raise CommandFailed(f"{query.name}: {problem}") from problem

    with ThreadPoolExecutor(len(queries)) as threads:
        runs = [
            threads.submit(until_end, query, stage_progress)
            for query, stage_progress in zip(queries, progress, strict=True)
        ]
    for each in runs:
        each.result()


def _stage_report(settings: EtlSettings, stage: str, progress: Progress) -> StageReport:
    spec = settings.spec
    topic = spec.input_topic(stage)
    if topic is None and isinstance(spec.extract, FromTopic):
        topic = spec.extract.topic
    reached = progress.last.ends if progress.last is not None else {}
    behind = None if topic is None or not reached else lag(_ends(settings, topic), reached)
    return StageReport(spec.query_name(stage), progress.rows, progress.batches, behind)


def _dead_letter_count(settings: EtlSettings) -> int:
    """Return the number of records that the dead letter topic has ever had."""
    return sum(_ends(settings, settings.spec.dead_letters).values())


def _ends(settings: EtlSettings, topic: str) -> dict[TopicPartition, int]:
    with open_client(settings.access) as client:
        # Read up to where a stage may read; records beyond that are no lag of the stage.
        wanted = dict.fromkeys(fetch_partitions(client, [topic], existed=True), LATEST)
        found = client.offsets(wanted, read_committed=ISOLATION_LEVELS[settings.isolation_level])
    return {partition: int(offset) for partition, (offset, _) in found.items()}
