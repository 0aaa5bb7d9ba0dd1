"""Queries of a spec: what each stage reads, does and writes.

The columns of a stage are derived by applying the earlier stages to an empty table. So no file has to repeat
the columns, and every stage can be started alone, in any order.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import CommandFailed
from penstock.spark.options.options import ISOLATION_OPTION
from penstock.spark.pipelines.etl.enrich import ReferenceTable
from penstock.spark.pipelines.etl.extract import extract_stream, source_schema
from penstock.spark.pipelines.etl.load import lake_writer, postgres_writer
from penstock.spark.pipelines.etl.rows import parse_rows, write_and_drop_dead_letters
from penstock.spark.pipelines.etl.spec import DELETED, EtlSpec, ToLake, ToPostgres, ToTopic
from penstock.spark.pipelines.etl.stage_sink import DeadLetterTarget
from penstock.spark.pipelines.etl.stage_topic import StageTopic
from penstock.spark.pipelines.etl.transform import ERROR_COLUMN, apply_transform, with_errors_as_dead_letters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

POOL: Final = "spark.scheduler.pool"


class EtlSettings(NamedTuple):
    spec: EtlSpec
    access: Mapping[str, str]
    """Connection options for the brokers, as `format("penstock")` accepts them."""
    stages: tuple[str, ...]
    once: bool = False
    every_s: float = 5.0
    rows_per_batch: int = 500_000
    allow_loss: bool = False
    """Whether to continue if retention removed records that a stage has not read yet."""
    isolation: str | None = None
    """Isolation level; None: as the spec sets it."""

    @property
    def reading(self) -> dict[str, str]:
        """Options for every read of a topic."""
        return {
            **self.access,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.rows_per_batch),
            "failOnDataLoss": "false" if self.allow_loss else "true",
            ISOLATION_OPTION: self.isolation_level,
        }

    @property
    def isolation_level(self) -> str:
        return self.isolation or self.spec.isolation

    def checkpoint(self, stage: str) -> Path:
        return self.spec.checkpoint / stage


def start(spark: "SparkSession", settings: EtlSettings, stage: str) -> "StreamingQuery":
    writer = (
        _writer(spark, settings, stage)
        .queryName(settings.spec.query_name(stage))
        .option("checkpointLocation", str(settings.checkpoint(stage)))
    )
    # Each stage gets its share of the cores, if Spark is configured with fair scheduling.
    spark.sparkContext.setLocalProperty(POOL, stage)
    try:
        if settings.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{settings.every_s} seconds").start()
    finally:
        # The property belongs to the thread: without a reset, the next query would inherit this pool.
        spark.sparkContext.setLocalProperty(POOL, None)  # type: ignore[arg-type]


def _check_key(spark: "SparkSession", spec: EtlSpec) -> None:
    """Check that each stage can send all versions of a row to one partition."""
    for stage in spec.stages[1:] if spec.key_in_every_stage else ():
        known = input_schema(spark, spec, stage).fieldNames()
        if missing := [name for name in spec.key_in_every_stage if name not in known]:
            before = spec.stages[spec.stages.index(stage) - 1]
            raise CommandFailed(
                f"{spec.file}: rows of {before} have no column {missing[0]}, by which [load] tells rows "
                "apart, so versions of a row could overtake each other on the way. Name the column so from "
                "the start, or name a column that grows with every change: [load] version"
            )


def _check_deletes(spark: "SparkSession", spec: EtlSpec) -> None:
    for stage in spec.stages[1:] if spec.deletes else ():
        if DELETED not in input_schema(spark, spec, stage).fieldNames():
            raise CommandFailed(
                f"{spec.file}: [transform] leaves out the column {DELETED}, which says that a row is to be "
                'deleted: select it too, or give [extract] tombstones = "dead"'
            )


def _writer(spark: "SparkSession", settings: EtlSettings, stage: str) -> "DataStreamWriter":
    spec, access = settings.spec, settings.access
    _check_key(spark, spec)
    _check_deletes(spark, spec)
    if stage == "extract":
        rows = extract_stream(spark, spec, settings.reading, settings.rows_per_batch)
        return rows.writeStream.foreachBatch(stage_topic(settings, stage).write)
    schema = input_schema(spark, spec, stage)
    rows = parse_rows(_records(spark, settings, stage), schema, stage, spec.dead_letters)
    match stage, spec.load:
        case "transform", _:
            good = write_and_drop_dead_letters(rows.drop("_record"), access)
            done = with_errors_as_dead_letters(apply_transform(good, spec), spec)
            return done.writeStream.foreachBatch(stage_topic(settings, stage).write)
        case "enrich", _:
            return rows.drop("_record").writeStream.foreachBatch(_enrich_batch(spark, settings))
        case _, ToLake() as lake:
            (topic,) = spec.topics_read(stage)
            return lake_writer(rows, lake, topic, access)
        case _, ToPostgres():
            return postgres_writer(rows, schema, spec, access)
        case _:
            return rows.drop("_record").writeStream.foreachBatch(stage_topic(settings, stage).write)


def _enrich_batch(spark: "SparkSession", settings: EtlSettings) -> "Callable[[DataFrame, int], None]":
    references, topic = ReferenceTable(spark, settings.spec), stage_topic(settings, "enrich")
    references.check(spark.createDataFrame([], input_schema(spark, settings.spec, "enrich")))

    def write(rows: "DataFrame", batch: int) -> None:
        topic.write(references.enrich(rows), batch)

    return write


def stage_topic(settings: EtlSettings, stage: str) -> StageTopic:
    spec = settings.spec
    topic = spec.load.topic if stage == "load" and isinstance(spec.load, ToTopic) else spec.topics[stage]
    return StageTopic(
        topic,
        query=spec.query_name(stage),
        key=spec.key,
        access=settings.access,
        checkpoint=settings.checkpoint(stage),
        dead=DeadLetterTarget(spec.dead_letters, stage),
        writes_tombstones=stage == "load",
    )


def _records(spark: "SparkSession", settings: EtlSettings, stage: str) -> "DataFrame":
    topic = settings.spec.input_topic(stage)
    assert topic is not None, "only the first stage has none"
    return spark.readStream.format("penstock").options(**settings.reading).option("subscribe", topic).load()


def input_schema(spark: "SparkSession", spec: EtlSpec, stage: str) -> "StructType":
    """Return the columns of the stage's input rows."""
    rows = spark.createDataFrame([], source_schema(spec))
    before = spec.stages[: spec.stages.index(stage)]
    if "transform" in before:
        rows = apply_transform(rows, spec).drop(ERROR_COLUMN)
    if "enrich" in before:
        return _check_names_unique(ReferenceTable(spark, spec).schema_after(rows), spec)
    return _check_names_unique(rows.schema, spec)


def _check_names_unique(schema: "StructType", spec: EtlSpec) -> "StructType":
    if twice := {name for name in schema.fieldNames() if schema.fieldNames().count(name) > 1}:
        raise CommandFailed(f"{spec.file}: two columns are named {twice.pop()}: rename one in [transform]")
    return schema
