"""`penstock topic`: lists and changes topics.

Each command checks that its topics exist before it changes anything, and asks for confirmation before it
deletes.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import (
    JsonOption,
    YesOption,
    client_command,
    errors_of_option,
    examples,
    new_app,
    parse_settings,
    topic_names,
)
from penstock.errors import CommandFailed
from penstock.limits import PARTITIONS_PER_TOPIC_MAX

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector
    from penstock.cli.topic_metadata import TopicDescription
    from penstock.cli.topic_requests import FoundOffset, TopicSetting

BROKER_DEFAULT = -1
"""Value in Kafka's protocol that requests the broker's default."""
PARTITIONS_MAX = 100_000
REPLICATION_FACTOR_MAX = 10_000
"""Bounds of the options; the broker has its own limits."""
PENSTOCK_MAKES = f"; a Penstock broker allows {PARTITIONS_PER_TOPIC_MAX}"

TopicNameArgument = Annotated[str, typer.Argument(metavar="NAME", callback=topic_names, help="The topic.")]
TopicNamesArgument = Annotated[
    list[str], typer.Argument(metavar="NAME...", callback=topic_names, help="The topics.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting. May be repeated. `topic describe NAME --all-settings` lists them.",
    ),
]

EXAMPLES = examples(
    ("A topic with three partitions", "penstock topic create orders --partitions 3"),
    ("What topics there are", "penstock topic list"),
    ("How many records a topic has", "penstock topic offsets orders"),
)

topic_app = new_app(help="Create, list, describe, alter, truncate and delete topics.", epilog=EXAMPLES)


def add_to(app: typer.Typer) -> None:
    app.add_typer(topic_app, name="topic")


CREATE_EXAMPLES = examples(
    ("A topic with the broker's defaults", "penstock topic create orders"),
    ("Three partitions, records kept for a day", "penstock topic create orders --partitions 3 "
     "--set retention.ms=86400000"),
    ("In a script that may run twice", "penstock topic create orders --if-not-exists"),
)  # fmt: skip


@topic_app.command("create", help="Create a topic.", epilog=CREATE_EXAMPLES)
@client_command
def create(
    broker: "BrokerConnector",
    name: TopicNameArgument,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1, max=PARTITIONS_MAX, help=f"How many{PENSTOCK_MAKES}. Default: the broker's num.partitions."
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            min=1, max=REPLICATION_FACTOR_MAX, help="Default: the broker's default.replication.factor."
        ),
    ] = None,
    set_: SetOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists already.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    from penstock.cli.output import json_line
    from penstock.cli.topic_metadata import find_topic, size_text
    from penstock.cli.topic_requests import create_topic

    settings = parse_settings(set_ or (), "--set")
    created = create_topic(
        broker, name, partitions or BROKER_DEFAULT, replication_factor or BROKER_DEFAULT, settings
    )
    if not created and not if_not_exists:
        raise CommandFailed(f"topic {name} exists already. Change it with `penstock topic alter {name}`.")
    topic = find_topic(broker, name)
    if as_json:
        json_line(_summary(topic) | {"created": created})
    elif created:
        typer.echo(f"created topic {name} ({size_text(topic)})")
    else:
        typer.echo(f"topic {name} exists already")


LIST_EXAMPLES = examples(
    ("Every topic", "penstock topic list"),
    ("Only the names, for a script", "penstock topic list --json | jq -r '.[].name'"),
)


@topic_app.command("list", help="List the topics.", epilog=LIST_EXAMPLES)
@client_command
def list_(
    broker: "BrokerConnector",
    internal: Annotated[
        bool, typer.Option("--internal", help="Those the broker keeps for itself, too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    from penstock.cli.output import json_line, note, table
    from penstock.cli.topic_metadata import list_topics

    with broker.client() as client:
        topics = [topic for topic in list_topics(client) if internal or not topic.is_internal]
    if as_json:
        json_line([_summary(topic) for topic in topics])
    elif topics:
        table(
            ("TOPIC", "PARTITIONS", "REPLICATION"),
            [(topic.name, len(topic.partitions), topic.replication_factor) for topic in topics],
        )
    else:
        note("there are no topics yet")


DESCRIBE_EXAMPLES = examples(
    ("Who leads each partition, and which settings are the topic's own", "penstock topic describe orders"),
    ("Every setting in force", "penstock topic describe orders --all-settings"),
)


@topic_app.command("describe", help="Show partitions and settings.", epilog=DESCRIBE_EXAMPLES)
@client_command
def describe(
    broker: "BrokerConnector",
    names: TopicNamesArgument,
    all_settings: Annotated[
        bool, typer.Option("--all-settings", help="Also settings the topic does not override.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    from penstock.cli.output import json_line
    from penstock.cli.topic_metadata import find_topics
    from penstock.cli.topic_requests import topic_settings

    names = list(dict.fromkeys(names))
    topics = find_topics(broker, names)
    shown = {
        name: {key: setting for key, setting in found.items() if all_settings or setting.is_override}
        for name, found in topic_settings(broker, names).items()
    }
    if as_json:
        json_line([_description(topic, shown[topic.name]) for topic in topics])
    else:
        typer.echo("\n\n".join(_description_text(topic, shown[topic.name]) for topic in topics))


def _summary(topic: "TopicDescription") -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic.id,
        "partitions": len(topic.partitions),
        "replication_factor": topic.replication_factor,
        "internal": topic.is_internal,
    }


def _description(topic: "TopicDescription", settings: dict[str, "TopicSetting"]) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic.id,
        "internal": topic.is_internal,
        "partitions": [partition._asdict() for partition in topic.partitions],
        "settings": {key: setting._asdict() for key, setting in settings.items()},
    }


def _description_text(topic: "TopicDescription", settings: dict[str, "TopicSetting"]) -> str:
    from penstock.cli.output import counted, table_lines

    rows = [
        (number, leader, epoch, ",".join(map(str, replicas)), ",".join(map(str, in_sync)))
        for number, leader, epoch, replicas, in_sync in topic.partitions
    ]
    setting_lines = [
        f"  {key}={setting.value or ''}" + ("" if setting.is_override else "  (default)")
        for key, setting in settings.items()
    ]
    lines = [
        f"{topic.name}  id {topic.id or '-'}  {counted(len(topic.partitions), 'partition')}  "
        f"replication factor {topic.replication_factor}{'  internal' if topic.is_internal else ''}",
        "settings:" if settings else "settings: none of its own",
        *setting_lines,
        *table_lines(("PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC"), rows),
    ]
    return "\n".join(lines)


OFFSETS_EXAMPLES = examples(
    ("Start, end and number of records", "penstock topic offsets orders"),
    ("What came in the last quarter of an hour", "penstock topic offsets orders --time 15m-ago"),
    ("Where the first of March begins", "penstock topic offsets orders --time 2026-03-01"),
)


@topic_app.command("offsets", help="Show where each partition starts and ends.", epilog=OFFSETS_EXAMPLES)
@client_command
def offsets(
    broker: "BrokerConnector",
    name: TopicNameArgument,
    at: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="WHEN",
            help="Also find the first record at or after a time (2026-03-01T12:00Z, or milliseconds since "
            "1970) or how long ago (15m-ago); or earliest, latest, max-timestamp.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show offsets. For a compacted topic, the counts are upper bounds: removed records leave gaps."""
    from penstock.cli.output import json_line, table
    from penstock.cli.positions import PositionKind, parse_position
    from penstock.cli.topic_metadata import find_topic
    from penstock.cli.topic_requests import find_offsets, log_bounds

    position = None
    if at is not None:
        with errors_of_option("--time"):
            position = parse_position(at, time.time_ns() // 1_000_000, number_is=PositionKind.TIMESTAMP)
    topic = find_topic(broker, name)
    bounds = log_bounds(broker, topic.names)
    found = find_offsets(broker, topic.names, position) if position is not None else None
    rows = [
        _offset_row(each.partition, start, end, found[each] if found else None)
        for each, (start, end) in bounds.items()
    ]
    if as_json:
        total = sum(row["count"] for row in rows)
        json_line({"topic": name, "partitions": rows, "count": total})
        return
    keys = ("partition", "start", "end", "count", *(("offset", "since") if found else ()))
    totals = {key: sum(row[key] for row in rows) for key in keys if key in ("count", "since")}
    table(
        [key.upper() for key in keys],
        [
            *([row[key] for key in keys] for row in rows),
            ["total", *(totals.get(key, "") for key in keys[1:])],
        ],
    )


def _offset_row(number: int, start: int, end: int, found: "FoundOffset | None") -> dict[str, Any]:
    row: dict[str, Any] = {"partition": number, "start": start, "end": end, "count": end - start}
    if found is not None:
        since = 0 if found.offset is None else end - found.offset
        row |= {"offset": found.offset, "timestamp": found.timestamp, "since": since}
    return row


ALTER_EXAMPLES = examples(
    ("More partitions (never fewer)", "penstock topic alter orders --partitions 6"),
    ("Keep records for a week, in small segments", "penstock topic alter orders "
     "--set retention.ms=604800000 --set segment.bytes=104857600"),
    ("Follow the broker's setting again", "penstock topic alter orders --unset retention.ms"),
)  # fmt: skip


@topic_app.command("alter", help="Change settings, or add partitions.", epilog=ALTER_EXAMPLES)
@client_command
def alter(
    broker: "BrokerConnector",
    name: TopicNameArgument,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=PARTITIONS_MAX, help=f"How many it is to have{PENSTOCK_MAKES}."),
    ] = None,
    set_: SetOption = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Back to the broker's value. May be repeated.")
    ] = None,
) -> None:
    from penstock.cli.topic_metadata import find_topic
    from penstock.cli.topic_requests import add_partitions, alter_topic_configs, topic_settings

    changes: dict[str, str | None] = {**parse_settings(set_ or (), "--set")}
    for key in unset or ():
        if not key.strip():
            raise typer.BadParameter(f"{key!r} is not the name of a setting", param_hint="--unset")
        if key in changes:
            raise typer.BadParameter(f"{key} is set and unset at once", param_hint="--unset")
        changes[key] = None
    if not changes and partitions is None:
        raise typer.BadParameter("nothing to change: give --partitions, --set or --unset")
    find_topic(broker, name)
    missing = _not_set(name, unset or (), topic_settings(broker, [name])[name] if unset else {})
    for key in missing:
        del changes[key]
    # Both changes are validated before either is applied, so that a rejection leaves the topic unchanged.
    for validate_only in (True, False):
        if changes:
            alter_topic_configs(broker, name, changes, validate_only=validate_only)
        if partitions is not None:
            add_partitions(broker, name, partitions, validate_only=validate_only)
    for key in missing:
        typer.echo(f"{key} was not set for topic {name}")
    if changes or partitions is not None:
        typer.echo(f"changed topic {name}")


