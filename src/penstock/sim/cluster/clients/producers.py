"""Simulated producers: each writes to one partition, batch after batch, with several batches in flight.

The idempotent producer behaves like Kafka's clients: it retries every batch without an acknowledgement,
unchanged and in order, until it is acknowledged. It must never get OUT_OF_ORDER_SEQUENCE_NUMBER for its
next batch: that would mean that acknowledged batches are lost. A single broker may lose them if it
acknowledges before it flushes; then the producer begins again with another id. A batch that was committed and
deleted before its acknowledgement arrived counts as acknowledged, whatever the reply to its retry is.

The careless producer (acks=1) sends each batch once. It leaves records on leaders that no other replica
has.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import ErrorCode
from penstock.protocol.batches import parse_header
from penstock.protocol.messages.init_producer_id import INIT_PRODUCER_ID, InitProducerIdRequest
from penstock.protocol.messages.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from penstock.protocol.records import Record, build_batch
from penstock.sim.cluster.clients.client import CONNECTION_ERRORS, KafkaClient, TopicLeaders
from penstock.sim.cluster.node import WALL_BEGINS_MS
from penstock.types import NO_OFFSET, TopicId

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

CHECKS_OWN_SHARE: Final = 0.1
ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1
TIMEOUT_MS: Final = 1_500
TIMESTAMP_SPREAD_MS: Final = 20_000
HOT_KEYS: Final = 4
COLD_KEYS: Final = 24
"""The keys of a compacted topic. Most records are not the last of their key, and some stay for long. There
are so few cold keys that most tombstones have a record to delete.
"""
# Errors after which the batch is not in the log, or not known to be safe: the producer retries.
RETRIABLE_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


Outcomes = list[ErrorCode | None]
"""The result of each batch. None: there was no reply."""


class SentBatch(NamedTuple):
    number: int
    data: bytes


class SimProducer:
    def __init__(self, cluster: "SimCluster", name: str, topic: str, index: int) -> None:
        self.name = name
        self._client = KafkaClient(cluster, name)
        self._cluster = cluster
        self._topic = topic
        self._index = index
        self._is_keyed = cluster.plan.log is not None and topic in cluster.plan.compacted_topics
        self._producer_id = -1
        self._records = 0
        self._sequence = 0
        self._is_known = False
        """Whether a batch was acknowledged under this producer id."""
        self._batches = 0
        self._unacknowledged: list[SentBatch] = []
        self.acknowledged = 0
        self._end = 0
        """The end offset of the acknowledged records."""
        self.is_idle = False
        """Whether everything is acknowledged since the producer was stopped."""

    def start(self) -> None:
        self._client.run(self._run())

    async def _run(self) -> None:
        cluster, plan = self._cluster, self._cluster.plan
        while True:
            while self._producer_id < 0:
                await self._init_producer_id()
            # A broker accepts any first sequence number of a producer. If it rejected the first batch, for
            # lack of space, and accepted the second, the first could not be sent again.
            in_flight = plan.in_flight if plan.log is None or self._is_known else 1
            while cluster.is_producing and self._unacknowledged_span < in_flight:
                self._unacknowledged.append(self._next_batch())
            if self._unacknowledged:
                await self._send_all()
            self.is_idle = not self._unacknowledged
            await self._client.pause(plan.pause_seconds)

    @property
    def _unacknowledged_span(self) -> int:
        """The number of batches from the first unacknowledged to the newest: a broker's window has five."""
        return self._batches + 1 - self._unacknowledged[0].number if self._unacknowledged else 0

    async def _init_producer_id(self) -> None:
        try:
            answer = await self._client.ask(
                self._client.any_broker(), INIT_PRODUCER_ID, InitProducerIdRequest()
            )
            if answer.error_code == ErrorCode.NONE:
                self._producer_id = answer.producer_id
                self._cluster.trace_and_hash(f"{self._client.name} is {answer.producer_id}")
                return
        except CONNECTION_ERRORS:
            pass  # the caller retries, with any broker
        await self._client.pause()

    def _next_batch(self) -> SentBatch:
        random = self._client.random
        now_ms = WALL_BEGINS_MS + int(self._cluster.loop.now * 1000)
        count = random.choice((1, 1, 2, 5))
        padding = b"." * random.choice((0, 20, 300))
        values = [
            b"%s %d %s" % (self._client.name.encode(), self._records + n, padding) for n in range(count)
        ]
        records = [Record(NO_OFFSET, now_ms, None, value) for value in values]
        if self._cluster.plan.log is not None:
            records = self._varied(records)
        batch = build_batch(
            records, producer_id=self._producer_id, producer_epoch=0, base_sequence=self._sequence
        )
        self._records += count
        self._sequence += count
        self._batches += 1
        return SentBatch(self._batches, batch)

    def _varied(self, records: list[Record]) -> list[Record]:
        """Records for a single broker: their timestamps are not in order, and a compacted topic needs keys
        and tombstones.
        """
        random = self._client.random
        earlier_ms = random.randrange(TIMESTAMP_SPREAD_MS)
        records = [
            record._replace(timestamp=record.timestamp - earlier_ms - 7 * number)
            for number, record in enumerate(records)
        ]
        return [self._with_key(record) for record in records] if self._is_keyed else records

    def _with_key(self, record: Record) -> Record:
        random = self._client.random
        kind, keys = (b"hot", HOT_KEYS) if random.random() < 0.7 else (b"cold", COLD_KEYS)
        key = b"%s-%d" % (kind, random.randrange(keys))
        return record._replace(key=key, value=None if random.random() < 0.3 else record.value)

    async def _send_all(self) -> None:
        """Send everything that is not acknowledged, in order, and evaluate the replies together."""
        found = await self._client.leader(self._topic, self._index)
        if found is None:
            return
        topic, leader = found
        sent = tuple(self._unacknowledged)
        end_before = self._end
        connection_numbers = (0, 1) if self._client.random.random() < self._cluster.plan.repeats else (0,)
        if len(connection_numbers) > 1:
            self._cluster.fault_counts["duplicate"] += len(sent)
        # Batches may be sent on two connections at once, as duplicates. Only replies on the first one are
        # evaluated.
        outcomes, *_ = await asyncio.gather(
            *(
                self._send(topic.id, leader, sent, connection_number)
                for connection_number in connection_numbers
            )
        )
        done = {each.number for each, code in zip(sent, outcomes, strict=True) if code is ErrorCode.NONE}
        first = next((code for code in outcomes if code is not ErrorCode.NONE), ErrorCode.NONE)
        # All earlier batches are acknowledged, so the leader must expect this sequence number.
        if first is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if self._cluster.may_forget_acknowledged:
                self._begin_again()
                return
            self._cluster.violate(f"{self.name}: {first.name} although all before it was acknowledged")
        if first is not ErrorCode.NONE:
            self._client.forget_topic(self._topic)
            await self._client.pause()
        self._unacknowledged = [each for each in self._unacknowledged if each.number not in done]
        self.acknowledged += len(done)
        self._is_known |= bool(done)
        checks_own = self._client.random.random() < CHECKS_OWN_SHARE if self._end > end_before else False
        if checks_own and not self._cluster.may_forget_acknowledged:
            await self._check_own_records(topic, leader)

    def _begin_again(self) -> None:
        self._producer_id, self._sequence, self._is_known, self._end = -1, 0, False, 0
        self._unacknowledged.clear()

    async def _check_own_records(self, topic: TopicLeaders, leader: int) -> None:
        """Check that acknowledged records are below the high watermark that a leader returns."""
        end = None
        with suppress(*CONNECTION_ERRORS):
            end = await self._client.end(self._topic, self._index, leader, topic.epochs[self._index])
        if end is not None and end < self._end:
            self._cluster.violate(f"{self.name} is told that {end} is the end, and has written {self._end}")

    async def _send(
        self, topic_id: TopicId, leader: int, sent: tuple[SentBatch, ...], connection_number: int
    ) -> list[ErrorCode | None]:
        """Send the batches. Returns the result of each."""
        try:
            await self._client.connect(leader, connection_number)
        except CONNECTION_ERRORS:
            return [None] * len(sent)
        return list(
            await asyncio.gather(*(self._produce(topic_id, leader, each, connection_number) for each in sent))
        )

    async def _produce(
        self, topic_id: TopicId, leader: int, sent: SentBatch, connection_number: int
    ) -> ErrorCode | None:
        part = PartitionProduceData(self._index, memoryview(bytearray(sent.data)))
        data = TopicProduceData(self._topic, topic_id, [part])
        request = ProduceRequest(None, ACKS_ALL, TIMEOUT_MS, [data])
        try:
            answer = await self._client.ask(leader, PRODUCE, request, connection_number=connection_number)
        except CONNECTION_ERRORS:
            return None
        outcome = answer.responses[0].partition_responses[0]
        code = ErrorCode(outcome.error_code)
        if code is ErrorCode.NONE:
            header = parse_header(sent.data)
            self._cluster.ledger(topic_id, self._topic, self._index).acknowledged(header, outcome.base_offset)
            self._end = max(self._end, outcome.base_offset + header.next_offset - header.base_offset)
            self._cluster.trace_and_hash(f"{self._client.name} {sent.number} at {outcome.base_offset}")
        elif code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._is_deleted(topic_id, sent):
            return ErrorCode.NONE
        elif code not in RETRIABLE_ERRORS and code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self._cluster.violate(f"{self._client.name} is told {code.name}: {outcome.error_message}")
        return code

    def _is_deleted(self, topic_id: TopicId, sent: SentBatch) -> bool:
        """Whether the batch is committed and deleted, and no leader need remember it.

        A replica whose log was replaced from an offset behind this batch knows the producer by later batches
        only, as in Kafka.
        """
        header = parse_header(sent.data)
        ledger = self._cluster.ledger(topic_id, self._topic, self._index)
        return ledger.has_deleted(header.producer_id, header.base_sequence)


