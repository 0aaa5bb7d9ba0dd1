"""`penstock cluster elect`: elects preferred leaders, or unclean leaders for leaderless partitions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.cluster.app import cluster_app
from penstock.cli.command import JsonOption, client_command, examples, topic_names
from penstock.errors import CommandFailed, ErrorCode

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector
    from penstock.protocol.messages.elect_leaders import ElectLeadersRequest
    from penstock.types import TopicPartition

ELECT_EXAMPLES = examples(
    ("Every preferred replica leads again", "penstock cluster elect --preferred --all"),
    ("One partition", "penstock cluster elect --preferred --topic orders --partition 0"),
    ("A partition whose in-sync replicas are lost for good", "penstock cluster elect --unclean "
     "--topic orders --partition 0"),
)  # fmt: skip


@cluster_app.command("elect", help="Elect leaders of partitions.", epilog=ELECT_EXAMPLES)
@client_command
def elect(
    broker: "BrokerConnector",
    preferred: Annotated[
        bool, typer.Option("--preferred", help="Elect the first replica, if it is in sync. The default.")
    ] = False,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Elect any live replica where no leader is left: records that it lacks are lost.",
        ),
    ] = False,
    topic: Annotated[
        str | None, typer.Option(metavar="NAME", callback=topic_names, help="Only partitions of this topic.")
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=0, help="Only this partition of the topic. May be repeated."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Partitions of every topic.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before an unclean election.")] = False,
    as_json: JsonOption = False,
) -> None:
    from penstock.cli.output import confirm, json_line
    from penstock.wire.retry_policy import error_name

    if all_ == (topic is not None):
        raise typer.BadParameter("give either --topic or --all")
    if partition and topic is None:
        raise typer.BadParameter("give --topic as well", param_hint="--partition")
    if preferred and unclean:
        raise typer.BadParameter("choose one of them", param_hint="--preferred and --unclean")
    request = _request(broker, topic, partition or [], unclean=unclean)
    if unclean:
        confirm("Elect leaders that may lack acknowledged records, which are then lost?", yes=yes)
    outcomes = _ask(broker, request)
    if as_json:
        json_line([{**name._asdict(), "outcome": error_name(code)} for name, (code, _) in outcomes.items()])
    else:
        _print(outcomes)
    failed = {name: said for name, said in outcomes.items() if said[0] not in _SUCCESS_CODES}
    if failed:
        raise CommandFailed(
            "\n".join(
                f"partition {number} of topic {name} has no other leader: {text}"
                for (name, number), (_, text) in failed.items()
            )
        )


_SUCCESS_CODES = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)


def _request(
    broker: "BrokerConnector", topic: str | None, wanted: Sequence[int], *, unclean: bool
) -> "ElectLeadersRequest":
    from penstock.cli.topic_metadata import chosen_partitions, find_topic
    from penstock.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

    if topic is None:
        return ElectLeadersRequest(int(unclean), None)
    chosen = chosen_partitions(find_topic(broker, topic, advise_creation=False), wanted)
    return ElectLeadersRequest(int(unclean), [TopicPartitions(topic, [each.partition for each in chosen])])


def _ask(
    broker: "BrokerConnector", request: "ElectLeadersRequest"
) -> "dict[TopicPartition, tuple[int, str]]":
    from penstock.protocol.messages.elect_leaders import ELECT_LEADERS
    from penstock.types import TopicPartition
    from penstock.wire.retry_policy import error_name

    with broker.client() as client:
        answer = client.ask(ELECT_LEADERS, request)
    if answer.error_code:
        raise CommandFailed(f"no leader was elected: {error_name(answer.error_code)}.")
    return {
        TopicPartition(topic.topic, entry.partition_id): (
            entry.error_code,
            entry.error_message or error_name(entry.error_code),
        )
        for topic in answer.replica_election_results
        for entry in topic.partition_result
    }


def _print(outcomes: "dict[TopicPartition, tuple[int, str]]") -> None:
    from penstock.cli.output import counted

    elected = [name for name, (code, _) in outcomes.items() if code == ErrorCode.NONE]
    for name, number in elected:
        typer.echo(f"elected a leader of partition {number} of topic {name}")
    needless = sum(code == ErrorCode.ELECTION_NOT_NEEDED for code, _ in outcomes.values())
    if needless:
        typer.echo(f"{counted(needless, 'partition needs', 'partitions need')} none")
    if not outcomes:
        typer.echo("no partition needs one")
