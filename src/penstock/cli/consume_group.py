"""`penstock consume --group`: read as a member of a consumer group, and keep its place.

A record is committed after it was printed: whoever is interrupted sees a record twice rather than not
at all. Unless it follows, it ends when it has read to the end every partition that it was given.
"""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.cli.record_output import Incoming
from penstock.errors import CommandFailed

if TYPE_CHECKING:
    from penstock.cli.connection import Broker

RECORDS_AT_ONCE: Final = 1_000
WAIT_S: Final = 0.1
_PROTOCOLS: Final = {
    "classic": {"group.protocol": "classic", "partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}


class Membership(NamedTuple):
    group: str
    protocol: str
    """classic, or consumer for the protocol of KIP-848."""
    begins_at: str
    """earliest or latest: where nothing is committed."""


class GroupReader:
    """librdkafka's consumer as a member. `next_records` is empty while nothing comes."""

    def __init__(
        self, broker: "Broker", topic: str, membership: Membership, maximum: int | None, *, follows: bool
    ) -> None:
        self._topic = topic
        self._left = maximum
        self._follows = follows
        self._is_assigned = False
        self._open: set[int] = set()
        """Partitions that are ours and not yet read to their end."""
        self._uncommitted: dict[int, int] = {}
        self._consumer = self._new_consumer(broker, membership)

    @property
    def is_done(self) -> bool:
        has_read_all = self._is_assigned and not self._open and not self._follows
        return has_read_all or self._left == 0

    def next_records(self) -> list[Incoming]:
        """What was given out before has been printed: now it may be committed."""
        self._commit()
        messages = self._consumer.consume(min(RECORDS_AT_ONCE, self._left or RECORDS_AT_ONCE), WAIT_S)
        records = [self._taken(message) for message in messages if not self._is_event(message)]
        if self._left is not None:
            self._left -= len(records)
        return records

    def close(self) -> None:
        self._commit()
        self._consumer.close()

    def _new_consumer(self, broker: "Broker", membership: Membership) -> Any:
        from confluent_kafka import Consumer

        consumer = Consumer(
            broker.settings(
                **{
                    "group.id": membership.group,
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": membership.begins_at,
                    **_PROTOCOLS[membership.protocol],
                }
            )
        )
        consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        return consumer

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        self._is_assigned = True
        self._open.update(partition.partition for partition in partitions)

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        """Whoever reads them next goes on where we were."""
        self._commit()
        self._lost(consumer, partitions)

    def _lost(self, consumer: Any, partitions: list[Any]) -> None:
        for partition in partitions:
            self._open.discard(partition.partition)
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

    def _taken(self, message: Any) -> Incoming:
        from penstock.cli.consume import incoming

        self._uncommitted[message.partition()] = message.offset() + 1
        return incoming(message)

    def _commit(self) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        if not self._uncommitted:
            return
        offsets = [
            TopicPartition(self._topic, number, offset) for number, offset in self._uncommitted.items()
        ]
        self._uncommitted = {}
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as refusal:
            raise CommandFailed(
                f"what was printed last was not committed, and will be read again: {refusal.args[0].str()}."
            ) from refusal
