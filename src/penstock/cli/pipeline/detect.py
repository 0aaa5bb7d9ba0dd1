"""`penstock pipeline detect`: evaluates rules over a stream; alerts go to a topic."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command import client_command, examples, parse_settings, topic_names
from penstock.cli.pipeline.app import (
    EveryOption,
    IsolationOverrideOption,
    JsonOption,
    MasterOption,
    PipelineNameOption,
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
    ("All that is there now",
     "penstock pipeline detect --topic payments --rules payments.toml --to alerts "
     "--checkpoint ./detect-payments --once"),
    ("From now on, until Ctrl-C",
     "penstock pipeline detect --topic payments --rules payments.toml --to alerts "
     "--checkpoint ./detect-payments"),
    ("What was found", "penstock consume alerts --from earliest"),
)  # fmt: skip
ROWS_PER_BATCH = 200_000
EVERY_S = 1.0


@pipeline_app.command("detect", help="Find what rules are about in a stream.", epilog=EXAMPLES)
@client_command
def detect(
    broker: "BrokerConnector",
    topic: Annotated[str, typer.Option(callback=topic_names, help="What to look at.")],
    rules: Annotated[Path, typer.Option(metavar="FILE", help="What to look for (TOML).")],
    to: Annotated[
        str, typer.Option(metavar="TOPIC", callback=topic_names, help="Where alerts go. Made if missing.")
    ],
    checkpoint: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the position and what is remembered are kept.")
    ],
    rejected: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            callback=topic_names,
            help="Where late and unreadable rows go. Default: the topic's name and .rejected.",
        ),
    ] = None,
    name: PipelineNameOption = None,
    once: Annotated[bool, typer.Option("--once", help="Look at what is there now, then end.")] = False,
    every: EveryOption = EVERY_S,
    max_rows_per_batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Look at so many rows at once at most.")
    ] = ROWS_PER_BATCH,
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
    spark_settings = parse_settings(settings or [], "--set")
    with reporting_missing_spark():
        from penstock.spark.pipelines.detect.detect import DetectSettings, check, run_detect
        from penstock.spark.pipelines.detect.rules import read_rules
    wanted = DetectSettings(
        topic=topic,
        alerts=to,
        rules=read_rules(rules),
        access=kafka_options(broker),
        checkpoint=checkpoint.absolute(),
        rejected=rejected,
        name=name,
        once=once,
        every_s=every,
        rows_per_batch=max_rows_per_batch,
        allow_loss=allow_loss,
        isolation=None if isolation is None else isolation.value,
    )
    with broker.client():
        pass  # report an unreachable address at once, with the reason
    check(wanted)
    with session(wanted.query_name, master, spark_settings) as (spark, stop, tell):
        report = run_detect(spark, wanted, stop, tell)
    print_report(report, as_json=as_json)
    exit_if_interrupted(stop, once=once)
