"""`penstock produce`: writes records from stdin, a file or the command line to a topic.

librdkafka batches and sends the records. It partitions keys like Java clients (murmur2), so that records with
one key go to one partition, whichever client wrote them. Arguments of the shell are sent byte for byte,
whether or not they are UTF-8.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from penstock.cli.command import client_command, examples, parse_pairs, topic_names
from penstock.errors import CommandFailed

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector
    from penstock.cli.records.record_input import OutgoingRecord

FAILURES_SHOWN_MAX: Final = 3
BATCH_BYTES_MAX: Final = 1_000_000
QUEUED_KIB_MAX: Final = 64 * 1024
RECORD_BYTES_MAX: Final = 100_000_000
"""The broker enforces the topic's limit; librdkafka should not reject a record first."""
PROGRESS_EVERY_RECORDS: Final = 1_000
FLUSH_WAIT_S: Final = 0.1
STANDSTILL_S_MAX: Final = 1.0
"""Longest time without progress after a delivery failure, before the queued records are given up."""


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
        Acks, typer.Option(help="Who must have it: all replicas in sync, the leader (1), nobody (0).")
    ] = Acks.ALL,
) -> None:
    from penstock.cli.records.record_input import ANY_PARTITION, OutgoingRecord, json_records, plain_records
    from penstock.cli.topic_metadata import find_or_create_topic, no_partition_text

    _validate_options(value, key, key_separator, file, as_json)
    if ignore_partitions and not as_json:
        raise typer.BadParameter("only lines of --json name partitions", param_hint="--ignore-partitions")
    headers = tuple((name, os.fsencode(text)) for name, text in parse_pairs(header or (), "--header"))
    number = ANY_PARTITION if partition is None else partition
    pattern = OutgoingRecord(None, None if key is None else os.fsencode(key), headers, number)
    separator = None if key_separator is None else os.fsencode(key_separator)
    # The file is opened before the topic is created: a missing file should have no effect.
    with _opened(file) as source:
        state = find_or_create_topic(broker, topic)
        if number not in (ANY_PARTITION, *state.numbers):
            raise CommandFailed(no_partition_text(topic, state.numbers, number))
        sender = Sender(broker, topic, compression, acks)
        if value is not None:
            sender.send(iter([pattern._replace(value=os.fsencode(value))]))
            return
        if source.isatty():
            typer.echo("one record a line; Ctrl-D ends", err=True)
        with _progress(source) as shown:
            if as_json:
                given = json_records(source, pattern, ignore_partitions=ignore_partitions)
                records = with_existing_partitions(given, topic, len(state.numbers))
            else:
                records = plain_records(source, pattern, separator)
            sender.send(records, shown)


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
        raise typer.BadParameter("it is one record: leave out --file, --json and --key-separator",
                                 param_hint="--value")  # fmt: skip
    if key_separator == "":
        raise typer.BadParameter("it must not be empty", param_hint="--key-separator")
    if key_separator is not None and (key is not None or as_json):
        raise typer.BadParameter("leave out --key and --json", param_hint="--key-separator")


