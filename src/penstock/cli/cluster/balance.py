"""`penstock cluster balance`: evens out replicas and leaders among brokers, or empties one broker."""

import time
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.cluster.app import TokenFileOption, UrlOption, cluster_app
from penstock.cli.cluster.reassign import NoLeaderToCopyFrom, wait_until_moved
from penstock.cli.command import URL_DEFAULT, JsonOption, client_command, examples
from penstock.errors import CommandFailed
from penstock.limits import INT_MAX

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector

BALANCE_EXAMPLES = examples(
    ("What would move", "penstock cluster balance --dry-run"),
    ("Move it, and wait until all is even", "penstock cluster balance --wait"),
    ("Before a broker leaves for good", "penstock cluster balance --away-from 3 --wait"),
)


@cluster_app.command("balance", help="Move replicas so that brokers hold and lead about the same.",
                     epilog=BALANCE_EXAMPLES)  # fmt: skip
@client_command
def balance(
    broker: "BrokerConnector",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would move.")] = False,
    away_from: Annotated[
        int | None,
        typer.Option(metavar="ID", min=0, max=INT_MAX, help="Move all replicas of this broker to others."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until everything is copied, and nothing is left to move.")
    ] = False,
    url: UrlOption = URL_DEFAULT,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move replicas in steps. One step moves at most 100 partitions.

    New brokers receive their share automatically (auto.balance).
    """
    from penstock.cli.http_client import get_json, post_json, token_of

    if dry_run and wait:
        raise typer.BadParameter("with --dry-run there is nothing to wait for", param_hint="--wait")
    path = "/v1/cluster/balance" + ("" if away_from is None else f"?away_from={away_from}")
    token = None if dry_run else token_of(token_file)
    for step in count():
        if dry_run:
            moves = get_json(url, path, broker.timeout_s)["moves"]
        else:
            moves = post_json(url, path, broker.timeout_s, token)["moves"]
        _require_accepted(moves)
        if not moves and (stays := _remaining_replicas_text(broker, url, away_from)):
            raise CommandFailed(stays)
        if moves or step == 0:
            _print(moves, dry_run=dry_run, as_json=as_json)
        if not (wait and moves):
            return
        try:
            _wait(broker, moves)
        except NoLeaderToCopyFrom as stuck:
            stays = _remaining_replicas_text(broker, url, away_from)
            raise CommandFailed("\n".join(filter(None, [str(stuck), stays]))) from stuck


def _remaining_replicas_text(broker: "BrokerConnector", url: str, broker_id: int | None) -> str:
    """Return what a broker that should be emptied still holds; empty for none, or without such a broker."""
    from penstock.cli.http_client import get_json

    return (
        ""
        if broker_id is None
        else remaining_replicas_text(get_json(url, "/v1/cluster", broker.timeout_s), broker_id)
    )


def _wait(broker: "BrokerConnector", moves: Sequence[dict[str, Any]]) -> None:
    from penstock.types import TopicPartition

    wait_until_moved(broker, [TopicPartition(move["topic"], move["partition"]) for move in moves])
    # A change of the preferred leader needs no copying and ends at once, but the next plan reads it only a
    # moment later.
    time.sleep(0.1)


def _require_accepted(moves: Sequence[dict[str, Any]]) -> None:
    refused = [move for move in moves if move.get("refusal")]
    if refused:
        reasons = "\n".join(
            f"partition {move['partition']} of topic {move['topic']}: {move['refusal']}" for move in refused
        )
        raise CommandFailed(f"not everything was moved:\n{reasons}")


def remaining_replicas_text(document: Any, broker_id: int) -> str:
    """Return what a broker still holds, and why; empty if it holds nothing."""
    from penstock.cli.output import counted

    holds = sum(broker["holds"] for broker in document["brokers"] if broker["id"] == broker_id)
    if not holds:
        return ""
    moved = sum(broker_id in entry["removing"] for entry in document["reassigning"]["partitions"])
    reasons = []
    if moved:
        reasons.append(f"{moved} being moved")
    if moved < holds:
        reasons.append(
            f"{holds - moved} that no other broker can take, since those that are there have a replica "
            "already. `penstock cluster reassign` gives a topic fewer replicas"
        )
    return f"broker {broker_id} still holds {counted(holds, 'replica')}: {', and '.join(reasons)}."


def _print(moves: Sequence[dict[str, Any]], *, dry_run: bool, as_json: bool) -> None:
    from penstock.cli.cluster.output import ids_text
    from penstock.cli.output import json_line, note, table

    if as_json:
        json_line({"dry_run": dry_run, "moves": moves})
        return
    if not moves:
        typer.echo("nothing has to move")
        return
    table(
        ("TOPIC", "PARTITION", "FROM", "TO"),
        [(move["topic"], move["partition"], ids_text(move["from"]), ids_text(move["to"])) for move in moves],
    )
    if dry_run:
        note("nothing was changed (--dry-run)")
