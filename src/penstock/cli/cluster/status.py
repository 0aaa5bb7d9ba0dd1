"""`penstock cluster status`: state of the cluster, as one broker reports it."""

from typing import TYPE_CHECKING, Any

from penstock.cli.cluster.app import UrlOption, cluster_app
from penstock.cli.command import URL_DEFAULT, JsonOption, client_command, examples

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector

STATUS_EXAMPLES = examples(
    ("Brokers, partitions in trouble, topics that one lost disk would lose", "penstock cluster status"),
    ("Asked of another broker", "penstock cluster status --url http://127.0.0.1:8081"),
    ("Whether anything is short of a replica, in a script", "penstock cluster status --json | jq "
     ".under_replicated.count"),
)  # fmt: skip


@cluster_app.command("status", help="Show brokers, partitions in trouble and topics at risk.",
                     epilog=STATUS_EXAMPLES)  # fmt: skip
@client_command
def status(broker: "BrokerConnector", url: UrlOption = URL_DEFAULT, as_json: JsonOption = False) -> None:
    """Show the status over HTTP; the progress of moved replicas comes from a --bootstrap broker."""
    from penstock.cli.cluster.output import print_status
    from penstock.cli.http_client import get_json
    from penstock.cli.output import json_line

    document = get_json(url, "/v1/cluster", broker.timeout_s)
    if document["reassigning"]["count"]:
        _add_progress(broker, document["reassigning"]["partitions"])
    if as_json:
        json_line(document)
    else:
        print_status(document)


def _add_progress(broker: "BrokerConnector", partitions: list[dict[str, Any]]) -> None:
    from penstock.cli.cluster.partition_moves import PartitionMove, records_left
    from penstock.types import TopicPartition

    names = [TopicPartition(entry["topic"], entry["partition"]) for entry in partitions]
    moves = [
        PartitionMove(name, entry["adding"], entry["removing"])
        for name, entry in zip(names, partitions, strict=True)
    ]
    left = records_left(broker, moves)
    for name, entry in zip(names, partitions, strict=True):
        entry["records_left"] = left[name]