def _not_set(name: str, keys: Sequence[str], settings: dict[str, "TopicSetting"]) -> list[str]:
    """Return the keys without an override; raise CommandFailed for an unknown setting."""
    from penstock.cli.main import with_full_stop
    from penstock.cli.topic_requests import SETTINGS_ARE_LISTED
    from penstock.config.setting import unknown_setting_message

    for key in keys:
        if key not in settings:
            problem = with_full_stop(
                f"topic {name} was not changed: {unknown_setting_message(key, settings)}"
            )
            raise CommandFailed(f"{problem} {SETTINGS_ARE_LISTED}")
    return [key for key in dict.fromkeys(keys) if not settings[key].is_override]


DELETE_EXAMPLES = examples(
    ("After asking", "penstock topic delete orders"),
    ("In a script", "penstock topic delete orders payments --yes"),
)


@topic_app.command("delete", help="Delete topics and all their records.", epilog=DELETE_EXAMPLES)
@client_command
def delete(broker: "BrokerConnector", names: TopicNamesArgument, yes: YesOption = False) -> None:
    from penstock.cli.output import confirm
    from penstock.cli.topic_metadata import find_topics
    from penstock.cli.topic_requests import delete_topics

    names = list(dict.fromkeys(names))
    find_topics(broker, names)
    what = "topic" if len(names) == 1 else "topics"
    confirm(f"Delete {what} {', '.join(names)} with all records?", yes=yes)
    delete_topics(broker, names)
    typer.echo(f"deleted {what} {', '.join(names)}")


