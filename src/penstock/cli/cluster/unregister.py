"""`penstock cluster unregister`: removes the registration of a broker that will not return."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.cluster.app import cluster_app
from penstock.cli.command import client_command, examples
from penstock.errors import CommandFailed
from penstock.limits import INT_MAX

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector

UNREGISTER_EXAMPLES = examples(
    ("After everything was moved away from it, and it was stopped", "penstock cluster unregister 3")
)


@cluster_app.command("unregister", help="Forget a broker that is gone for good.", epilog=UNREGISTER_EXAMPLES)
@client_command
def unregister(
    broker: "BrokerConnector",
    broker_id: Annotated[int, typer.Argument(metavar="ID", min=0, max=INT_MAX, help="The broker.")],
) -> None:
    """Unregister a broker. The cluster rejects this while the broker is available or holds replicas.

    `penstock cluster balance --away-from ID` moves its replicas.
    """
    from penstock.protocol.messages.unregister_broker import UNREGISTER_BROKER, UnregisterBrokerRequest
    from penstock.wire.retry_policy import error_name

    with broker.client() as client:
        answer = client.ask(UNREGISTER_BROKER, UnregisterBrokerRequest(broker_id))
    if answer.error_code:
        raise CommandFailed(answer.error_message or f"{error_name(answer.error_code)}.")
    typer.echo(f"forgot broker {broker_id}")
