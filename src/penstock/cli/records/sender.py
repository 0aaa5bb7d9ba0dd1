"""Sender of `penstock produce`, on librdkafka, which batches the records.

librdkafka partitions keys like Java clients (murmur2), so that records with one key go to one partition,
whichever client wrote them.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.cli.broker_connector import BrokerConnector
from penstock.cli.output import counted, note
from penstock.cli.records.failure_reasons import WriteFailure, diagnose_write_failure
from penstock.cli.records.librdkafka import settings_of
from penstock.cli.records.record_input import OutgoingRecord
from penstock.cli.topic_requests import topic_settings
from penstock.errors import CommandFailed
from penstock.types import TopicPartition

FAILURES_SHOWN_MAX: Final = 3
BATCH_BYTES_MAX: Final = 1_000_000
QUEUED_KIB_MAX: Final = 64 * 1024
RECORD_BYTES_MAX: Final = 100_000_000
"""The broker enforces the topic's limit; librdkafka should not reject a record first."""
PROGRESS_EVERY_RECORDS: Final = 1_000
FLUSH_WAIT_S: Final = 0.1
STANDSTILL_S_MAX: Final = 1.0
"""Longest time without progress after a delivery failure, before the queued records are given up."""

OUTCOME_UNKNOWN: Final = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._PURGE_INFLIGHT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
"""Errors after which the records may be stored all the same."""


class Sender:
    """Sender of records through librdkafka; counts delivered records and collects errors."""

    def __init__(self, broker: BrokerConnector, topic: str, compression: str, acks: str) -> None:
        self._broker = broker
        self._topic = topic
        self._timeout_s = broker.timeout_s
        settings = topic_settings(broker, [topic])[topic]
        largest = settings["max.message.bytes"].value if "max.message.bytes" in settings else None
        own = {
            "partitioner": "murmur2_random",
            "compression.type": compression,
            "acks": acks,
            # With idempotence, the broker detects a retried batch and does not store it twice.
            "enable.idempotence": acks == "all",
            "message.timeout.ms": int(broker.timeout_s * 1000),
            "message.max.bytes": RECORD_BYTES_MAX,
            # The broker would reject a batch above the topic's limit with all its records.
            "batch.size": min(BATCH_BYTES_MAX, int(largest or BATCH_BYTES_MAX)),
            "queue.buffering.max.kbytes": QUEUED_KIB_MAX,
        }
        self._producer: Any = Producer(settings_of(broker) | own)
        self.records = self.bytes = 0
        self._reasons: dict[WriteFailure, int] = {}
        self._timed_out: dict[int, int] = {}
        """Number of records that timed out, by partition."""

    def send(self, records: Iterator[OutgoingRecord], shown: Callable[[int], None] | None = None) -> None:
        """Send the records, and return when all are stored.

        Raises CommandFailed with the records that were rejected, and those that may or may not be stored; the
        other records are stored all the same. The first records that time out end the sending, since each
        later record would wait for a timeout again.
        """
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
            self._reasons[WriteFailure("no answer came before --timeout")] = left
        reasons = self._all_reasons()
        if reasons:
            lines = [_failure_text(failure, count) for failure, count in reasons.items()]
            if stopped_after is not None:
                lines.append(f"Nothing was sent of what follows record {stopped_after} of the input.")
            raise CommandFailed("\n".join(lines))

    def _all_reasons(self) -> dict[WriteFailure, int]:
        """Return all errors, with the broker's reason for timeouts where it reports one."""
        reasons = Counter(self._reasons)
        late = WriteFailure(f"not taken by the broker within {self._timeout_s:g} s (see --timeout)")
        for index, (partition, count) in enumerate(self._timed_out.items()):
            told = self._why_timed_out(partition) if index < FAILURES_SHOWN_MAX else None
            reasons[told or late] += count
        return reasons

    def _why_timed_out(self, partition: int) -> WriteFailure | None:
        try:
            return diagnose_write_failure(self._broker, TopicPartition(self._topic, partition))
        except CommandFailed as unreachable:
            return WriteFailure(str(unreachable).rstrip("."))

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

    def _send_one(self, record: OutgoingRecord) -> bool:
        """Queue a record; False if earlier records timed out."""
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
            except KafkaException as rejection:  # immediate errors, such as an unknown partition
                self._count_failure(rejection.args[0], record.partition)
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
        given_up = (KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE, KafkaError.KAFKA_STORAGE_ERROR)
        if error.code() in given_up:
            self._timed_out[partition] = self._timed_out.get(partition, 0) + 1
            return
        is_rejection = error.code() not in OUTCOME_UNKNOWN
        failure = WriteFailure(_reason(error, self._topic, partition), is_rejection)
        if failure not in self._reasons and len(self._reasons) >= FAILURES_SHOWN_MAX:
            failure = WriteFailure("other reasons", is_rejection)
        self._reasons[failure] = self._reasons.get(failure, 0) + 1


def _failure_text(failure: WriteFailure, count: int) -> str:
    if failure.is_rejection:
        return f"{counted(count, 'record')} not stored: {failure.reason}."
    which = "it" if count == 1 else "some of them"
    return f"{counted(count, 'record')} not acknowledged, and {which} may be stored: {failure.reason}."


def _reason(error: Any, topic: str, partition: int) -> str:
    bounds = f"message.timestamp.before.max.ms or message.timestamp.after.max.ms of topic {topic} allows"
    remedy = f"raise it with `penstock topic alter {topic} --set max.message.bytes=BYTES`"
    special = {
        KafkaError._UNKNOWN_PARTITION: f"topic {topic} has no partition {partition}",
        KafkaError.MSG_SIZE_TOO_LARGE: f"larger than max.message.bytes of topic {topic} allows; {remedy}",
        KafkaError.INVALID_TIMESTAMP: f"its timestamp is further from now than {bounds}",
    }
    return special.get(error.code()) or str(error.str()).removeprefix("Broker: ").rstrip(".")