TRUNCATE_EXAMPLES = examples(
    ("Empty a topic", "penstock topic truncate orders"),
    (
        "Delete what is older than an offset",
        "penstock topic truncate orders --partition 0 --before 1000 --yes",
    ),
)


@topic_app.command("truncate", help="Delete the oldest records.", epilog=TRUNCATE_EXAMPLES)
@client_command
def truncate(
    broker: "BrokerConnector",
    name: TopicNameArgument,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition. Default: all.")] = None,
    before: Annotated[
        str, typer.Option(metavar="OFFSET|latest", help="Keep this offset and what follows it.")
    ] = "latest",
    yes: YesOption = False,
) -> None:
    from penstock.cli.output import confirm, counted, table
    from penstock.cli.topic_metadata import chosen_partitions, find_topic
    from penstock.cli.topic_requests import delete_records, log_bounds

    if before != "latest" and not (before.isascii() and before.isdigit()):
        raise typer.BadParameter(f"{before!r} is neither an offset nor latest", param_hint="--before")
    topic = find_topic(broker, name, advise_creation=False)
    chosen = chosen_partitions(topic, [] if partition is None else [partition])
    bounds = log_bounds(broker, chosen)
    keep_from = {each: end if before == "latest" else int(before) for each, (_, end) in bounds.items()}
    for each, (_, end) in bounds.items():
        if keep_from[each] > end:
            raise CommandFailed(
                f"partition {each.partition} of topic {name} ends at offset {end}, before {before}."
            )
    count = sum(max(keep_from[each] - start, 0) for each, (start, _) in bounds.items())
    where = f"topic {name}" if partition is None else f"partition {partition} of topic {name}"
    if count:
        confirm(f"Delete the {counted(count, 'oldest record')} of {where}?", yes=yes)
    starts = delete_records(broker, keep_from)
    table(("PARTITION", "START"), [(each.partition, start) for each, start in sorted(starts.items())])
