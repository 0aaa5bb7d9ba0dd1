"""`penstock log-dirs`: shows the disk usage of each broker's partitions, and the free space."""

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from penstock.cli.command import JsonOption, client_command, examples, topic_names
from penstock.errors import CommandFailed

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerClient, BrokerConnector
    from penstock.config.listeners import Address

EXAMPLES = examples(
    ("Every partition, the largest first", "penstock log-dirs"),
    ("One topic", "penstock log-dirs orders"),
    ("The space left, for a script", "penstock log-dirs --json | jq '.[].usable_bytes'"),
)


def add_to(app: typer.Typer) -> None:
    app.command("log-dirs", help="Show how much disk each partition takes.", epilog=EXAMPLES)(log_dirs)


class PartitionSize(NamedTuple):
    topic: str
    partition: int
    bytes: int


class LogDirectory(NamedTuple):
    broker: int
    path: str
    total_bytes: int | None
    """Size of the disk; None if the broker does not report it."""
    usable_bytes: int | None
    partitions: list[PartitionSize]

    @property
    def bytes(self) -> int:
        return sum(partition.bytes for partition in self.partitions)


@client_command
def log_dirs(
    broker: "BrokerConnector",
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC...]", callback=topic_names, help="Only these. Default: all."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    from penstock.cli.output import json_line
    from penstock.cli.topic_metadata import find_topics

    if topics:
        find_topics(broker, topics)
    directories = read_directories(broker, topics or None)
    if as_json:
        json_line([_document(directory) for directory in directories])
        return
    for directory in directories:
        _print(directory)


def read_directories(broker: "BrokerConnector", topics: list[str] | None) -> list[LogDirectory]:
    """Read the directories of every broker in the cluster: a broker reports only its own."""
    directories = []
    with broker.client() as client:
        for node_id, address in sorted(client.brokers().items()):
            directories += _directories_of(client, node_id, address, topics)
    return directories


def _directories_of(
    client: "BrokerClient", node_id: int, address: "Address", topics: list[str] | None
) -> list[LogDirectory]:
    from penstock.protocol.messages.describe_log_dirs import DESCRIBE_LOG_DIRS, DescribeLogDirsRequest
    from penstock.wire.retry_policy import error_name

    answer = client.ask(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None), at=address)
    for code in (answer.error_code, *(result.error_code for result in answer.results)):
        if code:
            raise CommandFailed(f"broker {node_id} cannot list its log directories: {error_name(code)}.")
    return [
        LogDirectory(
            node_id,
            result.log_dir,
            result.total_bytes if result.total_bytes >= 0 else None,
            result.usable_bytes if result.usable_bytes >= 0 else None,
            _sizes(result.topics, topics),
        )
        for result in answer.results
    ]


def _sizes(found: list[Any], topics: list[str] | None) -> list[PartitionSize]:
    sizes = [
        PartitionSize(topic.name, partition.partition_index, partition.partition_size)
        for topic in found
        if topics is None or topic.name in topics
        for partition in topic.partitions
    ]
    return sorted(sizes, key=lambda size: (-size.bytes, size.topic, size.partition))


def _document(directory: LogDirectory) -> dict[str, Any]:
    partitions = [size._asdict() for size in directory.partitions]
    return directory._asdict() | {"partitions": partitions, "bytes": directory.bytes}


def _print(directory: LogDirectory) -> None:
    from penstock.cli.output import bytes_text, counted, table

    typer.echo(f"broker {directory.broker}  {directory.path}")
    if directory.partitions:
        rows = [(topic, number, size, bytes_text(size)) for topic, number, size in directory.partitions]
        table(("TOPIC", "PARTITION", "BYTES", ""), rows)
    disk = ""
    if directory.usable_bytes is not None and directory.total_bytes is not None:
        usable, total = bytes_text(directory.usable_bytes), bytes_text(directory.total_bytes)
        disk = f"; {usable} of {total} on this disk are free"
    partitions = counted(len(directory.partitions), "partition")
    typer.echo(f"{partitions}, {bytes_text(directory.bytes)}{disk}")
