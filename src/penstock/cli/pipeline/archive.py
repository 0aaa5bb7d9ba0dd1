"""`penstock pipeline archive`: writes topics to a lake, each record exactly once."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command import client_command, examples, parse_settings, topic_names
from penstock.cli.pipeline.app import (
    CheckpointOption,
    EveryOption,
    IsolationLevel,
    IsolationOption,
    JsonOption,
    MasterOption,
    OnceOption,
    PipelineNameOption,
    RowsPerBatchOption,
    SparkSettingsOption,
    exit_if_interrupted,
    kafka_options,
    pipeline_app,
    print_report,
    reporting_missing_spark,
    session,
)

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector

EXAMPLES = examples(
    ("All that is there now", "penstock pipeline archive --topic orders --to ./lake --once"),
    ("From now on, until Ctrl-C, as a Delta table",
     "penstock pipeline archive --topic orders --to ./lake --format delta --compact"),
    ("On a Spark cluster",
     "penstock pipeline archive --topic orders --to /mnt/lake/orders --master spark://spark1.example.com:7077"),
    ("How many rows, for a script",
     "penstock pipeline archive --topic orders --to ./lake --once --json | jq .rows"),
)  # fmt: skip
ROWS_PER_BATCH = 2_000_000
EVERY_S = 10.0


class TableFormat(StrEnum):
    parquet = "parquet"
    delta = "delta"
    iceberg = "iceberg"


class PartitionedBy(StrEnum):
    day = "day"
    hour = "hour"
    none = "none"


class TableCompression(StrEnum):
    snappy = "snappy"
    zstd = "zstd"
    none = "none"


@pipeline_app.command("archive", help="Write topics to a lake, each record exactly once.", epilog=EXAMPLES)
@client_command
def archive(
    broker: "BrokerConnector",
    topics: Annotated[
        list[str], typer.Option("--topic", callback=topic_names, help="What to archive; may be repeated.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder of the table.")],
    table_format: Annotated[
        TableFormat, typer.Option("--format", help="Format of the table.")
    ] = TableFormat.parquet,
    partition_by: Annotated[PartitionedBy, typer.Option(help="Folders for each ...")] = PartitionedBy.day,
    compression: Annotated[
        TableCompression, typer.Option(help="Compression of the files.")
    ] = TableCompression.snappy,
    checkpoint: CheckpointOption = None,
    name: PipelineNameOption = None,
    once: OnceOption = False,
    every: EveryOption = EVERY_S,
    max_rows_per_batch: RowsPerBatchOption = ROWS_PER_BATCH,
    compact: Annotated[
        bool, typer.Option("--compact", help="Put small files together, and remove those of failed attempts.")
    ] = False,
    isolation: IsolationOption = IsolationLevel.read_committed,
    allow_loss: Annotated[
        bool,
        typer.Option("--allow-loss", help="Go on if retention removed records that were not archived yet."),
    ] = False,
    master: MasterOption = "local[*]",
    settings: SparkSettingsOption = None,
    as_json: JsonOption = False,
) -> None:
    spark_settings = parse_settings(settings or [], "--set")
    with reporting_missing_spark():
        from penstock.spark.lake.time_partitioning import PartitionBy
        from penstock.spark.pipelines.archive.archive import ArchiveSettings, check, run_archive
    wanted = ArchiveSettings(
        topics=tuple(dict.fromkeys(topics)),
        folder=to.absolute(),
        access=kafka_options(broker),
        format=table_format.value,
        partition_by=PartitionBy(partition_by.value),
        compression=compression.value,
        checkpoint=None if checkpoint is None else checkpoint.absolute(),
        name=name,
        once=once,
        every_s=every,
        rows_per_batch=max_rows_per_batch,
        compact=compact,
        allow_loss=allow_loss,
        isolation=isolation.value,
    )
    with broker.client():
        pass  # report an unreachable address at once, with the reason
    check(wanted)
    with session(wanted.query_name, master, spark_settings) as (spark, stop, tell):
        report = run_archive(spark, wanted, stop, tell)
    print_report(report, as_json=as_json)
    exit_if_interrupted(stop, once=once)
