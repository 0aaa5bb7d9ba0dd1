"""`penstock produce`: writes records from stdin, a file or the command line to a topic.

Arguments of the shell are sent byte for byte, whether or not they are UTF-8.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from penstock.cli.command import client_command, examples, parse_pairs, topic_names
from penstock.errors import CommandFailed

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector
    from penstock.cli.records.record_input import OutgoingRecord
    from penstock.cli.topic_metadata import TopicDescription


class RecordCompression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    ALL = "all"
    LEADER = "1"
    NONE = "0"


EXAMPLES = examples(
    ("One record", "penstock produce orders --key customer-7 --value '3 apples'"),
    ("One record for each line of a file", "penstock produce orders --file orders.txt"),
    ("Keys before a colon", "printf 'a:1\\nb:2\\n' | penstock produce orders --key-separator :"),
    ("JSON with headers",
     """echo '{"value":"1","headers":{"trace":"7"}}' | penstock produce orders --json"""),
    ("Copy a topic of three partitions", "penstock topic create copy --partitions 3 && "
     "penstock consume orders --format json | penstock produce copy --json"),
    ("Copy it to a topic with other partitions",
     "penstock consume orders --format json | penstock produce copy --json --ignore-partitions"),
)  # fmt: skip


def add_to(app: typer.Typer) -> None:
    app.command("produce", help="Write records to a topic, from stdin one a line.", epilog=EXAMPLES)(produce)


@client_command
def produce(
    broker: "BrokerConnector",
    topic: Annotated[str, typer.Argument(metavar="TOPIC", callback=topic_names, help="Where to write.")],
    value: Annotated[str | None, typer.Option(help="Write this one record and read nothing.")] = None,
    key: Annotated[str | None, typer.Option(help="The key of every record.")] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What stands between key and value in a line.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="For every record. May be repeated.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Default: by the key, else any.")] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read this instead of stdin.")] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Lines are JSON objects: key, value (or key_base64, value_base64), headers, partition, "
            "timestamp.",
        ),
    ] = False,
    ignore_partitions: Annotated[
        bool,
        typer.Option("--ignore-partitions", help="With --json: place by the key, whatever a line says."),
    ] = False,
    compression: Annotated[
        RecordCompression, typer.Option(help="none, gzip, snappy, lz4 or zstd.")
    ] = RecordCompression.NONE,
    acks: Annotated[
        Acks, typer.Option(help="Replicas that must have a record: all in sync, the leader (1), none (0).")
    ] = Acks.ALL,
) -> None:
    from penstock.cli.records.record_input import ANY_PARTITION, OutgoingRecord, json_records, plain_records
    from penstock.cli.topic_metadata import find_topic_to_write, no_partition_text

    _validate_options(value, key, key_separator, file, as_json)
    if ignore_partitions and not as_json:
        raise typer.BadParameter("only lines of --json name partitions", param_hint="--ignore-partitions")
    headers = tuple((name, os.fsencode(text)) for name, text in parse_pairs(header or (), "--header"))
    number = ANY_PARTITION if partition is None else partition
    pattern = OutgoingRecord(None, None if key is None else os.fsencode(key), headers, number)
    separator = None if key_separator is None else os.fsencode(key_separator)
    # The file is opened before the topic is created: a missing file should have no effect.
    with _opened(file) as source:
        state = find_topic_to_write(broker, topic)
        if state is None:
            _check_creation(broker, topic, number)
        elif number not in (ANY_PARTITION, *state.numbers):
            raise CommandFailed(no_partition_text(topic, state.numbers, number))
        if value is not None:
            given = iter([pattern._replace(value=os.fsencode(value))])
        else:
            if source.isatty():
                typer.echo("one record a line; Ctrl-D ends", err=True)
            if as_json:
                given = json_records(source, pattern, ignore_partitions=ignore_partitions)
            else:
                given = plain_records(source, pattern, separator)
        if state is None:
            given = _with_first_read(given)
            state = _created(broker, topic)
        # Only now, so that an unreachable broker is reported without loading librdkafka.
        from penstock.cli.records.sender import Sender

        sender = Sender(broker, topic, compression, acks)
        if value is not None:
            sender.send(given)
            return
        with _progress(source) as shown:
            sender.send(with_existing_partitions(given, topic, len(state.numbers)), shown)


def _check_creation(broker: "BrokerConnector", topic: str, partition: int) -> None:
    """Raise CommandFailed if the broker will not create the topic, or not with this partition."""
    from penstock.cli.topic_metadata import missing_topic_text
    from penstock.cli.topic_requests import auto_creation

    new = auto_creation(broker)
    if not new.is_enabled:
        raise CommandFailed(missing_topic_text(topic))
    if new.partitions is not None and partition >= new.partitions:
        raise CommandFailed(
            f"topic {topic} does not exist, and would be created without partition {partition}. "
            f"Create it with `penstock topic create {topic} --partitions {partition + 1}`."
        )


def _created(broker: "BrokerConnector", topic: str) -> "TopicDescription":
    """Have the broker create the topic, and say so."""
    from penstock.cli.topic_metadata import create_by_writing, size_text

    state = create_by_writing(broker, topic)
    typer.echo(f"created topic {topic} ({size_text(state)})", err=True)
    return state


def _with_first_read(records: Iterator["OutgoingRecord"]) -> Iterator["OutgoingRecord"]:
    """Return the same records, the first of which is read already: it may not be one."""
    first = list(islice(records, 1))
    return chain(first, records)


def with_existing_partitions(
    records: Iterator["OutgoingRecord"], topic: str, partitions: int
) -> Iterator["OutgoingRecord"]:
    """Yield the records until one is for a partition that the topic does not have, which is an error."""
    from penstock.cli.output import counted

    for record in records:
        if record.partition >= partitions:
            enough = record.partition + 1
            raise CommandFailed(
                f"a record is for partition {record.partition}, and topic {topic} has "
                f"{counted(partitions, 'partition')}. Give it more with `penstock topic alter {topic} "
                f"--partitions {enough}`, or place records by their keys with --ignore-partitions."
            )
        yield record


def _validate_options(
    value: str | None, key: str | None, key_separator: str | None, file: Path | None, as_json: bool
) -> None:
    if value is not None and (file is not None or as_json or key_separator is not None):
        raise typer.BadParameter("the value is one record: leave out --file, --json and --key-separator",
                                 param_hint="--value")  # fmt: skip
    if key_separator == "":
        raise typer.BadParameter("the separator must not be empty", param_hint="--key-separator")
    if key_separator is not None and (key is not None or as_json):
        raise typer.BadParameter("leave out --key and --json", param_hint="--key-separator")


@contextmanager
def _opened(file: Path | None) -> Iterator[BinaryIO]:
    if file is None:
        yield sys.stdin.buffer
        return
    try:
        source = file.open("rb")
    except OSError as problem:
        raise typer.BadParameter(f"cannot read {file}: {problem.strerror}", param_hint="--file") from problem
    with source:
        yield source


@contextmanager
def _progress(source: BinaryIO) -> Iterator[Callable[[int], None] | None]:
    """Show a counter on a terminal; nothing without a terminal, or if the user types the records."""
    if not sys.stderr.isatty() or source.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,} records"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda count: progress.update(task, completed=count)
