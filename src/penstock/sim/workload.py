"""Clients: what producers, readers and administrators do to a partition, by chance.

An idempotent producer keeps up to five batches under way and sends again, in order, whatever was
not acknowledged; a plain one gives up what it does not hear of. Both outlive the broker.
"""

import asyncio
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

from penstock.config.topic import FlushPolicy
from penstock.errors import ApiError, CorruptData, ErrorCode, StorageFailed, StorageFull
from penstock.host.disk import TooManyOpenFiles
from penstock.log.reading import ColdRead
from penstock.log.time_lookup import look_up
from penstock.protocol.records import Record, build_batch
from penstock.replication.partition import Appended, Partition
from penstock.replication.waiting import ProduceWait
from penstock.sim.history import History, Violation
from penstock.types import Offset

if TYPE_CHECKING:
    from penstock.sim.world import Life

IN_FLIGHT_MAX = 5
HOT_KEYS, COLD_KEYS = 4, 24
"""Of a compacted topic: most records are not the last of their key, and some stay for long. The cold ones are
so few that most tombstones have something to delete."""
TIMESTAMP_SPREAD_MS = 20_000


class State(Enum):
    TO_SEND = "not sent, or sent and not heard of"
    WAITING = "in the log, not yet acknowledged"
    DONE = "acknowledged, but one before it is not"


class Sent:
    """One batch of a producer."""

    def __init__(self, values: list[bytes | None], timestamp: int) -> None:
        self.values = values
        self.keys: list[bytes | None] = [None] * len(values)
        self.timestamps = [timestamp - 7 * number for number, _ in enumerate(values)]
        self.sequence = 0
        self.state = State.TO_SEND


class SimProducer:
    def __init__(self, number: int, topic: str, random: Random, *, idempotent: bool, keyed: bool) -> None:
        self.number = number
        self.topic = topic
        self.idempotent = idempotent
        self.keyed = keyed
        self.under_way: list[Sent] = []
        self._random = random
        self._epoch = 0
        self._next_sequence = 0
        self._next_value = 0

    def reconnect(self) -> None:
        """The broker is another process now: nothing that was under way will be answered."""
        self._send_again_from(0)

    def step(self, life: "Life", *, may_begin: bool = True) -> None:
        waiting = [sent for sent in self.under_way if sent.state is State.TO_SEND]
        if waiting:
            self._send(life, waiting[0])
        elif may_begin and len(self.under_way) < IN_FLIGHT_MAX:
            self._begin(life)

    def _begin(self, life: "Life") -> None:
        values: list[bytes | None] = []
        count = self._random.choice((1, 1, 2, 5))
        for _ in range(count):
            # A large one spans several sectors, of which a power failure may keep any.
            size = self._random.choice((1, 20, 90, 150) if count > 1 else (1, 90, 700, 850))
            values.append(b"%d.%s" % (self._next_value, bytes(size)))
            self._next_value += 1
        sent = Sent(values, life.clock.wall_ms() - self._random.randrange(TIMESTAMP_SPREAD_MS))
        if self.keyed:
            self._give_keys(sent)
        sent.sequence = self._next_sequence
        self._next_sequence += len(values)
        self.under_way.append(sent)
        self._send(life, sent)

    def _give_keys(self, sent: Sent) -> None:
        for number, _ in enumerate(sent.keys):
            is_hot = self._random.random() < 0.7
            kind, keys = (b"hot", HOT_KEYS) if is_hot else (b"cold", COLD_KEYS)
            sent.keys[number] = b"%s-%d" % (kind, self._random.randrange(keys))
            if self._random.random() < 0.3:
                sent.values[number] = None

    def _bytes(self, sent: Sent) -> bytearray:
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

    def _send(self, life: "Life", sent: Sent) -> None:
        partition, history = life.partition(self.topic), life.world.histories[self.topic]
        payload = self._bytes(sent)
        end_before = partition.log.log_end_offset
        try:
            appended = partition.append(memoryview(payload), life.clock.wall_ms())
        except StorageFull as full:
            life.world.trace(f"full {self.number}")
            life.storage.note_full(full)
            return
        except StorageFailed as failure:
            life.storage.fail(failure)
            return
        except ApiError as refusal:
            self._refused(life, partition, refusal)
            return
        is_new = partition.log.log_end_offset > end_before
        life.world.trace(f"append {self.number} {sent.sequence} at {appended.base_offset} new={is_new}")
        if is_new:
            history.appended(bytes(payload))
        if appended.end_offset <= partition.high_watermark:
            self._acknowledged(partition, history, sent, appended)
            return
        sent.state = State.WAITING
        wait = ProduceWait(
            life.clock.monotonic() + life.world.choices.timeout_seconds,
            lambda wait: self._answered(wait, life, sent, appended),
        )
        partition.produce_waits.add(appended.end_offset, wait, 0)

    def _refused(self, life: "Life", partition: Partition, refusal: ApiError) -> None:
        life.world.trace(f"refused {self.number} {refusal.code.name}")
        if refusal.code is ErrorCode.KAFKA_STORAGE_ERROR:
            return
        loses = partition.config.flush_policy is not FlushPolicy.BEFORE_ACK
        if refusal.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or not loses:
            raise Violation(f"{self.topic}: producer {self.number} was refused: {refusal}")
        # What this producer wrote before is lost, as its flush policy allows: it begins a new epoch.
        self._epoch += 1
        self._next_sequence = 0
        for sent in self.under_way:
            sent.sequence = self._next_sequence
            self._next_sequence += len(sent.values)
        self._send_again_from(0)

    def _answered(self, wait: ProduceWait, life: "Life", sent: Sent, appended: Appended) -> None:
        if wait.errors:
            life.world.trace(f"unanswered {self.number} {sent.sequence}")
            if sent in self.under_way:
                self._send_again_from(self.under_way.index(sent))
            return
        life.world.trace(f"ack {self.number} {sent.sequence} at {appended.base_offset}")
        partition, history = life.partition(self.topic), life.world.histories[self.topic]
        self._acknowledged(partition, history, sent, appended)

    def _acknowledged(self, partition: Partition, history: History, sent: Sent, appended: Appended) -> None:
        history.require(appended.end_offset <= partition.high_watermark, "acknowledged before it was safe")
        if partition.config.flush_policy is FlushPolicy.BEFORE_ACK:
            history.safe_end = max(history.safe_end, appended.end_offset)
            history.acknowledged[appended.base_offset] = bytes(self._bytes(sent))
        sent.state = State.DONE
        self._forget_done()

    def _forget_done(self) -> None:
        """From the oldest on: five after the first that is not done are as many as are recognised."""
        while self.under_way and self.under_way[0].state is State.DONE:
            del self.under_way[0]

    def _send_again_from(self, number: int) -> None:
        for sent in self.under_way[number:]:
            if sent.state is State.WAITING:
                sent.state = State.TO_SEND if self.idempotent else State.DONE
        self._forget_done()


