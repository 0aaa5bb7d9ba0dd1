"""Members of a consumer group (KIP-848): they join, receive an assignment, consume it, and commit offsets.

Invariant 1: a committed offset never moves back. A coordinator returns at least the offset that was
acknowledged before the request was sent, whichever member committed it and whichever broker coordinates.
Invariant 2: a partition has one owner. The coordinator assigns it to a new member only after one of these:
the last owner reported that it gave it up; the last owner was silent for a session timeout; or the last
owner had to revoke partitions and did not within the rebalance timeout, and so is no longer a member. Only
replies of the current coordinator count. A coordinator that was replaced and has not received the change
keeps replying, as in Kafka: from its memory, and with what other brokers with stale metadata confirm.

Rule: A member commits what it has read, under the member epoch under which it owns the partition. It stops
      using a partition before it reports the revocation. A commit that it sent earlier may arrive later and
      is then rejected.
"""

from collections.abc import Container, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.coordinator.shard_placement import shard_of
from penstock.errors import ErrorCode
from penstock.metadata.cluster_image import GROUP_TOPIC
from penstock.protocol.messages.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from penstock.protocol.messages.offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from penstock.sim.cluster.clients.client import CONNECTION_ERRORS, KafkaClient
from penstock.sim.cluster.clients.partition_reader import PartitionReader
from penstock.types import TopicId

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

GROUP: Final = "group"
HEARTBEAT_SECONDS: Final = 0.7
SESSION_SECONDS_MIN: Final = 3.0
"""A session lasts four seconds, and a coordinator's clock may run fast."""
REBALANCE_MS: Final = 5_000
REBALANCE_SECONDS_MIN: Final = 3.75
"""The rebalance timeout by a clock that runs fast."""
LEAVES_SHARE: Final = 0.02
FETCHES_AT_END: Final = 20
NO_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
REJOIN: Final = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH}
)
HAS_LEFT: Final = frozenset({ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND})
"""Codes that confirm a leave. Kafka replies GROUP_ID_NOT_FOUND if the coordinator has no consumer group of
that name, or only a classic one: then the member's session ended before, so the member has left.
"""
COORDINATOR_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
OwnedPartition = tuple[TopicId, int]


class Owner(NamedTuple):
    member: str
    requested_at: float
    """When it sent the request whose reply last confirmed the ownership."""
    reconciled_at: float
    """When it sent the last request whose reply did not make it revoke anything."""

    def may_have_expired(self, now: float) -> bool:
        is_silent = now >= self.requested_at + SESSION_SECONDS_MIN
        return is_silent or now >= self.reconciled_at + REBALANCE_SECONDS_MIN


class GroupProgress:
    """The group's acknowledged offsets, and the owner of each partition."""

    def __init__(self) -> None:
        self.acknowledged: dict[OwnedPartition, int] = {}
        self._owners: dict[OwnedPartition, Owner] = {}

    def confirm_owner(self, owner: Owner, owned: Iterable[OwnedPartition], now: float) -> str | None:
        """Record the owner of partitions that the coordinator has confirmed.

        Returns a description of a violation.
        """
        for each in owned:
            other = self._owners.get(each)
            if other is not None and other.member != owner.member and not other.may_have_expired(now):
                return f"{owner.member} is given partition {each[1]}, which is {other}'s"
            self._owners[each] = owner
        return None

    def release(self, member: str, kept: Container[OwnedPartition] = ()) -> None:
        """Remove the member as owner of all other partitions: it gave them up, or is about to report that."""
        given_up = [
            each for each, owner in self._owners.items() if owner.member == member and each not in kept
        ]
        for each in given_up:
            del self._owners[each]

    def commit(self, owned: OwnedPartition, offset: int) -> None:
        self.acknowledged[owned] = max(offset, self.acknowledged.get(owned, 0))


