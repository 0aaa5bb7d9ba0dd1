"""`penstock consume`: prints the records of a topic.

The command assigns partitions directly, without a consumer group: it commits nothing and triggers no
rebalance. Without --follow, it prints the records that exist when it begins, and ends. With --group, it is a
member of the group (readers.py).
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command import client_command, errors_of_option, examples, group_names, topic_names
from penstock.cli.main import Terminated
from penstock.cli.records.record_output import BytesFormat, BytesFormats, IncomingRecord, formatter

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector
    from penstock.cli.positions import PositionSpec
    from penstock.cli.records.readers import AssignedReader, GroupReader

EXAMPLES = examples(
    ("Everything that is there", "penstock consume orders"),
    ("Watch for what comes from now on", "penstock consume orders --from latest"),
    ("The last quarter of an hour, and on", "penstock consume orders --from 15m --follow"),
    ("Ten records of one partition from an offset",
     "penstock consume orders --partition 0 --from 1250 --max 10"),
    ("Keys and offsets", "penstock consume orders --format '%p/%o %k: %v'"),
    ("As a member of a group, which keeps its place", "penstock consume orders --group billing"),
    ("For jq", "penstock consume orders --format json | jq .value"),
)  # fmt: skip


def add_to(app: typer.Typer) -> None:
    app.command("consume", help="Print the records of a topic.", epilog=EXAMPLES)(consume)


class GroupProtocol(Enum):
    CLASSIC = "classic"
    CONSUMER = "consumer"


@client_command
def consume(
    broker: "BrokerConnector",
    topic: Annotated[str, typer.Argument(metavar="TOPIC", callback=topic_names, help="What to read.")],
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this partition. May be repeated. Default: all.")
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest (follows), an offset, a time (2026-03-01T12:00Z) or how long ago (15m).",
        ),
    ] = "earliest",
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End where the topic ends now. This is the default.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    maximum: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="End after this many records.")
    ] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="raw|json|TEXT",
            help="raw: the value. json: an object a line. TEXT: with %t topic, %p partition, %o offset, "
            "%k key, %v value, %h headers, %T time in ms.",
        ),
    ] = "raw",
    key_format: Annotated[BytesFormat, typer.Option(help="text, hex or base64.")] = BytesFormat.TEXT,
    value_format: Annotated[BytesFormat, typer.Option(help="text, hex or base64.")] = BytesFormat.TEXT,
    group: Annotated[
        str | None,
        typer.Option(
            callback=group_names,
            help="Read as a member of this group and commit what was printed. --from says where "
            "to begin if nothing is committed.",
        ),
    ] = None,
    protocol: Annotated[
        GroupProtocol | None,
        typer.Option(help="How to be a member: classic, the default, or consumer, that of KIP-848."),
    ] = None,
) -> None:
    from penstock.cli.positions import PositionKind, parse_position
    from penstock.cli.topic_metadata import chosen_partitions, find_topic

    _check_choices(until_end=until_end, follow=follow, protocol=protocol, group=group)
    with errors_of_option("--from"):
        position = parse_position(start, time.time_ns() // 1_000_000, number_is=PositionKind.OFFSET)
    follows = follow or (position.kind is PositionKind.LATEST and not until_end)
    with errors_of_option("--format"):
        written = formatter(format_, BytesFormats(key_format, value_format))
    state = find_topic(broker, topic)
    if group is not None:
        _check_group_options(position, partition)
    # Only now, so that an unreachable broker is reported without loading librdkafka.
    from penstock.cli.records.readers import AssignedReader, GroupMembership, GroupReader, find_ranges

    reader: AssignedReader | GroupReader
    if group is not None:
        membership = GroupMembership(group, (protocol or GroupProtocol.CLASSIC).value, position.kind.value)
        reader = GroupReader(broker, topic, membership, maximum, follows=follows)
    else:
        chosen = chosen_partitions(state, partition or [])
        ranges = find_ranges(broker, chosen, position, follows=follows)
        reader = AssignedReader(broker, topic, ranges, maximum)
    _read(reader, written, follows=follows)


def _check_choices(
    *, until_end: bool, follow: bool, protocol: GroupProtocol | None, group: str | None
) -> None:
    if until_end and follow:
        raise typer.BadParameter("choose --until-end or --follow")
    if protocol is not None and group is None:
        raise typer.BadParameter("only members of a group have one: give --group", param_hint="--protocol")


def _check_group_options(position: "PositionSpec", partitions: Sequence[int] | None) -> None:
    from penstock.cli.positions import PositionKind

    if partitions:
        raise typer.BadParameter("the group assigns the partitions; leave --partition or --group out")
    if position.kind not in (PositionKind.EARLIEST, PositionKind.LATEST):
        raise typer.BadParameter(
            "a group goes on where it has committed; move it first with `penstock group reset`",
            param_hint="--from",
        )


def _read(
    reader: "AssignedReader | GroupReader", written: Callable[[IncomingRecord], bytes], *, follows: bool
) -> None:
    output = sys.stdout.buffer
    try:
        while not reader.is_done:
            with _interrupts_deferred():
                records = reader.next_records()
            if records:
                output.write(b"".join(map(written, records)))
                output.flush()
                reader.mark_printed(records)
    except KeyboardInterrupt as interruption:
        # Ctrl-C is how a user ends --follow; otherwise it came before the end.
        if not follows or isinstance(interruption, Terminated):
            raise
    finally:
        reader.close()


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM to the end of the block: they must not interrupt a call into librdkafka."""
    came: list[int] = []
    # A background job of a script ignores Ctrl-C, and goes on to do so.
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    deferred = {number: handler for number, handler in before.items() if callable(handler)}
    for number in deferred:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in deferred.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt if came[0] == signal.SIGINT else Terminated
