"""Simulated readers: each reads one partition from its beginning, and again from there at the end.

Every record that a reader gets is the committed one at that offset. Its offset never moves back, and it
misses no record that was not deleted. Readers of a single broker also go to any offset, ask for any number
of bytes, and look up offsets by time. Some readers send their leader epoch, as newer clients do. Then the
replying broker leads in that epoch, and the end offset that it returns never moves back.
"""

from contextlib import suppress
from typing import Final, NamedTuple

from penstock.errors import ErrorCode
from penstock.protocol.batches import split_batches
from penstock.protocol.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchTopic, PartitionData
from penstock.protocol.messages.list_offsets import ListOffsetsPartition
from penstock.sim.cluster.clients.client import CONNECTION_ERRORS, NO_LEADER_EPOCH, KafkaClient, TopicLeaders
from penstock.sim.cluster.clients.producers import TIMESTAMP_SPREAD_MS
from penstock.types import TopicId

WAIT_MS: Final = 300
BYTES_MAX: Final = 20_000
SENDS_EPOCH_SHARE: Final = 0.7
CHECKS_END_SHARE: Final = 0.1
JUMPS_SHARE: Final = 0.3
LOOKS_UP_SHARE: Final = 0.2
BYTES_MAX_OF_SINGLE_BROKER: Final = (1, 150, 1_000, 1_000_000)
RETRIABLE_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)


class NamedEpochEnd(NamedTuple):
    """The end offset last returned by a leader for a request that named this epoch."""

    epoch: int
    end: int


