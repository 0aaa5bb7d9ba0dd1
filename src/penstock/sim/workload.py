"""Simulated clients of one log: random operations of producers, readers and administrators.

An idempotent producer keeps up to five batches in flight and retries, in order, every batch that was not
acknowledged. A plain producer drops a batch without an acknowledgement. Both outlive the broker.
"""

import asyncio
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

from penstock.config.topic import FlushPolicy
from penstock.errors import ApiError, CorruptData, ErrorCode, StorageFailed, StorageFull
from penstock.host.disk import TooManyOpenFiles
from penstock.log.reading.cold_reading import ColdRead
from penstock.log.reading.time_lookup import look_up
from penstock.protocol.records import Record, build_batch
from penstock.replication.partition import Appended, Partition
from penstock.replication.produce_waits import ProduceWait
from penstock.sim.history import History, InvariantViolation
from penstock.types import Offset

if TYPE_CHECKING:
    from penstock.sim.log_simulation import BrokerRun

IN_FLIGHT_MAX = 5
HOT_KEYS, COLD_KEYS = 4, 24
"""The keys of a compacted topic. Most records are not the last of their key, and some stay for long. There
are so few cold keys that most tombstones have a record to delete.
"""
TIMESTAMP_SPREAD_MS = 20_000


class SendState(Enum):
    TO_SEND = "not sent, or sent and not heard of"
    WAITING = "in the log, not yet acknowledged"
    DONE = "acknowledged, but one before it is not"


class ProducerBatch:
    """One batch of a producer."""

    def __init__(self, values: list[bytes | None], timestamp: int) -> None:
        self.values = values
        self.keys: list[bytes | None] = [None] * len(values)
        self.timestamps = [timestamp - 7 * number for number, _ in enumerate(values)]
        self.sequence = 0
        self.state = SendState.TO_SEND


