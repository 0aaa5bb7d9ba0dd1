"""`penstock consume --group`: reads as a member of a consumer group, and commits its position.

A record is committed after it was printed: after an interruption, a record is printed twice rather than lost.
Without --follow, the command ends when all its assigned partitions are read to their end.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.cli.records.record_output import IncomingRecord
from penstock.errors import CommandFailed, ErrorCode

if TYPE_CHECKING:
    from penstock.cli.broker_connector import BrokerConnector

RECORDS_AT_ONCE: Final = 1_000
WAIT_S: Final = 0.1
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
        broker: "BrokerConnector",
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
        from penstock.cli.records.consume import incoming_record

        messages = self._consumer.consume(min(RECORDS_AT_ONCE, self._left or RECORDS_AT_ONCE), WAIT_S)
        records = [incoming_record(message) for message in messages if not self._is_event(message)]
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

    def _new_consumer(self, broker: "BrokerConnector", membership: GroupMembership) -> Any:
        from confluent_kafka import Consumer

        from penstock.cli.records.librdkafka import settings_of

        own = {
            "group.id": membership.group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": membership.auto_offset_reset,
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
        from confluent_kafka import KafkaError

        error = message.error()
        if error is None:
            return False
        if error.code() != KafkaError._PARTITION_EOF:
            raise CommandFailed(f"topic {self._topic} cannot be read in this group: {error.str()}.")
        self._open.discard(message.partition())
        return True

    def _commit(self) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        if not self._uncommitted:
            return
        offsets = [
            TopicPartition(self._topic, number, offset) for number, offset in self._uncommitted.items()
        ]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as refusal:
            if refusal.args[0].code() in _REBALANCE_ERRORS:
                return  # the next commit includes them, if the partitions are still assigned
            raise CommandFailed(
                f"what was printed last was not committed, and will be read again: {refusal.args[0].str()}."
            ) from refusal
        self._uncommitted = {}