class CarelessProducer:
    def __init__(self, cluster: "SimCluster", name: str, topic: str, indexes: Sequence[int]) -> None:
        """`indexes`: the partitions. Each batch goes to one of them."""
        self._client = KafkaClient(cluster, name)
        self._cluster = cluster
        self._topic = topic
        self._indexes = indexes

    def start(self) -> None:
        self._client.run(self._run())

    async def _run(self) -> None:
        number = 0
        while self._cluster.is_producing:
            number += 1
            now_ms = WALL_BEGINS_MS + int(self._cluster.loop.now * 1000)
            key = b"careless" if self._cluster.plan.log is not None else None
            batch = build_batch([Record(NO_OFFSET, now_ms, key, b"careless %d" % number)])
            await self._send(batch)
            await self._client.pause(self._cluster.plan.pause_seconds)

    async def _send(self, batch: bytes) -> None:
        index = self._indexes[0] if len(self._indexes) == 1 else self._client.random.choice(self._indexes)
        found = await self._client.leader(self._topic, index)
        if found is None:
            return
        topic, leader = found
        part = PartitionProduceData(index, memoryview(bytearray(batch)))
        data = TopicProduceData(self._topic, topic.id, [part])
        try:
            answer = await self._client.ask(
                leader, PRODUCE, ProduceRequest(None, ACKS_LEADER, TIMEOUT_MS, [data])
            )
            code = answer.responses[0].partition_responses[0].error_code
        except CONNECTION_ERRORS:
            code = -1
        if code:
            self._client.forget_topic(self._topic)
