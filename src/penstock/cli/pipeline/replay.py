"""`penstock pipeline replay`: writes rows of a lake back to a topic."""

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command import client_command, errors_of_option, examples, parse_settings, topic_names
from penstock.cli.pipeline.app import (
    EndOption,
    JsonOption,
    MasterOption,
    PipelineNameOption,
    SparkSettingsOption,
    StartOption,
    kafka_options,
    pipeline_app,
    print_report,
    reporting_missing_spark,
    session,
)
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector
    from penstock.spark.pipelines.replay.plan import Bound

EXAMPLES = examples(
    ("A whole table", "penstock pipeline replay --lake ./lake --to orders-again"),
    ("The last day, at most 1,000 rows per second",
     "penstock pipeline replay --lake ./lake --to orders-again --start 24h --rate 1000"),
    ("How many it would be, without sending any",
     "penstock pipeline replay --lake ./lake --to orders-again --start 7d --end 6d --dry-run"),
    ("Only some",
     "penstock pipeline replay --lake ./lake --to orders-again "
     "--where \"get_json_object(cast(value as string), '$.country') = 'PT'\""),
)  # fmt: skip
ROWS_PER_BATCH = 500_000
RECORD_BYTES_MAX = 1_048_588
"""Limit of topics, unless their `max.message.bytes` sets another one."""


class PartitionsBy(StrEnum):
    key = "key"
    same = "same"


class Timestamps(StrEnum):
    original = "original"
    new = "new"


@pipeline_app.command("replay", help="Send rows of a lake to a topic again.", epilog=EXAMPLES)
@client_command
def replay(
    broker: "BrokerConnector",
    lake: Annotated[Path, typer.Option(metavar="DIR", help="The folder of a table that archive wrote.")],
    to: Annotated[str, typer.Option(metavar="TOPIC", callback=topic_names, help="The topic to write to.")],
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", callback=topic_names, help="Only rows of this topic; may be repeated."),
    ] = None,
    start: StartOption = "earliest",
    end: EndOption = "latest",
    where: Annotated[str | None, typer.Option(metavar="SQL", help="Only rows for which this holds.")] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="ROWS", min=0.001, help="Send at most so many rows per second.")
    ] = None,
    max_rows_per_batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="After a crash, at most so many are sent again.")
    ] = ROWS_PER_BATCH,
    partitions: Annotated[
        PartitionsBy, typer.Option(help="By the key, or the same number as before.")
    ] = PartitionsBy.key,
    timestamps: Annotated[
        Timestamps, typer.Option(help="Timestamps of the records that are written.")
    ] = Timestamps.original,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where it is noted how far it is. Default: in the table's folder."),
    ] = None,
    max_record_bytes: Annotated[
        int, typer.Option(metavar="BYTES", min=1, help="Send no larger record: what the topic takes.")
    ] = RECORD_BYTES_MAX,
    name: PipelineNameOption = None,
    only_count: Annotated[bool, typer.Option("--dry-run", help="Count what would be sent, and end.")] = False,
    master: MasterOption = "local[*]",
    settings: SparkSettingsOption = None,
    as_json: JsonOption = False,
) -> None:
    spark_settings = parse_settings(settings or [], "--set")
    with reporting_missing_spark():
        from penstock.spark.pipelines.common.spark_action import RunInterrupted
        from penstock.spark.pipelines.replay.replay import ReplaySettings, check, dry_run, run_replay
    wanted = ReplaySettings(
        folder=lake.absolute(),
        to=to,
        access=kafka_options(broker),
        topics=tuple(dict.fromkeys(topics or ())),
        start=parse_bound(start, "--start", unbounded="earliest"),
        end=parse_bound(end, "--end", unbounded="latest"),
        where=where,
        rows_per_s=rate,
        rows_per_batch=max_rows_per_batch,
        same_partitions=partitions is PartitionsBy.same,
        new_timestamps=timestamps is Timestamps.new,
        checkpoint=None if checkpoint is None else checkpoint.absolute(),
        name=name,
        row_bytes_max=max_record_bytes,
    )
    with broker.client():
        pass  # report an unreachable address at once, with the reason
    check(wanted)
    with session(wanted.replay_name, master, spark_settings) as (spark, stop, tell):
        if only_count:
            try:
                print_report(dry_run(spark, wanted, stop), as_json=as_json)
            except RunInterrupted:
                raise KeyboardInterrupt from None
        else:
            print_report(run_replay(spark, wanted, stop, tell), as_json=as_json)


def parse_bound(text: str, option: str, *, unbounded: str) -> "Bound":
    from penstock.cli.positions import PositionKind, parse_position
    from penstock.spark.options.values import parse_partition_offsets
    from penstock.spark.pipelines.replay.plan import Bound

    if text.strip() == unbounded:
        return Bound()
    if text.lstrip().startswith("{"):
        try:
            offsets = parse_partition_offsets(option, text)
        except ConfigError as problem:
            raise typer.BadParameter(str(problem).removeprefix("option "), param_hint=option) from problem
        if not offsets or min(offsets.values()) < 0:
            raise typer.BadParameter(
                "give the offset of one partition at least, from 0 on", param_hint=option
            )
        return Bound(text, offsets=offsets)
    with errors_of_option(option):
        position = parse_position(text, time.time_ns() // 1_000_000, number_is=PositionKind.OFFSET)
    if position.kind is PositionKind.OFFSET:
        return Bound(text, offset=position.number)
    if position.kind is PositionKind.TIMESTAMP:
        return Bound(text, timestamp_ms=position.number)
    raise typer.BadParameter(
        f"{text!r} would leave nothing to replay: give an offset, a time, how long ago, or {unbounded}",
        param_hint=option,
    )
