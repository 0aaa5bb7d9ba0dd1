"""`penstock pipeline audit`: finds lost, duplicated, changed and out-of-order records.

Rule: exit code 0 means that the audit ran and found no violation, VIOLATED that it ran and found violations.
Any other code means that there is no verdict.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command import client_command, examples, parse_settings, topic_names
from penstock.cli.pipeline.app import (
    IsolationLevel,
    IsolationOption,
    JsonOption,
    MasterOption,
    SparkSettingsOption,
    kafka_options,
    pipeline_app,
    print_report,
    reporting_missing_spark,
    uninterrupted_session,
)

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector

EXAMPLES = examples(
    ("Is every record in the lake, once, as it was?",
     "penstock pipeline audit --topic orders --lake ./lake"),
    ("Did all arrive in another topic, once and in order? Records are known by a header",
     "penstock pipeline audit --topic orders --against orders-enriched --id header:message-id"),
    ("The same, known by their key and a number in their value",
     "penstock pipeline audit --topic orders --against orders-enriched --id key --id json:sequence"),
    ("Is an id there twice?",
     "penstock pipeline audit --topic orders --id json:order.id"),
)  # fmt: skip
VIOLATED = 3


class ViolationKind(StrEnum):
    lost = "lost"
    duplicated = "duplicated"
    different = "different"
    order = "order"
    files = "files"


@pipeline_app.command(
    "audit",
    help="Find lost, doubled, changed and disordered records. Exits with 3 if there are any.",
    epilog=EXAMPLES,
)
@client_command
def audit(
    broker: "BrokerConnector",
    topics: Annotated[
        list[str], typer.Option("--topic", callback=topic_names, help="What to audit; may be repeated.")
    ],
    lake: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of the table that archive wrote.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC", callback=topic_names, help="Where its records must be too; may be repeated."
        ),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="By what a record is known: header:NAME, key, json:FIELD or replay. Several are one.",
        ),
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only records for which this holds must arrive.")
    ] = None,
    offsets_only: Annotated[
        bool, typer.Option("--offsets-only", help="Do not compare keys, values, headers and times.")
    ] = False,
    complete: Annotated[
        bool, typer.Option("--complete", help="What is not there yet is a violation too.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="What the audit cannot decide is a violation too.")
    ] = False,
    ignore: Annotated[
        list[ViolationKind] | None, typer.Option(help="Report this, but not as a violation; may be repeated.")
    ] = None,
    isolation: IsolationOption = IsolationLevel.read_committed,
    master: MasterOption = "local[*]",
    settings: SparkSettingsOption = None,
    as_json: JsonOption = False,
) -> None:
    spark_settings = parse_settings(settings or [], "--set")
    with reporting_missing_spark():
        from penstock.spark.pipelines.audit.audit import AuditSettings, check, run_audit
        from penstock.spark.pipelines.audit.ids import parse_ids
    wanted = AuditSettings(
        topics=tuple(dict.fromkeys(topics)),
        access=kafka_options(broker),
        lake=None if lake is None else lake.absolute(),
        against=tuple(dict.fromkeys(against or ())),
        ids=parse_ids(ids or ()),
        where=where,
        offsets_only=offsets_only,
        strict=strict,
        complete=complete,
        ignored=tuple(kind.value for kind in ignore or ()),
        isolation=isolation.value,
    )
    with broker.client():
        pass  # report an unreachable address at once, with the reason
    check(wanted)
    with uninterrupted_session("audit", master, spark_settings, "no verdict") as (spark, stop, tell):
        report = run_audit(spark, wanted, stop, tell)
    print_report(report, as_json=as_json)
    if not report.is_clean:
        raise typer.Exit(VIOLATED)