class SimGroupMember:
    def __init__(self, cluster: "SimCluster", name: str) -> None:
        self._client = KafkaClient(cluster, name)
        self._cluster = cluster
        self._progress = cluster.places
        self._lives = 0
        self._id = ""
        self._epoch = NO_EPOCH
        self._was_answered = False
        """Whether the last heartbeat got a reply. If not, the member sends a full heartbeat and gets a full
        reply: a request to revoke a partition may have been lost.
        """
        self._reconciled_at = 0.0
        self._coordinator: int | None = None
        self._readers: dict[OwnedPartition, PartitionReader] = {}
        self._committed: dict[OwnedPartition, int] = {}
        self._assignment: tuple[OwnedPartition, ...] = ()
        self._old_commit: OffsetCommitRequest | None = None
        """A commit that is sent once more later, as a slow network may deliver it twice."""

    def start(self) -> None:
        self._client.run(self._run())

    async def _run(self) -> None:
        self._rejoin_as_new()
        while True:
            if self._coordinator is None:
                self._coordinator = await self._client.coordinator(GROUP)
            if self._coordinator is not None:
                await self._stay_member()
                await self._consume()
            await self._client.pause(HEARTBEAT_SECONDS)

    def _rejoin_as_new(self) -> None:
        self._progress.release(self._client.name)
        self._lives += 1
        self._id = f"{self._client.name}-{self._lives}"
        self._epoch, self._was_answered = NO_EPOCH, False
        self._readers, self._committed, self._assignment = {}, {}, ()

    def _failed(self, code: ErrorCode | None) -> None:
        """Handle an error code. None: there was no reply."""
        if code in REJOIN:
            self._rejoin_as_new()
        elif code is None or code in COORDINATOR_ERRORS:
            self._coordinator = None
        else:
            self._cluster.violate(f"{self._client.name} is told {code.name}")

    # Membership

    async def _stay_member(self) -> None:
        assert self._coordinator is not None
        leaves = self._epoch > 0 and self._client.random.random() < LEAVES_SHARE
        requested_at = self._cluster.loop.now
        is_full_heartbeat, self._was_answered = not self._was_answered, False
        # A heartbeat gives up every partition that it does not list, even one that was assigned and not yet
        # read.
        named = tuple(self._readers)
        self._progress.release(self._client.name, () if leaves else named)
        owned: dict[TopicId, list[int]] = {}
        for topic_id, index in named:
            owned.setdefault(topic_id, []).append(index)
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self._id,
            member_epoch=LEAVE_EPOCH if leaves else self._epoch,
            rebalance_timeout_ms=REBALANCE_MS if is_full_heartbeat else -1,
            subscribed_topic_names=list(self._cluster.topics) if is_full_heartbeat else None,
            topic_partitions=[HeartbeatTopicPartitions(each, indexes) for each, indexes in owned.items()],
        )
        coordinator = self._coordinator
        try:
            answer = await self._client.ask(coordinator, CONSUMER_GROUP_HEARTBEAT, request)
        except CONNECTION_ERRORS:
            self._coordinator = None
            return
        code = ErrorCode(answer.error_code)
        if leaves and code in HAS_LEFT:
            self._rejoin_as_new()
        elif code is not ErrorCode.NONE:
            self._failed(code)
        else:
            self._was_answered = True
            self._apply_assignment(answer)
            if not self._is_current_coordinator(coordinator):
                return
            if set(named).issubset(self._assignment):
                self._reconciled_at = requested_at
            self._confirm_ownership(requested_at)

    def _is_current_coordinator(self, coordinator: int) -> bool:
        topic = self._cluster.truth.image.topics[GROUP_TOPIC]
        return topic.partitions[shard_of(GROUP, len(topic.partitions))].leader == coordinator

    def _confirm_ownership(self, requested_at: float) -> None:
        self._progress.release(self._client.name, self._assignment)
        owner = Owner(self._client.name, requested_at, self._reconciled_at)
        wrong = self._progress.confirm_owner(owner, self._assignment, self._cluster.loop.now)
        if wrong is not None:
            self._cluster.violate(wrong)

    def _apply_assignment(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        self._epoch = answer.member_epoch
        self._resend_old_commit()
        if answer.assignment is None:
            return
        self._assignment = tuple(
            (each.topic_id, index) for each in answer.assignment.topic_partitions for index in each.partitions
        )
        self._readers = {
            owned: reader for owned, reader in self._readers.items() if owned in self._assignment
        }

    def _resend_old_commit(self) -> None:
        """Send a commit of an earlier member epoch again. It must not count."""
        old_commit, self._old_commit = self._old_commit, None
        if old_commit is None or old_commit.generation_id_or_member_epoch == self._epoch:
            self._old_commit = old_commit
        elif self._coordinator is not None:
            self._client.run(self._send_old_commit(self._coordinator, old_commit))

    async def _send_old_commit(self, coordinator: int, old_commit: OffsetCommitRequest) -> None:
        await self._client.pause(1.0)
        with suppress(*CONNECTION_ERRORS):
            self._cluster.fault_counts["duplicate"] += 1
            answer = await self._client.ask(coordinator, OFFSET_COMMIT, old_commit, connection_number=2)
            if answer.topics[0].partitions[0].error_code == ErrorCode.NONE:
                self._cluster.violate(f"{old_commit} counts although its epoch is over")

    # Reading

    async def _consume(self) -> None:
        for owned in self._assignment:
            if owned not in self._readers:
                await self._start_reading(owned)
        for owned, reader in tuple(self._readers.items()):
            await self._read(reader)
            if reader.offset > self._committed.get(owned, 0):
                await self._commit(owned, reader)

    async def _read(self, reader: PartitionReader) -> None:
        """Fetch once.

        At the end of the run fetch many times, so that a member that was held up for long catches up.
        """
        for _ in range(1 if self._cluster.is_producing else FETCHES_AT_END):
            before = reader.offset
            await reader.step()
            if reader.offset == before:
                return

    async def _start_reading(self, owned: OwnedPartition) -> None:
        """Start to read a partition at the group's committed offset."""
        place = await self._fetch_committed_offset(owned)
        name = self._cluster.topic_name(owned[0])
        if place is None or name is None:
            return
        reader = PartitionReader(self._client, name, owned[1])
        reader.offset = place
        self._readers[owned] = reader
        self._committed[owned] = place

    async def find_coordinator(self) -> int:
        """The coordinator, looked up until a broker returns it."""
        while (found := await self._client.coordinator(GROUP)) is None:
            await self._client.pause()
        return found

    async def find_committed_offset(self, owned: OwnedPartition) -> int:
        """The group's committed offset, requested until a coordinator returns it."""
        while True:
            if self._coordinator is None:
                self._coordinator = await self.find_coordinator()
            place = await self._fetch_committed_offset(owned)
            if place is not None:
                return place
            await self._client.pause()

    async def _fetch_committed_offset(self, owned: OwnedPartition) -> int | None:
        """The group's committed offset. None: no coordinator returned it."""
        if self._coordinator is None:
            return None
        least = self._progress.acknowledged.get(owned, 0)
        topic = OffsetFetchRequestTopic("", owned[0], [owned[1]])
        group = OffsetFetchRequestGroup(GROUP, None, -1, [topic])
        try:
            answer = await self._client.ask(
                self._coordinator, OFFSET_FETCH, OffsetFetchRequest(groups=[group])
            )
        except CONNECTION_ERRORS:
            self._coordinator = None
            return None
        found = answer.groups[0]
        code = ErrorCode(found.error_code)
        if code is not ErrorCode.NONE:
            self._failed(code)
            return None
        place = found.topics[0].partitions[0]
        if place.error_code:
            return None
        offset = max(place.committed_offset, 0)
        if offset < least:
            self._cluster.violate(f"the group is at {offset} of {owned[1]}; {least} was acknowledged")
        return offset

    async def _commit(self, owned: OwnedPartition, reader: PartitionReader) -> None:
        if self._coordinator is None or owned not in self._readers:
            return
        offset = reader.offset
        part = OffsetCommitRequestPartition(owned[1], offset)
        topic = OffsetCommitRequestTopic("", owned[0], [part])
        request = OffsetCommitRequest(GROUP, self._epoch, self._id, topics=[topic])
        self._old_commit = self._old_commit or request
        try:
            answer = await self._client.ask(
                self._coordinator, OFFSET_COMMIT, request, connection_number=1, seconds=1.0
            )
        except CONNECTION_ERRORS:
            self._coordinator = None
            return
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
        if code is ErrorCode.NONE:
            self._progress.commit(owned, offset)
            self._committed[owned] = offset
            self._cluster.trace_and_hash(f"{self._client.name} commits {offset} of {owned[1]}")
        elif code is not ErrorCode.UNKNOWN_TOPIC_ID:
            self._failed(code)