class SimProducer:
    def __init__(self, number: int, topic: str, random: Random, *, idempotent: bool, keyed: bool) -> None:
        self.number = number
        self.topic = topic
        self.idempotent = idempotent
        self.keyed = keyed
        self.in_flight: list[ProducerBatch] = []
        self._random = random
        self._epoch = 0
        self._next_sequence = 0
        self._next_value = 0

    def reconnect(self) -> None:
        """Continue with a new broker process: batches in flight will get no reply."""
        self._retry_from(0)

    def step(self, broker_run: "BrokerRun", *, may_begin: bool = True) -> None:
        waiting = [sent for sent in self.in_flight if sent.state is SendState.TO_SEND]
        if waiting:
            self._send(broker_run, waiting[0])
        elif may_begin and len(self.in_flight) < IN_FLIGHT_MAX:
            self._begin(broker_run)

    def _begin(self, broker_run: "BrokerRun") -> None:
        values: list[bytes | None] = []
        count = self._random.choice((1, 1, 2, 5))
        for _ in range(count):
            # A large record spans several sectors, of which a power failure may keep any.
            size = self._random.choice((1, 20, 90, 150) if count > 1 else (1, 90, 700, 850))
            values.append(b"%d.%s" % (self._next_value, bytes(size)))
            self._next_value += 1
        sent = ProducerBatch(values, broker_run.clock.wall_ms() - self._random.randrange(TIMESTAMP_SPREAD_MS))
        if self.keyed:
            self._assign_keys(sent)
        sent.sequence = self._next_sequence
        self._next_sequence += len(values)
        self.in_flight.append(sent)
        self._send(broker_run, sent)

    def _assign_keys(self, sent: ProducerBatch) -> None:
        for number, _ in enumerate(sent.keys):
            is_hot = self._random.random() < 0.7
            kind, keys = (b"hot", HOT_KEYS) if is_hot else (b"cold", COLD_KEYS)
            sent.keys[number] = b"%s-%d" % (kind, self._random.randrange(keys))
            if self._random.random() < 0.3:
                sent.values[number] = None

    def _encode(self, sent: ProducerBatch) -> bytearray:
        made = [
            Record(Offset(0), time, key, value)
            for time, key, value in zip(sent.timestamps, sent.keys, sent.values, strict=True)
        ]
        if not self.idempotent:
            return bytearray(build_batch(made))
        return bytearray(
            build_batch(
                made, producer_id=self.number, producer_epoch=self._epoch, base_sequence=sent.sequence
            )
        )

    def _send(self, broker_run: "BrokerRun", sent: ProducerBatch) -> None:
        partition, history = broker_run.partition(self.topic), broker_run.world.histories[self.topic]
        payload = self._encode(sent)
        end_before = partition.log.log_end_offset
        try:
            appended = partition.append(memoryview(payload), broker_run.clock.wall_ms())
        except StorageFull as full:
            broker_run.world.trace(f"full {self.number}")
            broker_run.storage.note_full(full)
            return
        except StorageFailed as failure:
            broker_run.storage.fail(failure)
            return
        except ApiError as refusal:
            self._append_rejected(broker_run, partition, refusal)
            return
        is_new = partition.log.log_end_offset > end_before
        broker_run.world.trace(f"append {self.number} {sent.sequence} at {appended.base_offset} new={is_new}")
        if is_new:
            history.appended(bytes(payload))
        if appended.end_offset <= partition.high_watermark:
            self._record_acknowledgement(partition, history, sent, appended)
            return
        sent.state = SendState.WAITING
        wait = ProduceWait(
            broker_run.clock.monotonic() + broker_run.world.choices.timeout_seconds,
            lambda wait: self._produce_completed(wait, broker_run, sent, appended),
        )
        partition.produce_waits.add(appended.end_offset, wait, 0)

    def _append_rejected(self, broker_run: "BrokerRun", partition: Partition, refusal: ApiError) -> None:
        broker_run.world.trace(f"refused {self.number} {refusal.code.name}")
        if refusal.code is ErrorCode.KAFKA_STORAGE_ERROR:
            return
        loses = partition.config.flush_policy is not FlushPolicy.BEFORE_ACK
        if refusal.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or not loses:
            raise InvariantViolation(f"{self.topic}: producer {self.number} was refused: {refusal}")
        # Earlier batches of this producer are lost, as the flush policy allows: it bumps its epoch.
        self._epoch += 1
        self._next_sequence = 0
        for sent in self.in_flight:
            sent.sequence = self._next_sequence
            self._next_sequence += len(sent.values)
        self._retry_from(0)

    def _produce_completed(
        self, wait: ProduceWait, broker_run: "BrokerRun", sent: ProducerBatch, appended: Appended
    ) -> None:
        if wait.errors:
            broker_run.world.trace(f"unanswered {self.number} {sent.sequence}")
            if sent in self.in_flight:
                self._retry_from(self.in_flight.index(sent))
            return
        broker_run.world.trace(f"ack {self.number} {sent.sequence} at {appended.base_offset}")
        partition, history = broker_run.partition(self.topic), broker_run.world.histories[self.topic]
        self._record_acknowledgement(partition, history, sent, appended)

    def _record_acknowledgement(
        self, partition: Partition, history: History, sent: ProducerBatch, appended: Appended
    ) -> None:
        history.require(appended.end_offset <= partition.high_watermark, "acknowledged before it was safe")
        if partition.config.flush_policy is FlushPolicy.BEFORE_ACK:
            history.safe_end = max(history.safe_end, appended.end_offset)
            history.acknowledged[appended.base_offset] = bytes(self._encode(sent))
        sent.state = SendState.DONE
        self._drop_acknowledged()

    def _drop_acknowledged(self) -> None:
        """Drop acknowledged batches from the oldest on.

        A later one stays, because the broker's sequence window covers five batches from the first
        unacknowledged one.
        """
        while self.in_flight and self.in_flight[0].state is SendState.DONE:
            del self.in_flight[0]

    def _retry_from(self, number: int) -> None:
        for sent in self.in_flight[number:]:
            if sent.state is SendState.WAITING:
                sent.state = SendState.TO_SEND if self.idempotent else SendState.DONE
        self._drop_acknowledged()


