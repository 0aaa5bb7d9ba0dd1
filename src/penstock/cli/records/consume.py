"""`penstock consume`: prints the records of a topic.

The command assigns partitions directly, without a consumer group: it commits nothing and triggers no
rebalance. Without --follow, it prints the records that exist when it begins, and ends. With --group, it is a
member of the group (consume_group.py).
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from penstock.cli.command import client_command, errors_of_option, examples, group_names, topic_names
from penstock.cli.records.record_output import BytesFormat, BytesFormats, IncomingRecord, formatter
from penstock.errors import CommandFailed

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector
    from penstock.cli.positions import PositionSpec
    from penstock.cli.records.consume_group import GroupReader

RECORDS_AT_ONCE: Final = 1_000
WAIT_S: Final = 0.1
"""Longest delay for Ctrl-C, and for a single record."""

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


class PartitionRange(NamedTuple):
    """Offsets to read of a partition, from `start` to before `end`; without an `end`, all that follow."""

    start: int
    end: int | None


@client_command
def consume(
    broker: "BrokerConnector",
    topic: Annotated[str, typer.Argument(metavar="TOPIC", callback=topic_names, help="What to read.")],
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this one. May be repeated. Default: all.")
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
        GroupProtocol, typer.Option(help="How to be a member: consumer is the protocol of KIP-848.")
    ] = GroupProtocol.CLASSIC,
) -> None:
    from penstock.cli.positions import PositionKind, parse_position
    from penstock.cli.records.consume_group import GroupMembership, GroupReader
    from penstock.cli.topic_metadata import chosen_partitions, find_topic

    if until_end and follow:
        raise typer.BadParameter("choose --until-end or --follow")
    with errors_of_option("--from"):
        position = parse_position(start, time.time_ns() // 1_000_000, number_is=PositionKind.OFFSET)
    follows = follow or (position.kind is PositionKind.LATEST and not until_end)
    with errors_of_option("--format"):
        written = formatter(format_, BytesFormats(key_format, value_format))
    numbers = find_topic(broker, topic).numbers
    if group is not None:
        _check_group_options(position, partition)
        membership = GroupMembership(group, protocol.value, position.kind.value)
        _read(GroupReader(broker, topic, membership, maximum, follows=follows), written, follows=follows)
        return
    plan = _plan(broker, topic, chosen_partitions(topic, numbers, partition or []), position, follows=follows)
    _read(AssignedReader(broker, topic, plan, maximum), written, follows=follows)


def _check_group_options(position: "PositionSpec", partitions: Sequence[int] | None) -> None:
    from penstock.cli.positions import PositionKind

    if partitions:
        raise typer.BadParameter("the group decides who reads which; leave --partition or --group out")
    if position.kind not in (PositionKind.EARLIEST, PositionKind.LATEST):
        raise typer.BadParameter(
            "a group goes on where it has committed; move it first with `penstock group reset`",
            param_hint="--from",
        )


def _plan(
    broker: "BrokerConnector",
    topic: str,
    partitions: Sequence[int],
    position: "PositionSpec",
    *,
    follows: bool,
) -> dict[int, PartitionRange]:
    from penstock.cli.admin_client import find_offsets, log_bounds
    from penstock.cli.positions import PositionKind

    spans = log_bounds(broker, topic, partitions)
    found = None
    if position.kind not in (PositionKind.EARLIEST, PositionKind.LATEST, PositionKind.OFFSET):
        offsets = find_offsets(broker, topic, partitions, position)
        found = {number: at.offset for number, at in offsets.items()}
    return plan_ranges(position, spans, found, follows=follows)


def plan_ranges(
    position: "PositionSpec",
    spans: Mapping[int, tuple[int, int]],
    found: Mapping[int, int | None] | None,
    *,
    follows: bool,
) -> dict[int, PartitionRange]:
    """Return the range of each partition. An offset below the log start begins at the log start."""
    from penstock.cli.positions import PositionKind

    if position.kind is PositionKind.OFFSET and all(position.number > end for _, end in spans.values()):
        furthest = max(end for _, end in spans.values())
        raise CommandFailed(
            f"offset {position.number} does not exist yet: the topic ends at offset {furthest}."
        )
    plan = {}
    for number, (first, end) in spans.items():
        if position.kind is PositionKind.EARLIEST:
            begin: int | None = first
        elif position.kind is PositionKind.OFFSET:
            begin = position.number
        else:  # latest, or a time; without a record that new, the next record will be it
            begin = found[number] if found is not None else end
        begin = end if begin is None else min(max(begin, first), end)
        plan[number] = PartitionRange(begin, None if follows else end)
    return plan


class AssignedReader:
    """Reader of assigned partitions with librdkafka. `next_records` is empty while no record arrives."""

    def __init__(
        self, broker: "BrokerConnector", topic: str, plan: Mapping[int, PartitionRange], maximum: int | None
    ) -> None:
        self._topic = topic
        self._timeout_s = broker.timeout_s
        self._left = maximum
        self._open = {
            number: span for number, span in plan.items() if span.end is None or span.start < span.end
        }
        self._broker = broker
        self._next = {number: span.start for number, span in self._open.items()}
        """Next offset of each partition."""
        self._at_end: set[int] = set()
        self._last_received_at = time.monotonic()
        self._consumer: Any = self._new_consumer(broker) if self._open else None

    @property
    def is_done(self) -> bool:
        return not self._open or self._left == 0

    def next_records(self) -> list[IncomingRecord]:
        messages = self._consumer.consume(min(RECORDS_AT_ONCE, self._left or RECORDS_AT_ONCE), WAIT_S)
        records = [record for message in messages if (record := self._record_of(message)) is not None]
        self._check_progress(bool(messages))
        return records

    def mark_printed(self, records: Sequence[IncomingRecord]) -> None:
        """Do nothing: without a group, no position is stored."""

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _new_consumer(self, broker: "BrokerConnector") -> Any:
        from confluent_kafka import Consumer, TopicPartition

        from penstock.cli.records.librdkafka import settings_of

        own = {
            "group.id": "penstock-cli",  # librdkafka requires it; no group is joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "error_cb": _print_connection_lost,
        }
        consumer = Consumer(settings_of(broker) | own)
        consumer.assign(
            [TopicPartition(self._topic, number, span.start) for number, span in self._open.items()]
        )
        return consumer

    def _record_of(self, message: Any) -> IncomingRecord | None:
        number = message.partition()
        if message.error() is not None:
            self._event(number, message.error())
            return None
        # Fetched before the end or the limit was reached.
        if number not in self._open or self._left == 0:
            return None
        self._next[number] = message.offset() + 1
        self._at_end.discard(number)
        end = self._open[number].end
        if end is not None and message.offset() >= end - 1:
            del self._open[number]
            if message.offset() >= end:
                return None  # appended after the command began
        if self._left is not None:
            self._left -= 1
        return incoming_record(message)

    def _event(self, number: int, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() != KafkaError._PARTITION_EOF:
            raise CommandFailed(f"partition {number} of topic {self._topic} cannot be read: {error.str()}.")
        self._at_end.add(number)
        # The last offsets of a partition may have no record (compaction, transaction markers).
        if number in self._open and self._open[number].end is not None:
            del self._open[number]

    def _check_progress(self, has_received: bool) -> None:
        """Raise CommandFailed if existing records do not arrive; with --follow, only for a broker's error."""
        now = time.monotonic()
        waiting = {number: self._next[number] for number in self._open if number not in self._at_end}
        if has_received or not waiting:
            self._last_received_at = now
        elif now - self._last_received_at > self._timeout_s:
            self._last_received_at = now
            self._raise_reason_for_silence(waiting)

    def _raise_reason_for_silence(self, waiting: Mapping[int, int]) -> None:
        from penstock.cli.records.failure_reasons import read_failure_reason
        from penstock.types import TopicPartition

        follows = all(span.end is None for span in self._open.values())
        offsets = {TopicPartition(self._topic, number): offset for number, offset in waiting.items()}
        try:
            reason = read_failure_reason(self._broker, offsets, waits_for_leaders=follows)
        except CommandFailed:  # no broker is reachable; with --follow, one may return
            if follows:
                return
            raise
        if reason is None and not follows:
            reason = f"the broker sent nothing for {self._timeout_s:g} s. Allow more with --timeout."
        if reason is not None:
            raise CommandFailed(reason)


def _print_connection_lost(error: Any) -> None:
    from confluent_kafka import KafkaError

    if error.code() == KafkaError._ALL_BROKERS_DOWN:
        typer.echo("penstock: the connection to the broker is lost; trying again", err=True)


def incoming_record(message: Any) -> IncomingRecord:
    _, timestamp = message.timestamp()
    return IncomingRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        timestamp,
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )


def _read(
    reader: "AssignedReader | GroupReader", written: Callable[[IncomingRecord], bytes], *, follows: bool
) -> None:
    output = sys.stdout.buffer
    try:
        while not reader.is_done:
            with _ctrl_c_deferred():
                records = reader.next_records()
            if records:
                output.write(b"".join(map(written, records)))
                output.flush()
                reader.mark_printed(records)
    except KeyboardInterrupt:
        if not follows:  # the user interrupted before the end
            raise
    finally:
        reader.close()


@contextmanager
def _ctrl_c_deferred() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block: it must not interrupt a call into librdkafka."""
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # a background job of a script, which ignores Ctrl-C
        yield
        return
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
