"""Readers of `penstock consume`, on librdkafka: of assigned partitions, and as a member of a group.

Rule: a member of a group commits a record after it was printed: after an interruption, a record is printed
      twice rather than lost. Without --follow, it ends when all its partitions are read to their end.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import typer
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.cli.broker_connector import BrokerConnector
from penstock.cli.positions import PositionKind, PositionSpec
from penstock.cli.records.failure_reasons import diagnose_read_failure
from penstock.cli.records.librdkafka import settings_of
from penstock.cli.records.record_output import IncomingRecord
from penstock.cli.topic_requests import find_offsets, log_bounds
from penstock.errors import CommandFailed, ErrorCode
from penstock.types import TopicPartition as PartitionName

RECORDS_AT_ONCE: Final = 1_000
WAIT_S: Final = 0.1
"""Longest delay for Ctrl-C, and for a single record."""
_PROTOCOLS: Final = {
    "classic": {"group.protocol": "classic", "partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}
_REBALANCE_ERRORS: Final = (
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.STALE_MEMBER_EPOCH,
)


class PartitionRange(NamedTuple):
    """Offsets to read of a partition, from `start` to before `end`; without an `end`, all that follow."""

    start: int
    end: int | None


def find_ranges(
    broker: BrokerConnector, partitions: Sequence[PartitionName], position: PositionSpec, *, follows: bool
) -> dict[int, PartitionRange]:
    """Return what to read of each partition of a topic, from this position on."""
    spans = {each.partition: bounds for each, bounds in log_bounds(broker, partitions).items()}
    found = None
    if position.kind not in (PositionKind.EARLIEST, PositionKind.LATEST, PositionKind.OFFSET):
        offsets = find_offsets(broker, partitions, position)
        found = {each.partition: at.offset for each, at in offsets.items()}
    return plan_ranges(position, spans, found, follows=follows)


def plan_ranges(
    position: PositionSpec,
    spans: Mapping[int, tuple[int, int]],
    found: Mapping[int, int | None] | None,
    *,
    follows: bool,
) -> dict[int, PartitionRange]:
    """Return the range of each partition. An offset below the log start begins at the log start."""
    if position.kind is PositionKind.OFFSET and all(position.number > end for _, end in spans.values()):
        furthest, number = max((end, number) for number, (_, end) in spans.items())
        which = f"partition {number}" if len(spans) == 1 else f"partition {number}, the furthest,"
        raise CommandFailed(
            f"offset {position.number} does not exist yet: {which} ends at offset {furthest}."
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
        self, broker: BrokerConnector, topic: str, plan: Mapping[int, PartitionRange], maximum: int | None
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

    def _new_consumer(self, broker: BrokerConnector) -> Any:
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
        return _incoming_record(message)

    def _event(self, number: int, error: Any) -> None:
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
        follows = all(span.end is None for span in self._open.values())
        offsets = {PartitionName(self._topic, number): offset for number, offset in waiting.items()}
        try:
            reason = diagnose_read_failure(self._broker, offsets, waits_for_leaders=follows)
        except CommandFailed:  # no broker is reachable; with --follow, one may return
            if follows:
                return
            raise
        if reason is None and not follows:
            reason = f"the broker sent nothing for {self._timeout_s:g} s. Allow more with --timeout."
        if reason is not None:
            raise CommandFailed(reason)


def _print_connection_lost(error: Any) -> None:
    if error.code() == KafkaError._ALL_BROKERS_DOWN:
        typer.echo("penstock: the connection to the broker is lost; trying again", err=True)


class GroupMembership(NamedTuple):
    group: str
    protocol: str
    """classic, or consumer for the protocol of KIP-848."""
    auto_offset_reset: str
    """earliest or latest: where to begin without a committed offset."""


class GroupReader:
    """Reader as a member of a group with librdkafka. `next_records` is empty while no record arrives."""

    def __init__(
        self,
        broker: BrokerConnector,
        topic: str,
        membership: GroupMembership,
        maximum: int | None,
        *,
        follows: bool,
    ) -> None:
        self._topic = topic
        self._left = maximum
        self._follows = follows
        self._owned: set[int] | None = None
        """Assigned partitions; None before the first assignment."""
        self._open: set[int] = set()
        """Assigned partitions that are not read to their end yet."""
        self._uncommitted: dict[int, int] = {}
        self._consumer = self._new_consumer(broker, membership)

    @property
    def is_done(self) -> bool:
        has_read_all = self._owned is not None and not self._open and not self._follows
        return has_read_all or self._left == 0

    def next_records(self) -> list[IncomingRecord]:
        messages = self._consumer.consume(min(RECORDS_AT_ONCE, self._left or RECORDS_AT_ONCE), WAIT_S)
        records = [_incoming_record(message) for message in messages if not self._is_event(message)]
        if self._left is not None:
            self._left -= len(records)
        return records

    def mark_printed(self, records: Sequence[IncomingRecord]) -> None:
        """Commit printed records, except of revoked partitions, which another member commits."""
        for record in records:
            if record.partition in (self._owned or ()):
                self._uncommitted[record.partition] = record.offset + 1
        self._commit()

    def close(self) -> None:
        self._consumer.close()

    def _new_consumer(self, broker: BrokerConnector, membership: GroupMembership) -> Any:
        own = {
            "group.id": membership.group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": membership.auto_offset_reset,
            "error_cb": _print_connection_lost,
            **_PROTOCOLS[membership.protocol],
        }
        consumer = Consumer(settings_of(broker) | own)
        consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        return consumer

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        numbers = {partition.partition for partition in partitions}
        self._owned = (self._owned or set()) | numbers
        self._open |= numbers

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        for partition in partitions:
            self._owned = (self._owned or set()) - {partition.partition}
            self._open.discard(partition.partition)
            # Another member owns the partition now; a later commit would overwrite its offset.
            self._uncommitted.pop(partition.partition, None)

    def _is_event(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            return False
        if error.code() != KafkaError._PARTITION_EOF:
            raise CommandFailed(f"topic {self._topic} cannot be read in this group: {error.str()}.")
        self._open.discard(message.partition())
        return True

    def _commit(self) -> None:
        if not self._uncommitted:
            return
        offsets = [
            TopicPartition(self._topic, number, offset) for number, offset in self._uncommitted.items()
        ]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as rejection:
            if rejection.args[0].code() in _REBALANCE_ERRORS:
                return  # the next commit includes them, if the partitions are still assigned
            raise CommandFailed(
                f"what was printed last was not committed, and will be read again: {rejection.args[0].str()}."
            ) from rejection
        self._uncommitted = {}


def _incoming_record(message: Any) -> IncomingRecord:
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
