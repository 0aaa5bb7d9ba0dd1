"""`penstock pipeline`: what teams build around a queue, on Spark.

Needs `pip install 'penstock[spark]'`. Nothing of Spark is imported before a pipeline is run.

Rule: progress goes to stderr, the report to stdout. A stop by Ctrl-C or SIGTERM is a success.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import client_command, examples, is_utf8, new_app, topic_names
from penstock.errors import CommandFailed

if TYPE_CHECKING:
    from penstock.cli.connection import Broker

EXAMPLES = examples(
    (
        "All records of a topic as Parquet files",
        "penstock pipeline archive --topic orders --to ./lake --once",
    ),
    ("What a pipeline takes", "penstock pipeline archive --help"),
)
ARCHIVE_EXAMPLES = examples(
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
COMMAND_FILES = (
    "penstock.cli.pipeline_replay",
    "penstock.cli.pipeline_etl",
    "penstock.cli.pipeline_detect",
    "penstock.cli.pipeline_insights",
    "penstock.cli.pipeline_audit",
)

pipeline_app = new_app(help="Run data pipelines on Spark.", epilog=EXAMPLES)


def add_to(app: typer.Typer) -> None:
    for name in COMMAND_FILES:  # each adds its command to `pipeline_app`, the first time
        import_module(name)
    app.add_typer(pipeline_app, name="pipeline")


@pipeline_app.callback()
def _pipelines() -> None:
    """Keeps `archive` a command of its own while it is the only one."""


class Format(StrEnum):
    parquet = "parquet"
    delta = "delta"
    iceberg = "iceberg"


class PartitionedBy(StrEnum):
    day = "day"
    hour = "hour"
    none = "none"


class Compression(StrEnum):
    snappy = "snappy"
    zstd = "zstd"
    none = "none"


def _query_name(given: str | None) -> str | None:
    """It is the name of a group and of a folder."""
    if given is not None and (
        not given.strip() or "/" in given or given in (".", "..") or not is_utf8(given)
    ):
        raise typer.BadParameter(f"{given!a} cannot be the name of a pipeline: it names a folder too")
    return given


Master = Annotated[str, typer.Option(metavar="URL", help="The Spark to run on.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where the position is kept. Default: inside the table's folder."),
]
Name = Annotated[
    str | None,
    typer.Option(callback=_query_name, help="Of the pipeline, and of the group that shows its lag."),
]
Once = Annotated[bool, typer.Option("--once", help="Archive what is there now, then end.")]
SparkSettings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


@pipeline_app.command(
    "archive", help="Write topics to a lake, each record exactly once.", epilog=ARCHIVE_EXAMPLES
)
@client_command
def archive(
    broker: "Broker",
    topics: Annotated[
        list[str], typer.Option("--topic", callback=topic_names, help="What to archive; may be repeated.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder of the table.")],
    table_format: Annotated[Format, typer.Option("--format", help="Of the table.")] = Format.parquet,
    partition_by: Annotated[PartitionedBy, typer.Option(help="Folders for each ...")] = PartitionedBy.day,
    compression: Annotated[Compression, typer.Option(help="Of the files.")] = Compression.snappy,
    checkpoint: Checkpoint = None,
    name: Name = None,
    once: Once = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="Begin a batch this often, without --once.")
    ] = EVERY_S,
    max_rows_per_batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Commit at the latest after so many rows.")
    ] = ROWS_PER_BATCH,
    compact: Annotated[
        bool, typer.Option("--compact", help="Put small files together, and remove those of failed attempts.")
    ] = False,
    master: Master = "local[*]",
    settings: SparkSettings = None,
    as_json: Json = False,
) -> None:
    from penstock.cli.command import settings_of

    spark_settings = settings_of(settings or [], "--set")
    with _spark_is_installed():
        from penstock.spark.lake.partitioning import PartitionBy
        from penstock.spark.pipelines.archive import ArchiveSettings, check
        from penstock.spark.pipelines.archive import archive as run_archive
    wanted = ArchiveSettings(
        topics=tuple(dict.fromkeys(topics)),
        folder=to.absolute(),
        access=_access(broker),
        format=table_format.value,
        partition_by=PartitionBy(partition_by.value),
        compression=compression.value,
        checkpoint=None if checkpoint is None else checkpoint.absolute(),
        name=name,
        once=once,
        every_s=every,
        rows_per_batch=max_rows_per_batch,
        compact=compact,
    )
    with broker.client():
        pass  # an address at which nobody answers is told at once, and why
    check(wanted)
    with _session(wanted.query_name, master, spark_settings) as (spark, stop, tell):
        report = run_archive(spark, wanted, stop, tell)
    _print(report, as_json=as_json)


@contextmanager
def _session(name: str, master: str, settings: dict[str, str]) -> Iterator[tuple[Any, Any, Any]]:
    """Spark, whether a stop was asked for, and how to tell of progress."""
    from penstock.cli.output import note
    from penstock.spark.pipelines.running import SparkEnded, stop_on_signals
    from penstock.spark.session import spark_session

    note(f"{name}: starting Spark on {master}")
    try:
        with spark_session(name, master, settings, log_level="OFF") as spark, stop_on_signals(note) as stop:
            yield spark, stop, note
    except ConnectionError as problem:  # it cannot be stopped, because it is gone
        raise SparkEnded from problem


def _access(broker: "Broker") -> dict[str, str]:
    options = {
        "kafka.bootstrap.servers": ",".join(map(str, broker.addresses)),
        "kafka.client.id": "penstock-pipeline",
    }
    if broker.tls is None:
        return options
    options["kafka.security.protocol"] = "SSL"
    names = ("kafka.ssl.ca.location", "kafka.ssl.certificate.location", "kafka.ssl.key.location")
    # Tasks run elsewhere in the file system: names of files are given as they are from everywhere.
    files = {name: str(Path(path).absolute()) for name, path in zip(names, broker.tls, strict=True) if path}
    return options | files


@contextmanager
def _spark_is_installed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as problem:
        raise CommandFailed(
            f"pipelines run on Spark, and {problem.name} is not installed: pip install 'penstock[spark]'"
        ) from problem


def _print(report: Any, *, as_json: bool) -> None:
    from penstock.cli.output import json_line

    if as_json:
        json_line(report.document())
    else:
        typer.echo("\n".join(report.lines()))
