"""`penstock group`: lists consumer groups, shows their lag, resets their offsets.

Listing, deleting and resetting use Kafka's protocol and work with any Kafka broker. That protocol does not
have the age of waiting records, the consume rate of a group and the reasons of rebalances, so `describe` uses
HTTP.
"""

import time
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from penstock.cli.command import (
    TIMEOUT_S_DEFAULT,
    URL_DEFAULT,
    JsonOption,
    TimeoutOption,
    YesOption,
    client_command,
    errors_of_option,
    examples,
    group_names,
    new_app,
    topic_names,
)
from penstock.errors import CommandFailed

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector

EXAMPLES = examples(
    ("Which groups there are", "penstock group list"),
    ("How far one is behind", "penstock group describe billing"),
    ("Read the last hour again", "penstock group reset billing --to 1h"),
)

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", callback=group_names, help="The group.")]
GroupsArgument = Annotated[
    list[str], typer.Argument(metavar="GROUP...", callback=group_names, help="The groups.")
]

group_app = new_app(help="List, describe, reset and delete consumer groups.", epilog=EXAMPLES)


def add_to(app: typer.Typer) -> None:
    app.add_typer(group_app, name="group")


LIST_EXAMPLES = examples(
    ("Every group", "penstock group list"),
    ("Only the names of those with members", "penstock group list --json | jq -r "
     "'.[] | select(.state != \"Empty\") | .group'"),
)  # fmt: skip


def _validated_selections(given: list[str] | None) -> list[str] | None:
    """Validate TOPIC or TOPIC:PARTITIONS; the part before the colon must be a valid topic name."""
    topic_names([position.partition(":")[0] for position in given or ()])
    return given


@group_app.command("list", help="List the groups.", epilog=LIST_EXAMPLES)
@client_command
def list_(broker: "BrokerConnector", as_json: JsonOption = False) -> None:
    from penstock.cli.group.client import list_groups
    from penstock.cli.output import json_line, note, table

    rows = [(each.group_id, each.group_type or "classic", each.group_state) for each in list_groups(broker)]
    if as_json:
        json_line([dict(zip(("group", "type", "state"), row, strict=True)) for row in rows])
    elif rows:
        table(("GROUP", "TYPE", "STATE"), rows)
    else:
        note("there are no groups yet")


DESCRIBE_EXAMPLES = examples(
    ("The lag of a group, what each member reads, and why it rebalanced", "penstock group describe billing"),
    ("The age of the oldest record that waits, in ms", "penstock group describe billing --json | jq .age_ms"),
    ("A broker whose HTTP side is elsewhere",
     "penstock group describe billing --url http://broker1.example.com:8080"),
)  # fmt: skip


@group_app.command("describe", help="Show lag, members and rebalances.", epilog=DESCRIBE_EXAMPLES)
def describe(
    group: GroupArgument,
    url: Annotated[
        str, typer.Option(envvar="PENSTOCK_URL", metavar="URL", help="The broker's HTTP address.")
    ] = URL_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    from penstock.cli.group.output import print_group
    from penstock.cli.http_client import get_json
    from penstock.cli.output import json_line

    document = get_json(url, f"/v1/groups/{quote(group, safe='')}", timeout)
    if as_json:
        json_line(document)
    else:
        print_group(document)


DELETE_EXAMPLES = examples(("A group that no consumer uses any more", "penstock group delete billing"))


@group_app.command("delete", help="Delete groups and their offsets.", epilog=DELETE_EXAMPLES)
@client_command
def delete(
    broker: "BrokerConnector",
    groups: GroupsArgument,
    yes: YesOption = False,
) -> None:
    from penstock.cli.group.client import GroupClient
    from penstock.cli.output import confirm

    with broker.client() as client:
        for group in groups:
            if GroupClient(client, group).state() is None:
                raise CommandFailed(f"there is no group {group}. See `penstock group list`.")
        what = "group" if len(groups) == 1 else "groups"
        confirm(f"Delete {what} {', '.join(groups)} and all committed offsets?", yes=yes)
        for group in groups:
            GroupClient(client, group).delete()
            typer.echo(f"deleted group {group}")


RESET_EXAMPLES = examples(
    ("Look at what would happen", "penstock group reset billing --to earliest --dry-run"),
    ("Read the last hour and a half again", "penstock group reset billing --to 1h30m"),
    ("From a moment on, in one topic", "penstock group reset billing --topic orders --to 2026-11-15T10:00Z"),
    ("One partition to an offset", "penstock group reset billing --topic orders:2 --to offset:1234"),
    ("Skip what has piled up, though consumers are running",
     "penstock group reset billing --to latest --force"),
    ("A new group that shall begin at the end", "penstock group reset audit --topic orders --to latest"),
)  # fmt: skip


@group_app.command("reset", help="Move a group to another place in its topics.", epilog=RESET_EXAMPLES)
@client_command
def reset(
    broker: "BrokerConnector",
    group: GroupArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, an offset (offset:1234), a time (datetime:2026-11-15T10:00; without a "
            "zone, local time) or how long ago (duration:1h30m or PT1H30M). The word before the colon "
            "may be left out.",
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC[:P,...]",
            callback=_validated_selections,
            help="Only this topic, or some of its partitions. May be repeated. "
            "Default: all partitions that the group has committed.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Although the group has members: remove them first. They rejoin by themselves and go on "
            "from the new offsets; what they could not commit before is not committed any more.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    from penstock.cli.group.reset import parse_selection, parse_target, reset_offsets

    with errors_of_option("--to"):
        position = parse_target(to, time.time_ns() // 1_000_000)
    with errors_of_option("--topic"):
        selections = [parse_selection(text) for text in topic or ()]
    reset_offsets(broker, group, position, selections, dry_run=dry_run, force=force, as_json=as_json)
