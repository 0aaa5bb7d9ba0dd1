"""`penstock pipeline insights`: reports how the load of a topic is distributed, with advice."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command import client_command, examples, group_names, parse_settings, topic_names
from penstock.cli.pipeline.app import (
    EndOption,
    IsolationLevel,
    IsolationOption,
    JsonOption,
    MasterOption,
    SparkSettingsOption,
    StartOption,
    kafka_options,
    pipeline_app,
    print_report,
    reporting_missing_spark,
    uninterrupted_session,
)

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector

EXAMPLES = examples(
    ("The whole topic", "penstock pipeline insights --topic orders --to orders.html"),
    ("The last day, and what waits for a group",
     "penstock pipeline insights --topic orders --start 24h --group billing"),
    ("With the time from where a message was made to the topic",
     "penstock pipeline insights --topic orders --made header:made-at"),
    ("What to do, for a script",
     "penstock pipeline insights --topic orders --json | jq -r .advice[].advice"),
)  # fmt: skip
MIB = 1024 * 1024
PARTITION_MIB_PER_S = 10.0


@pipeline_app.command(
    "insights", help="Hot keys, skew, throughput, age and latency of a topic, with advice.", epilog=EXAMPLES
)
@client_command
def insights(
    broker: "BrokerConnector",
    topic: Annotated[str, typer.Option(callback=topic_names, help="What to look at.")],
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The report (HTML). Default: insights-TOPIC.html, here."),
    ] = None,
    start: StartOption = "earliest",
    end: EndOption = "latest",
    made: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Where a message says when it was made: header:NAME or json:FIELD. Gives latency.",
        ),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", callback=group_names, help="Show the lag of this group; may be repeated."),
    ] = None,
    partition_rate: Annotated[
        float, typer.Option(metavar="MIB", min=0.001, help="Throughput of one partition, in MiB per second.")
    ] = PARTITION_MIB_PER_S,
    isolation: IsolationOption = IsolationLevel.read_committed,
    master: MasterOption = "local[*]",
    settings: SparkSettingsOption = None,
    as_json: JsonOption = False,
) -> None:
    from penstock.cli.pipeline.replay import parse_bound

    spark_settings = parse_settings(settings or [], "--set")
    with reporting_missing_spark():
        from penstock.spark.pipelines.insights.insights import (
            InsightsSettings,
            check,
            parse_created_field,
            run_insights,
        )
    wanted = InsightsSettings(
        topic=topic,
        access=kafka_options(broker),
        page=(to or Path(f"insights-{topic}.html")).absolute(),
        start=parse_bound(start, "--start", unbounded="earliest"),
        end=parse_bound(end, "--end", unbounded="latest"),
        made=parse_created_field(made),
        groups=tuple(dict.fromkeys(groups or ())),
        partition_bytes_per_s=partition_rate * MIB,
        isolation=isolation.value,
    )
    with broker.client():
        pass  # report an unreachable address at once, with the reason
    plan = check(wanted)
    with uninterrupted_session("insights", master, spark_settings, "no report") as (spark, stop, tell):
        report = run_insights(spark, wanted, plan, stop, tell)
    print_report(report, as_json=as_json)
