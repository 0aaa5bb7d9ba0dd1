"""`penstock cluster reassign`: moves partitions to other brokers while they are produced to and consumed."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.cluster.app import POLL_S, cluster_app
from penstock.cli.command import JsonOption, client_command, errors_of_option, examples, topic_names
from penstock.errors import CommandFailed

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector
    from penstock.cli.cluster.partition_moves import BlockedMove, PartitionMove, RecordsLeft
    from penstock.cli.cluster.reassign_plan import Targets
    from penstock.cli.topic_metadata import TopicDescription
    from penstock.types import TopicPartition

SHOWN_MAX: Final = 20

REASSIGN_EXAMPLES = examples(
    ("A topic to three brokers, and wait until it is there",
     "penstock cluster reassign --topic orders --to 1,2,3 --wait"),
    ("One partition, which the first of them is to lead",
     "penstock cluster reassign --topic orders --partition 0 --to 3,1,2"),
    ("What a file says, as Kafka's tool writes it", "penstock cluster reassign --file plan.json --wait"),
    ("Call it off", "penstock cluster reassign --topic orders --cancel"),
    ("Wait for what is under way", "penstock cluster reassign --topic orders --wait"),
)  # fmt: skip


@cluster_app.command("reassign", help="Move partitions to other brokers.", epilog=REASSIGN_EXAMPLES)
@client_command
def reassign(
    broker: "BrokerConnector",
    topic: Annotated[
        str | None, typer.Option(metavar="NAME", callback=topic_names, help="The topic to move.")
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=0, help="Only this partition. May be repeated. Default: all."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="ID,ID,...",
            help="The brokers that are to hold the partition, a replica each. With several partitions, "
            "each broker in turn is the preferred leader.",
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="A plan for many (JSON).")] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End what is under way: back to before.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until everything is copied.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Reassign partitions. Old replicas are removed only when the new replicas are in sync.

    follower.replication.throttled.rate limits the copying, in bytes per second, for one broker or for all.
    """
    _validate_options(topic, partition, to, file, cancel=cancel, wait=wait)
    before, targets = _current_and_target_replicas(broker, topic, partition or [], to, file)
    if cancel:
        _cancel(broker, list(before), as_json=as_json)
        return
    from penstock.cli.cluster.partition_moves import alter_reassignments, moves_under_way

    rejected = alter_reassignments(broker, targets) if targets else {}
    started = [name for name in before if name not in rejected]
    if wait:
        wait_until_moved(broker, started)
    # A move that only changes the preferred leader ends at once.
    under_way = [] if wait else [move for name, move in moves_under_way(broker).items() if name in started]
    _print(before, targets, rejected, is_done=bool(started) and not under_way, as_json=as_json)
    if under_way and not as_json:
        _print_under_way(broker, under_way)
    _raise_rejections(rejected, asked=len(targets))


def _validate_options(
    topic: str | None,
    partition: list[int] | None,
    to: str | None,
    file: Path | None,
    *,
    cancel: bool,
    wait: bool,
) -> None:
    if (topic is None) == (file is None):
        raise typer.BadParameter("give either --topic or --file")
    if file is not None and (to is not None or partition):
        raise typer.BadParameter(
            "the file names the partitions and their brokers: leave out --to and --partition",
            param_hint="--file",
        )
    if cancel and (to is not None or wait):
        raise typer.BadParameter(
            "a cancelled move has no target and no wait: leave out --to and --wait", param_hint="--cancel"
        )
    if topic is not None and to is None and not cancel and not wait:
        raise typer.BadParameter(
            "name the target brokers with --to, or give --cancel or --wait", param_hint="--topic"
        )


def _current_and_target_replicas(
    broker: "BrokerConnector", topic: str | None, numbers: Sequence[int], to: str | None, file: Path | None
) -> "tuple[dict[TopicPartition, list[int]], Targets]":
    """Return the current replicas, and the target replicas; no targets if nothing is to be moved."""
    from penstock.cli.cluster.reassign_plan import parse_brokers, spread
    from penstock.cli.topic_metadata import find_topics, no_partition_text
    from penstock.types import TopicPartition

    plan = _read(file) if file is not None else {}
    with errors_of_option("--to"):
        brokers = [] if to is None else parse_brokers(to)
    names = list(dict.fromkeys(name.topic for name in plan)) or [topic or ""]
    found = {state.name: state for state in find_topics(broker, names)}
    if topic is not None:
        chosen = list(dict.fromkeys(numbers)) or found[topic].numbers
        targets = [TopicPartition(topic, number) for number in chosen]
        if brokers and numbers:
            plan = {name: list(brokers) for name in targets}
        elif brokers:
            plan = spread(topic, chosen, brokers)
    else:
        targets = list(plan)
    for name in targets:
        if name.partition not in found[name.topic].numbers:
            raise CommandFailed(no_partition_text(name.topic, found[name.topic].numbers, name.partition))
    return {name: _replicas(found[name.topic], name.partition) for name in targets}, plan


