"""`penstock pipeline`: data pipelines on Spark, and the options that they share.

Needs `pip install 'penstock[spark]'`. Spark is only imported when a pipeline runs.

Rule: progress goes to stderr, the report to stdout. A stop by Ctrl-C or SIGTERM is a success, except with
`--once` if records are left.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import examples, is_utf8, new_app
from penstock.errors import CommandFailed

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector

EXAMPLES = examples(
    (
        "All records of a topic as Parquet files",
        "penstock pipeline archive --topic orders --to ./lake --once",
    ),
    ("What a pipeline takes", "penstock pipeline archive --help"),
)
COMMAND_FILES = (
    "penstock.cli.pipeline.archive",
    "penstock.cli.pipeline.replay",
    "penstock.cli.pipeline.etl",
    "penstock.cli.pipeline.detect",
    "penstock.cli.pipeline.insights",
    "penstock.cli.pipeline.audit",
)

pipeline_app = new_app(help="Run data pipelines on Spark.", epilog=EXAMPLES)


def add_to(app: typer.Typer) -> None:
    for name in COMMAND_FILES:  # importing a module adds its command to `pipeline_app` once
        import_module(name)
    app.add_typer(pipeline_app, name="pipeline")


def _validate_query_name(given: str | None) -> str | None:
    """Validate the name: it also names a group and a folder."""
    if given is not None and (
        not given.strip() or "/" in given or given in (".", "..") or not is_utf8(given)
    ):
        raise typer.BadParameter(f"{given!a} cannot be the name of a pipeline: it names a folder too")
    return given


EveryOption = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.0, help="Begin a batch this often, without --once.")
]
RowsPerBatchOption = Annotated[
    int, typer.Option(metavar="N", min=1, help="Commit at the latest after so many rows.")
]
StartOption = Annotated[
    str, typer.Option(metavar="PLACE", help="An offset, a time, so long ago, or JSON with offsets.")
]
EndOption = Annotated[str, typer.Option(metavar="PLACE", help="The same; not included.")]
MasterOption = Annotated[str, typer.Option(metavar="URL", help="The Spark to run on.")]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where the position is kept. Default: inside the table's folder."),
]
PipelineNameOption = Annotated[
    str | None,
    typer.Option(
        callback=_validate_query_name, help="Name of the pipeline, and of the group that shows its lag."
    ),
]
OnceOption = Annotated[bool, typer.Option("--once", help="Archive what is there now, then end.")]
SparkSettingsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
]


class IsolationLevel(StrEnum):
    read_committed = "read_committed"
    read_uncommitted = "read_uncommitted"


IsolationOption = Annotated[
    IsolationLevel,
    typer.Option("--isolation", help="Whether records of aborted and open transactions are read."),
]
IsolationOverrideOption = Annotated[
    IsolationLevel | None,
    typer.Option(
        "--isolation",
        help="Whether records of aborted and open transactions are read. Default: what the file says.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


@contextmanager
def session(name: str, master: str, settings: dict[str, str]) -> Iterator[tuple[Any, Any, Any]]:
    """Start Spark; yield the session, the stop requests, and the function that shows progress."""
    from penstock.cli.output import note
    from penstock.spark.pipelines.common.query_run import SparkEnded, stop_on_signals
    from penstock.spark.session import spark_session

    note(f"{name}: starting Spark on {master}")
    try:
        with (
            spark_session(name, master, settings, log_level="OFF", quiet=True) as spark,
            stop_on_signals(note) as stop,
        ):
            note(f"{name}: Spark {spark.version} has started; the first batch takes longer than others")
            yield spark, stop, note
    except ConnectionError as problem:  # the session cannot be stopped: its JVM has ended
        raise SparkEnded from problem


@contextmanager
def uninterrupted_session(
    name: str, master: str, settings: dict[str, str], missing: str
) -> Iterator[tuple[Any, Any, Any]]:
    """Start Spark for a run without partial results; yields what `session` yields.

    A stop counts as an interruption. `missing` says what the run did not produce then, such as `no report`.
    """
    from penstock.cli.output import note
    from penstock.spark.pipelines.common.query_run import SparkEnded
    from penstock.spark.pipelines.common.spark_action import RunInterrupted, stop_at_once_on_signals
    from penstock.spark.session import spark_session

    note(f"{name}: starting Spark on {master}")
    try:
        with (
            spark_session(name, master, settings, log_level="OFF", quiet=True) as spark,
            stop_at_once_on_signals() as stop,
        ):
            yield spark, stop, note
    except RunInterrupted:
        note(f"{name}: stopped, there is {missing}")
        raise KeyboardInterrupt from None
    except ConnectionError as problem:  # the session cannot be stopped: its JVM has ended
        raise SparkEnded from problem


def kafka_options(broker: "BrokerConnector") -> dict[str, str]:
    """Connection options of `format("penstock")` for the brokers that the command line names."""
    options = {
        "kafka.bootstrap.servers": ",".join(map(str, broker.addresses)),
        "kafka.client.id": "penstock-pipeline",
    }
    if broker.tls is None:
        return options
    options["kafka.security.protocol"] = "SSL"
    names = ("kafka.ssl.ca.location", "kafka.ssl.certificate.location", "kafka.ssl.key.location")
    # Tasks can run in another working directory: file names must be absolute.
    files = {name: str(Path(path).absolute()) for name, path in zip(names, broker.tls, strict=True) if path}
    return options | files


@contextmanager
def reporting_missing_spark() -> Iterator[None]:
    """Report a missing package of Spark with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as problem:
        raise CommandFailed(
            f"pipelines run on Spark, and {problem.name} is not installed: pip install 'penstock[spark]'"
        ) from problem


def print_report(report: Any, *, as_json: bool) -> None:
    from penstock.cli.output import json_line

    if as_json:
        json_line(report.document())
    else:
        typer.echo("\n".join(report.lines()))


def exit_if_interrupted(stop: Any, *, once: bool) -> None:
    """Exit with an error code if `--once` was interrupted before the end."""
    from penstock.cli.main import EXIT_INTERRUPTED
    from penstock.cli.output import note

    if once and stop.cut_short:
        note("stopped before the end: the same command goes on")
        raise typer.Exit(EXIT_INTERRUPTED)
