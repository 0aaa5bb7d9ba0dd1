"""`penstock pipeline etl`: extracts, transforms, enriches and loads, as one file defines."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command import client_command, examples, parse_settings
from penstock.cli.pipeline.app import (
    EveryOption,
    IsolationOverrideOption,
    JsonOption,
    MasterOption,
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
    ("All that is there now, through all stages", "penstock pipeline etl --spec etl.toml --once"),
    ("From now on, until Ctrl-C", "penstock pipeline etl --spec etl.toml"),
    ("One stage in a process of its own", "penstock pipeline etl --spec etl.toml --stage transform"),
    ("Whether the file says what it should", "penstock pipeline etl --spec etl.toml --check"),
)
ROWS_PER_BATCH = 500_000
EVERY_S = 5.0
FAIR = {"spark.scheduler.mode": "FAIR"}
"""Fair scheduling: the stages of one process share its cores."""


@pipeline_app.command("etl", help="Extract, transform, enrich and load, in stages.", epilog=EXAMPLES)
@client_command
def etl(
    broker: "BrokerConnector",
    spec: Annotated[Path, typer.Option(metavar="FILE", help="What the stages are (TOML).")],
    stages: Annotated[
        list[str] | None,
        typer.Option("--stage", metavar="STAGE", help="Run only this one; may be repeated. Default: all."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Work off what is there now, then end.")] = False,
    only_check: Annotated[
        bool, typer.Option("--check", help="Only look whether the file is right; nothing is run.")
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where positions are kept. Default: what the file says."),
    ] = None,
    every: EveryOption = EVERY_S,
    max_rows_per_batch: RowsPerBatchOption = ROWS_PER_BATCH,
    isolation: IsolationOverrideOption = None,
    allow_loss: Annotated[
        bool,
        typer.Option(
            "--allow-loss", help="Go on if retention removed records before the pipeline read them."
        ),
    ] = False,
    master: MasterOption = "local[*]",
    settings: SparkSettingsOption = None,
    as_json: JsonOption = False,
) -> None:
    spark_settings = {**FAIR, **parse_settings(settings or [], "--set")}
    with reporting_missing_spark():
        from penstock.spark.pipelines.etl.etl import check, run_etl
        from penstock.spark.pipelines.etl.spec_file import read_spec
        from penstock.spark.pipelines.etl.stages import EtlSettings
    found = read_spec(spec, None if checkpoint is None else checkpoint.absolute())
    if only_check:
        typer.echo(f"{spec}: {found.name} has the stages {', '.join(found.stages)}")
        return
    chosen = tuple(stage for stage in found.stages if stage in (stages or found.stages))
    unknown = tuple(stage for stage in stages or () if stage not in found.stages)
    wanted = EtlSettings(
        spec=found,
        access=kafka_options(broker),
        stages=chosen + unknown,
        once=once,
        every_s=every,
        rows_per_batch=max_rows_per_batch,
        allow_loss=allow_loss,
        isolation=None if isolation is None else isolation.value,
    )
    with broker.client():
        pass  # report an unreachable address at once, with the reason
    check(wanted)
    name = found.name if len(wanted.stages) > 1 else found.query_name(wanted.stages[0])
    with session(name, master, spark_settings) as (spark, stop, tell):
        report = run_etl(spark, wanted, stop, tell)
    print_report(report, as_json=as_json)
    exit_if_interrupted(stop, once=once)
