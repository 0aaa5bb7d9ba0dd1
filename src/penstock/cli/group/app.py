"""`penstock group`: lists consumer groups, shows their lag, resets their offsets.

Listing, deleting and resetting use Kafka's protocol and work with any Kafka broker. That protocol does not
have the age of waiting records, the consume rate of a group and the reasons of rebalances, so `describe` uses
HTTP.
"""

import time
from collections.abc import Mapping, Sequence
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
    from penstock.cli.group.client import Group, GroupMember, GroupState
    from penstock.cli.group.reset import OffsetMove, TopicSelection
    from penstock.cli.positions import PositionSpec
    from penstock.types import TopicPartition

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
    ("How far a group is behind, who reads what, and why it rebalanced", "penstock group describe billing"),
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


DELETE_EXAMPLES = examples(("A group that nobody uses any more", "penstock group delete billing"))


@group_app.command("delete", help="Delete groups and their offsets.", epilog=DELETE_EXAMPLES)
@client_command
def delete(
    broker: "BrokerConnector",
    groups: GroupsArgument,
    yes: YesOption = False,
) -> None:
    from penstock.cli.group.client import Group
    from penstock.cli.output import confirm

    with broker.client() as client:
        for group in groups:
            if Group(client, group).state() is None:
                raise CommandFailed(f"there is no group {group}. See `penstock group list`.")
        what = "group" if len(groups) == 1 else "groups"
        confirm(f"Delete {what} {', '.join(groups)} and all committed offsets?", yes=yes)
        for group in groups:
            Group(client, group).delete()
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
    from penstock.cli.group.client import Group
    from penstock.cli.group.reset import parse_selection, parse_target

    with errors_of_option("--to"):
        position = parse_target(to, time.time_ns() // 1_000_000)
    with errors_of_option("--topic"):
        selections = [parse_selection(text) for text in topic or ()]
    with broker.client() as client:
        moved = Group(client, group)
        state = moved.state()
        moves = _planned_moves(broker, position, selections, moved.committed(), group)
        members = state.members if state is not None else []
        if members and not force and not dry_run:
            raise CommandFailed(_has_members(group, members))
        if not dry_run:
            members = _commit_moves(broker, moved, moves, state, force=force)
    _print_moves(group, moves, members, dry_run=dry_run, as_json=as_json)


def _planned_moves(
    broker: "BrokerConnector",
    position: "PositionSpec",
    selections: "Sequence[TopicSelection]",
    committed: "Mapping[TopicPartition, int]",
    group: str,
) -> "list[OffsetMove]":
    from penstock.cli.group.reset import plan_moves
    from penstock.cli.positions import PositionKind
    from penstock.cli.topic_requests import find_offsets, log_bounds
    from penstock.types import TopicPartition

    chosen = _chosen(broker, selections) if selections else _by_topic(committed)
    if not chosen:
        raise CommandFailed(f"group {group} has committed nothing: name what it shall read with --topic.")
    spans: dict[TopicPartition, tuple[int, int]] = {}
    found: dict[TopicPartition, int | None] = {}
    for topic, numbers in chosen.items():
        bounds = log_bounds(broker, topic, numbers)
        spans |= {TopicPartition(topic, number): bounds[number] for number in numbers}
        if position.kind is PositionKind.TIMESTAMP:
            at = find_offsets(broker, topic, numbers, position)
            found |= {TopicPartition(topic, number): at[number].offset for number in numbers}
    return plan_moves(position, spans, found, committed)


def _by_topic(partitions: "Mapping[TopicPartition, int]") -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics


def _chosen(broker: "BrokerConnector", selections: "Sequence[TopicSelection]") -> dict[str, list[int]]:
    from penstock.cli.topic_metadata import find_topics

    chosen: dict[str, set[int]] = {}
    found = find_topics(broker, list(dict.fromkeys(selection.topic for selection in selections)))
    existing = {topic.name: topic.numbers for topic in found}
    for topic, wanted in selections:
        missing = sorted(set(wanted or ()) - set(existing[topic]))
        if missing:
            raise CommandFailed(
                f"topic {topic} has no partition {missing[0]}: it has 0 to {existing[topic][-1]}."
            )
        chosen.setdefault(topic, set()).update(existing[topic] if wanted is None else wanted)
    return {topic: sorted(numbers) for topic, numbers in chosen.items()}


def _commit_moves(
    broker: "BrokerConnector",
    group: "Group",
    moves: "Sequence[OffsetMove]",
    state: "GroupState | None",
    *,
    force: bool,
) -> "list[GroupMember]":
    """Commit all offsets in one request. Removed members may have rejoined, and are then removed again."""
    from penstock.types import Offset

    offsets = {move.partition: Offset(move.after) for move in moves}
    removed: dict[str, GroupMember] = {}
    deadline = time.monotonic() + broker.timeout_s
    while True:
        if state is not None and state.members:
            if not force:
                raise CommandFailed("nothing was changed: a consumer has just joined the group.")
            # Members must be gone before the commit: the coordinator accepts such a commit only for an empty
            # group.
            group.remove(state.type, state.members)
            removed |= {member.member_id: member for member in state.members}
        if group.commit(offsets):
            return list(removed.values())
        if time.monotonic() > deadline:
            raise CommandFailed("nothing was changed: its consumers rejoin too fast. Stop them first.")
        state = group.state()


def _has_members(group: str, members: "Sequence[GroupMember]") -> str:
    shown = "\n".join(f"  {member}" for member in members[:10])
    more = f"\n  and {len(members) - 10} more" if len(members) > 10 else ""
    return (
        f"group {group} has members, whose next commits would undo a reset:\n{shown}{more}\n"
        "Stop them first, or give --force: it removes them, and they rejoin at the new offsets."
    )


def _print_moves(
    group: str,
    moves: "Sequence[OffsetMove]",
    members: "Sequence[GroupMember]",
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    from penstock.cli.output import counted, json_line, note, table

    if as_json:
        rows = [
            {**move.partition._asdict(), "from": move.before, "to": move.after, "note": move.note or None}
            for move in moves
        ]
        names = [member.member_id for member in members]
        key = "members" if dry_run else "removed_members"
        json_line({"group": group, "dry_run": dry_run, key: names, "partitions": rows})
        return
    table(
        ("TOPIC", "PARTITION", "FROM", "TO", ""),
        [(*move.partition, move.before, move.after, move.note) for move in moves],
    )
    if dry_run:
        note("nothing was changed (--dry-run)")
    if members and dry_run:
        note(f"the group has {counted(len(members), 'member')}: this would be refused without --force")
    elif members:
        note(f"removed {counted(len(members), 'member')}: whoever still runs rejoins and goes on from there")