class Sender:
    """Sender of records through librdkafka; counts delivered records and collects errors."""

    def __init__(
        self, broker: "BrokerConnector", topic: str, compression: RecordCompression, acks: Acks
    ) -> None:
        from confluent_kafka import Producer

        from penstock.cli.admin_client import topic_settings
        from penstock.cli.records.librdkafka import settings_of

        self._broker = broker
        self._topic = topic
        self._timeout_s = broker.timeout_s
        settings = topic_settings(broker, [topic])[topic]
        largest = settings["max.message.bytes"].value if "max.message.bytes" in settings else None
        own = {
            "partitioner": "murmur2_random",
            "compression.type": compression.value,
            "acks": acks.value,
            # With idempotence, the broker detects a retried batch and does not store it twice.
            "enable.idempotence": acks is Acks.ALL,
            "message.timeout.ms": int(broker.timeout_s * 1000),
            "message.max.bytes": RECORD_BYTES_MAX,
            # The broker would reject a batch above the topic's limit with all its records.
            "batch.size": min(BATCH_BYTES_MAX, int(largest or BATCH_BYTES_MAX)),
            "queue.buffering.max.kbytes": QUEUED_KIB_MAX,
        }
        self._producer: Any = Producer(settings_of(broker) | own)
        self.records = self.bytes = 0
        self._reasons: dict[str, int] = {}
        self._timed_out: dict[int, int] = {}
        """Number of records that timed out, by partition."""

    def send(self, records: Iterator["OutgoingRecord"], shown: Callable[[int], None] | None = None) -> None:
        """Send the records, and return when all are stored.

        Raises CommandFailed with the records that were not stored; the other records are stored all the same.
        The first records that time out end the sending, since each later record would wait for a timeout
        again.
        """
        from penstock.cli.output import counted, note

        started = time.monotonic()
        stopped_after: int | None = None
        try:
            for count, record in enumerate(records):
                if not self._send_one(record):
                    stopped_after = count
                    break
                if shown is not None and count % PROGRESS_EVERY_RECORDS == 0:
                    shown(self.records)
        finally:
            # Also after an invalid line or Ctrl-C: librdkafka is already sending the queued records.
            left = self._flush(self._timeout_s * 2)
            seconds = time.monotonic() - started
            sizes = f"{counted(self.records, 'record')}, {counted(self.bytes, 'byte')}"
            note(f"{sizes} in {seconds:.2f} s")
        if left:
            self._reasons["no answer came before --timeout"] = left
        reasons = self._all_reasons()
        if reasons:
            lines = [f"{counted(count, 'record')} not stored: {reason}." for reason, count in reasons.items()]
            if stopped_after is not None:
                lines.append(f"Nothing was sent of what follows record {stopped_after} of the input.")
            raise CommandFailed("\n".join(lines))

    def _all_reasons(self) -> dict[str, int]:
        """Return all errors, with the broker's reason for timeouts where it reports one."""
        reasons = Counter(self._reasons)
        for index, (partition, count) in enumerate(self._timed_out.items()):
            told = self._why_timed_out(partition) if index < FAILURES_SHOWN_MAX else None
            reasons[told or f"not taken by the broker within {self._timeout_s:g} s (see --timeout)"] += count
        return reasons

    def _why_timed_out(self, partition: int) -> str | None:
        from penstock.cli.records.failure_reasons import write_failure_reason
        from penstock.types import TopicPartition

        try:
            return write_failure_reason(self._broker, TopicPartition(self._topic, partition))
        except CommandFailed as unreachable:
            return str(unreachable).rstrip(".")

    def _flush(self, seconds_max: float) -> int:
        """Return the number of undelivered records. Waits are short: Ctrl-C is only handled between them."""
        deadline = time.monotonic() + seconds_max
        stored, stored_at = self.records, time.monotonic()
        while left := int(self._producer.flush(FLUSH_WAIT_S)):
            now = time.monotonic()
            if self.records > stored:
                stored, stored_at = self.records, now
            elif self._timed_out and now - stored_at > STANDSTILL_S_MAX:
                # In-flight batches are not purged: their acknowledgement still counts if it arrives.
                self._producer.purge(in_queue=True, in_flight=False)
            if now > deadline:
                break
        return left

    def _send_one(self, record: "OutgoingRecord") -> bool:
        """Queue a record; False if earlier records timed out."""
        from confluent_kafka import KafkaException

        while not self._timed_out:
            try:
                self._producer.produce(
                    self._topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp=record.timestamp,
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._producer.poll(0.1)  # the queue is full: wait until records were sent
            except KafkaException as refusal:  # immediate errors, such as an unknown partition
                self._count_failure(refusal.args[0], record.partition)
                return True
            else:
                self._producer.poll(0)
                return True
        return False

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.records += 1
            self.bytes += len(message.key() or b"") + len(message.value() or b"")
            return
        self._count_failure(error, message.partition())

    def _count_failure(self, error: Any, partition: int) -> None:
        from confluent_kafka import KafkaError

        given_up = (KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE, KafkaError.KAFKA_STORAGE_ERROR)
        if error.code() in given_up:
            self._timed_out[partition] = self._timed_out.get(partition, 0) + 1
            return
        reason = _reason(error, self._topic, partition)
        if reason not in self._reasons and len(self._reasons) >= FAILURES_SHOWN_MAX:
            reason = "other reasons"
        self._reasons[reason] = self._reasons.get(reason, 0) + 1


def _reason(error: Any, topic: str, partition: int) -> str:
    from confluent_kafka import KafkaError

    bounds = f"message.timestamp.before.max.ms or message.timestamp.after.max.ms of topic {topic} allows"
    remedy = f"raise it with `penstock topic alter {topic} --set max.message.bytes=BYTES`"
    special = {
        KafkaError._UNKNOWN_PARTITION: f"topic {topic} has no partition {partition}",
        KafkaError.MSG_SIZE_TOO_LARGE: f"larger than max.message.bytes of topic {topic} allows; {remedy}",
        KafkaError.INVALID_TIMESTAMP: f"its timestamp is further from now than {bounds}",
    }
    return special.get(error.code()) or str(error.str()).removeprefix("Broker: ").rstrip(".")


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