def _replicas(topic: "TopicDescription", number: int) -> list[int]:
    return next(entry.replicas for entry in topic.partitions if entry.partition == number)


def _read(file: Path) -> "Targets":
    from penstock.cli.cluster.reassign_plan import read_plan

    try:
        plan = read_plan(file.read_text(encoding="utf-8"))
        topic_names([name.topic for name in plan])
    except OSError as problem:
        reason = problem.strerror or problem
        raise typer.BadParameter(f"{file} cannot be read: {reason}", param_hint="--file") from problem
    except ValueError as problem:
        raise typer.BadParameter(f"{file} is no plan: {problem}", param_hint="--file") from problem
    return plan


def _cancel(broker: "BrokerConnector", names: "Sequence[TopicPartition]", *, as_json: bool) -> None:
    from penstock.cli.cluster.partition_moves import alter_reassignments, moves_under_way
    from penstock.cli.output import counted, json_line

    under_way = moves_under_way(broker)
    ended = [name for name in names if name in under_way]
    rejected = alter_reassignments(broker, dict.fromkeys(ended)) if ended else {}
    done = [name for name in ended if name not in rejected]
    if as_json:
        json_line({"cancelled": [name._asdict() for name in done]})
    elif done:
        typer.echo(f"called off the move of {counted(len(done), 'partition')}")
    elif not ended:
        typer.echo("nothing of it is being moved")
    _raise_rejections(rejected, asked=len(ended))


class NoLeaderToCopyFrom(CommandFailed):
    """Partitions that are being moved have no leader."""


def wait_until_moved(broker: "BrokerConnector", names: "Sequence[TopicPartition]") -> None:
    """Wait for the moves, and print the progress on stderr whenever it changes.

    Raises NoLeaderToCopyFrom if all remaining partitions lack a leader for longer than --timeout, which is
    longer than an election takes. The wait for an unavailable broker has no limit: the broker may be
    restarting.
    """
    from penstock.cli.cluster.partition_moves import blocked_moves, moves_under_way, records_left
    from penstock.cli.output import counted, note

    said = ""
    going_on_at = time.monotonic()
    while True:
        under_way = moves_under_way(broker)
        mine = [under_way[name] for name in names if name in under_way]
        if not mine:
            return
        blocked = blocked_moves(broker, mine)
        leaderless = [found for found in blocked.values() if not found.is_led]
        if len(leaderless) < len(mine):
            going_on_at = time.monotonic()
        elif time.monotonic() - going_on_at > broker.timeout_s:
            raise NoLeaderToCopyFrom("\n".join(found.sentence for found in leaderless[:SHOWN_MAX]))
        text = _progress(records_left(broker, mine), blocked)
        if text != said:
            said = text
            note(f"{counted(len(mine), 'partition')} being moved; records left:\n{text}")
        time.sleep(POLL_S)


def _progress(
    left: "Mapping[TopicPartition, RecordsLeft]", blocked: "Mapping[TopicPartition, BlockedMove]"
) -> str:
    from penstock.cli.cluster.partition_moves import left_text

    return "\n".join(
        f"  {name}: {left_text(counts)}" + (f"; {blocked[name].summary}" if name in blocked else "")
        for name, counts in list(left.items())[:SHOWN_MAX]
    )


def _print_under_way(broker: "BrokerConnector", moves: "Sequence[PartitionMove]") -> None:
    from penstock.cli.cluster.partition_moves import blocked_moves
    from penstock.cli.output import note

    blocked = blocked_moves(broker, moves)
    for found in list(blocked.values())[:SHOWN_MAX]:
        note(found.sentence)
    if len(blocked) < len(moves):
        what = "the rest" if blocked else "it"
        note(f"{what} is being copied now: `penstock cluster status` shows how far it is")


def _print(
    before: "Mapping[TopicPartition, list[int]]",
    targets: "Targets",
    rejected: "Mapping[TopicPartition, str]",
    *,
    is_done: bool,
    as_json: bool,
) -> None:
    from penstock.cli.cluster.output import ids_text
    from penstock.cli.output import json_line, table

    if as_json:
        rows = [
            {**name._asdict(), "from": before[name], "to": to, "refusal": rejected.get(name)}
            for name, to in targets.items()
        ]
        json_line({"is_done": is_done, "partitions": rows})
        return
    rows_shown = [
        (*name, ids_text(before[name]), ids_text(to)) for name, to in targets.items() if name not in rejected
    ]
    if rows_shown:
        table(("TOPIC", "PARTITION", "FROM", "TO"), rows_shown)
    if is_done:
        typer.echo("nothing of it is being moved any more")


def _raise_rejections(rejected: "Mapping[TopicPartition, str]", *, asked: int) -> None:
    if rejected:
        done = "not everything" if len(rejected) < asked else "nothing"
        lines = [f"partition {number} of topic {name}: {text}" for (name, number), text in rejected.items()]
        raise CommandFailed("\n".join([f"{done} was done.", *lines]))