class SimReader:
    """Reads from its last offset on, or from a random one, with a random limit."""

    def __init__(self, topic: str, random: Random) -> None:
        self.topic = topic
        self._random = random
        self._offset = 0

    async def step(self, broker_run: "BrokerRun") -> None:
        partition, history = broker_run.partition(self.topic), broker_run.world.histories[self.topic]
        log, high = partition.log, partition.high_watermark
        if self._random.random() < 0.3 and high > log.log_start_offset:
            self._offset = self._random.randrange(log.log_start_offset, high)
        self._offset = min(max(self._offset, log.log_start_offset), max(high, log.log_start_offset))
        offset = self._offset
        if offset >= high:
            return
        bytes_max = self._random.choice((1, 150, 1_000, 1_000_000))
        found = partition.read(Offset(offset), bytes_max, at_least_one=True)
        if isinstance(found, ColdRead):
            await asyncio.sleep(self._random.random() * 0.02)
            try:
                result = found.run()
            except CorruptData as damage:
                if not log.is_current(found.segment):
                    return  # compaction replaced the segment meanwhile: the reader retries
                raise InvariantViolation(
                    f"{self.topic}: a reader at {offset} found damage: {damage}"
                ) from damage
            except StorageFailed as problem:
                is_gone = log.log_start_offset > offset or not log.is_current(found.segment)
                history.require(is_gone, f"a reader at {offset} failed: {problem}")
                return
            except TooManyOpenFiles:
                return  # the reader retries
            partition.keep_indexes(result.loaded)
            found = result.found
        history.require(len(found.data) > 0, f"a reader at {offset} gets nothing below {high}")
        history.require(found.next_offset <= partition.high_watermark, "a reader saw what was not safe")
        self._offset = history.check_read(offset, bytes(found.data))
        broker_run.world.trace(f"read {self.topic} {offset} to {self._offset}")

    def look_up(self, broker_run: "BrokerRun") -> None:
        """Look up an offset by time, and compare it with a linear scan."""
        partition, history = broker_run.partition(self.topic), broker_run.world.histories[self.topic]
        timestamp = broker_run.clock.wall_ms() - self._random.randrange(2 * TIMESTAMP_SPREAD_MS)
        lookup = partition.time_lookup()
        try:
            found = look_up(lookup, timestamp)
        except TooManyOpenFiles:
            return
        expected = history.first_at_or_after(timestamp, lookup.start_offset, lookup.end_offset)
        same = (tuple(found) if found else None) == expected
        history.require(same, f"time {timestamp} leads to {found} instead of {expected}")
        broker_run.world.trace(f"lookup {self.topic} {found}")


class SimAdministrator:
    """Deletes records now and then."""

    def __init__(self, topic: str, random: Random) -> None:
        self.topic = topic
        self._random = random

    async def step(self, broker_run: "BrokerRun") -> None:
        partition, history = broker_run.partition(self.topic), broker_run.world.histories[self.topic]
        start, high = partition.log.log_start_offset, partition.high_watermark
        if partition.read_only is not None or start >= high:
            return
        delete_before_offset = Offset(self._random.randint(start + 1, high))
        broker_run.world.trace(f"delete {self.topic} below {delete_before_offset}")
        # Once requested, the deletion may survive a crash, whether or not it was confirmed.
        history.start_seen = max(history.start_seen, delete_before_offset)
        try:
            refused = await broker_run.storage.delete_before({partition: delete_before_offset})
        except (StorageFull, StorageFailed):
            return
        if refused:
            return
        history.start_acknowledged = max(history.start_acknowledged, delete_before_offset)