class SimReader:
    """Reads on from where it was, or from anywhere, with any limit."""

    def __init__(self, topic: str, random: Random) -> None:
        self.topic = topic
        self._random = random
        self._offset = 0

    async def step(self, life: "Life") -> None:
        partition, history = life.partition(self.topic), life.world.histories[self.topic]
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
                    return  # compaction rewrote it meanwhile: it tries again
                raise Violation(f"{self.topic}: a reader at {offset} found damage: {damage}") from damage
            except StorageFailed as problem:
                is_gone = log.log_start_offset > offset or not log.is_current(found.segment)
                history.require(is_gone, f"a reader at {offset} failed: {problem}")
                return
            except TooManyOpenFiles:
                return  # it tries again
            partition.keep_indexes(result.loaded)
            found = result.found
        history.require(len(found.data) > 0, f"a reader at {offset} gets nothing below {high}")
        history.require(found.next_offset <= partition.high_watermark, "a reader saw what was not safe")
        self._offset = history.was_read(offset, bytes(found.data))
        life.world.trace(f"read {self.topic} {offset} to {self._offset}")

    def look_up(self, life: "Life") -> None:
        """An offset by its time, against a linear scan."""
        partition, history = life.partition(self.topic), life.world.histories[self.topic]
        timestamp = life.clock.wall_ms() - self._random.randrange(2 * TIMESTAMP_SPREAD_MS)
        lookup = partition.time_lookup()
        try:
            found = look_up(lookup, timestamp)
        except TooManyOpenFiles:
            return
        expected = history.first_at_or_after(timestamp, lookup.start_offset, lookup.end_offset)
        same = (tuple(found) if found else None) == expected
        history.require(same, f"time {timestamp} leads to {found} instead of {expected}")
        life.world.trace(f"lookup {self.topic} {found}")


class SimAdministrator:
    """Deletes records now and then."""

    def __init__(self, topic: str, random: Random) -> None:
        self.topic = topic
        self._random = random

    async def step(self, life: "Life") -> None:
        partition, history = life.partition(self.topic), life.world.histories[self.topic]
        start, high = partition.log.log_start_offset, partition.high_watermark
        if partition.read_only is not None or start >= high:
            return
        asked = Offset(self._random.randint(start + 1, high))
        life.world.trace(f"delete {self.topic} below {asked}")
        # Once asked, it may be so after a crash, whether or not that was reported.
        history.start_seen = max(history.start_seen, asked)
        try:
            refused = await life.storage.delete_before({partition: asked})
        except (StorageFull, StorageFailed):
            return
        if refused:
            return
        history.start_acknowledged = max(history.start_acknowledged, asked)