class PartitionReader:
    """Reads one partition."""

    def __init__(self, client: KafkaClient, topic: str, index: int) -> None:
        self.client = client
        self._cluster = client.cluster
        self._topic = topic
        self._index = index
        self.offset = 0
        self._bytes_max = BYTES_MAX
        self._sends_epoch = client.random.random() < SENDS_EPOCH_SHARE
        self._seen = NamedEpochEnd(NO_LEADER_EPOCH, 0)

    def start(self) -> None:
        self.client.run(self._run())

    async def _run(self) -> None:
        while True:
            if self._cluster.plan.log is not None:
                await self._jump()
            await self.step()
            await self.client.pause()

    async def _jump(self) -> None:
        """Read with another limit, now and then another part of the log, or look up a time."""
        self._bytes_max = self.client.random.choice(BYTES_MAX_OF_SINGLE_BROKER)
        found = await self.client.leader(self._topic, self._index)
        if found is None:
            return
        topic, leader = found
        ledger, random = self._cluster.ledger(topic.id, self._topic, self._index), self.client.random
        if ledger.start_max < ledger.end and random.random() < JUMPS_SHARE:
            self.offset = random.randrange(ledger.start_max, ledger.end)
        if random.random() < LOOKS_UP_SHARE:
            timestamp = self._cluster.nodes[leader].wall_ms() - random.randrange(2 * TIMESTAMP_SPREAD_MS)
            request = ListOffsetsPartition(self._index, self._epoch(topic), timestamp)
            end = ledger.end
            with suppress(*CONNECTION_ERRORS):
                if (offset := await self.client.list_offset(self._topic, leader, request)) is not None:
                    ledger.looked_up(timestamp, offset, end)

    async def until(self, end: int) -> None:
        """Read until everything below `end` has been read."""
        while self.offset < end:
            await self.step()

    async def step(self) -> None:
        """Send one fetch, and compare the records with the committed ones."""
        found = await self.client.leader(self._topic, self._index)
        if found is None:
            return
        topic, leader = found
        share = self._cluster.plan.extras.follower_reads
        if share and self.client.random.random() < share:
            await self._fetch_from_any_broker(topic)
            return
        requested_at = self._cluster.loop.now
        ledger = self._cluster.ledger(topic.id, self._topic, self._index)
        deleted = ledger.deleted
        try:
            if self.client.random.random() < CHECKS_END_SHARE:
                await self._check_end_offset(topic, leader)
            requested_at = self._cluster.loop.now
            data = await self._fetch(topic, leader, self._epoch(topic))
        except CONNECTION_ERRORS:
            data = None
        if data is None or data.error_code in RETRIABLE_ERRORS:
            self.client.forget_topic(self._topic)
            await self.client.pause()
            return
        code = ErrorCode(data.error_code)
        # Only a deletion may make an offset unreadable, or the loss of what a single broker had not flushed.
        is_gone = self.offset < ledger.start_max or self.offset > ledger.end
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and is_gone:
            await self._seek_to_start(topic, leader)
            return
        if code is not ErrorCode.NONE:
            self._cluster.violate(
                f"{self.client.name} asks node-{leader} for {self._topic}-{self._index} at {self.offset}, "
                f"under epoch {self._epoch(topic)}: {code.name}"
            )
        self._check_leader_reply(topic, leader, requested_at, data.high_watermark)
        if not data.log_start_offset <= data.last_stable_offset <= data.high_watermark:
            self._cluster.violate(f"{self.client.name} is told {data}")
        if self._is_current_leader(topic, leader) and data.log_start_offset < deleted:
            self._cluster.violate(
                f"{self._topic}-{self._index} on node-{leader} starts at {data.log_start_offset}; it was "
                f"confirmed that {deleted} is the start"
            )
        self._accept_records(topic.id, data)

    def _is_current_leader(self, topic: TopicLeaders, node_id: int) -> bool:
        """Whether the node leads according to the metadata store, and its process has begun to lead."""
        state = self._cluster.truth.image.topics_by_id[topic.id].partitions[self._index]
        partition_id = (topic.id, self._index)
        return state.leader == node_id and self._cluster.watching.leads(
            node_id, partition_id, state.leader_epoch
        )

    async def _seek_to_start(self, topic: TopicLeaders, leader: int) -> None:
        """Move to the log start offset after the requested records were deleted."""
        start = None
        with suppress(*CONNECTION_ERRORS):
            start = await self.client.start(self._topic, self._index, leader, self._epoch(topic))
        if start is None:
            self.client.forget_topic(self._topic)
            await self.client.pause()
        else:
            self.offset = start

    def _epoch(self, topic: TopicLeaders) -> int:
        return topic.epochs[self._index] if self._sends_epoch else NO_LEADER_EPOCH

    async def _check_end_offset(self, topic: TopicLeaders, leader: int) -> None:
        """Check ListOffsets: it returns no uncommitted offset, and nothing lower than before."""
        requested_at = self._cluster.loop.now
        end = await self.client.end(self._topic, self._index, leader, self._epoch(topic))
        if end is None:
            return
        committed = self._cluster.ledger(topic.id, self._topic, self._index).end
        if end > committed:
            self._cluster.violate(f"{self.client.name} is told that {end} is the end; it is {committed}")
        self._check_leader_reply(topic, leader, requested_at, end)

    def _check_leader_reply(self, topic: TopicLeaders, node_id: int, requested_at: float, end: int) -> None:
        """Check a reply of a broker that leads under the named epoch."""
        epoch = self._epoch(topic)
        if epoch == NO_LEADER_EPOCH:
            return
        watching, partition_id = self._cluster.watching, (topic.id, self._index)
        watching.require_epoch(node_id, partition_id, epoch, requested_at)
        if not watching.leads(node_id, partition_id, epoch):
            return
        if epoch == self._seen.epoch and end < self._seen.end:
            self._cluster.violate(f"{self.client.name} is told {end} after {self._seen}")
        self._seen = NamedEpochEnd(epoch, end)

    async def _fetch_from_any_broker(self, topic: TopicLeaders) -> None:
        """Fetch from any broker without naming a leader epoch.

        A follower replies to that; it may be behind, or no replica.
        """
        try:
            data = await self._fetch(topic, self.client.any_broker(), NO_LEADER_EPOCH)
        except CONNECTION_ERRORS:
            return
        if data.error_code == ErrorCode.NONE:
            self._accept_records(topic.id, data)
        elif data.error_code not in (*RETRIABLE_ERRORS, ErrorCode.OFFSET_OUT_OF_RANGE):
            code = ErrorCode(data.error_code)
            self._cluster.violate(f"{self.client.name} asks a follower at {self.offset}: {code.name}")

    async def _fetch(self, topic: TopicLeaders, node_id: int, epoch: int) -> PartitionData:
        partition_request = FetchPartition(
            self._index, epoch, self.offset, partition_max_bytes=self._bytes_max
        )
        topic_request = FetchTopic(self._topic, topic.id, [partition_request])
        request = FetchRequest(max_wait_ms=WAIT_MS, min_bytes=1, topics=[topic_request], session_epoch=-1)
        answer = await self.client.ask(node_id, FETCH, request)
        return answer.responses[0].partitions[0]

    def _accept_records(self, topic_id: TopicId, data: PartitionData) -> None:
        if not data.records:
            return
        ledger = self._cluster.ledger(topic_id, self._topic, self._index)
        assert isinstance(data.records, memoryview | bytes | bytearray)
        for at, header in split_batches(data.records):
            if header.next_offset <= self.offset:
                continue
            ledger.read(header, bytes(data.records[at : at + header.size]), self.offset)
            if header.base_offset > self.offset:
                self._cluster.violate(
                    f"{self.client.name} wants {self.offset} and is given {header.base_offset}"
                )
            self.offset = header.next_offset
        self._cluster.trace_and_hash(f"{self.client.name} at {self.offset}")
