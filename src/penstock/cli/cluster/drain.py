"""`penstock cluster drain` and `undrain`: move leaderships off a broker, and give it no new replicas."""

import time
from typing import Annotated, Any

import typer

from penstock.cli.cluster.app import POLL_S, TokenFileOption, UrlOption, cluster_app
from penstock.cli.command import TIMEOUT_S_DEFAULT, URL_DEFAULT, JsonOption, TimeoutOption, examples
from penstock.errors import CommandFailed
from penstock.limits import INT_MAX

BrokerIdArgument = Annotated[int, typer.Argument(metavar="ID", min=0, max=INT_MAX, help="The broker.")]

DRAIN_EXAMPLES = examples(
    ("Before a broker is stopped for long", "penstock cluster drain 2"),
    ("Asked of another broker", "penstock cluster drain 2 --url http://127.0.0.1:8081"),
)


@cluster_app.command("drain", help="Move leadership away from a broker, and give it no new partitions.",
                     epilog=DRAIN_EXAMPLES)  # fmt: skip
def drain(
    broker_id: BrokerIdArgument,
    url: UrlOption = URL_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Drain a broker. It stays drained until `undrain` or until its next start."""
    from penstock.cli.http_client import get_json, post_json, token_of
    from penstock.cli.output import counted, json_line

    post_json(url, f"/v1/cluster/brokers/{broker_id}/drain", timeout, token_of(token_file))
    deadline = time.monotonic() + timeout
    while True:
        broker = _broker(get_json(url, "/v1/cluster", timeout), broker_id)
        if broker["is_drained"]:
            break
        # A restart or an undrain during the wait: waiting on would never end.
        if broker["state"] != "draining":
            said = "it started anew, or was undrained"
            raise CommandFailed(f"broker {broker_id} is {broker['state']}: {said}.")
        if time.monotonic() > deadline:
            left = counted(broker["leads"], "partition")
            raise CommandFailed(
                f"broker {broker_id} still leads {left} after {timeout:g} s. "
                "The drain continues: see `penstock cluster status`."
            )
        time.sleep(POLL_S)
    if as_json:
        json_line(broker)
        return
    typer.echo(f"drained broker {broker_id}")
    if broker["leads"]:
        left = counted(broker["leads"], "partition")
        typer.echo(f"it still leads {left}: no other replica of them is in sync")


UNDRAIN_EXAMPLES = examples(("When it is to work again", "penstock cluster undrain 2"))


@cluster_app.command("undrain", help="Let a drained broker lead and be given replicas again.",
                     epilog=UNDRAIN_EXAMPLES)  # fmt: skip
def undrain(
    broker_id: BrokerIdArgument,
    url: UrlOption = URL_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo a drain. The broker leads again after a leader balance or `cluster elect --preferred --all`."""
    from penstock.cli.http_client import post_json, token_of
    from penstock.cli.output import json_line

    broker = post_json(url, f"/v1/cluster/brokers/{broker_id}/undrain", timeout, token_of(token_file))
    if as_json:
        json_line(broker)
    else:
        typer.echo(f"broker {broker_id} is {broker['state']}")


def _broker(document: Any, broker_id: int) -> Any:
    for broker in document["brokers"]:
        if broker["id"] == broker_id:
            return broker
    raise CommandFailed(f"there is no broker {broker_id} any more.")
