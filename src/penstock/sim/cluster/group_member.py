"""Members of a consumer group (KIP-848): they join, are given partitions, read them, and commit their places.

A group's place in a partition never goes back: whoever asks for it is told at least what was acknowledged
before it asked, whichever member that was, and whatever coordinator. And a partition has one owner: nobody is
given it before the last owner said that he gave it up, or was silent for as long as a session lasts, or had
something to give up and did not for as long as a rebalance may take: then he is a member no more. What counts
is what the coordinator in office says. One that was replaced and has not heard of it answers on, as in Kafka:
from what it remembers, and with what others still confirm because they have not heard of it either.

Rule: a member commits what it has read, under the epoch under which it owns the partition. It gives a
      partition up before it says so, but what it has sent before may arrive later: it is refused then.
"""

from collections.abc import Container, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.coordinator.placement import shard_of
from penstock.errors import ErrorCode
from penstock.metadata.facts import GROUP_TOPIC
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
from penstock.sim.cluster.client import TROUBLE, Client
from penstock.sim.cluster.consuming import Reader
from penstock.types import TopicId

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

GROUP: Final = "group"
HEARTBEAT_SECONDS: Final = 0.7
SESSION_SECONDS_MIN: Final = 3.0
"""A session lasts for four, and a coordinator's clock may run fast."""
REBALANCE_MS: Final = 5_000
REBALANCE_SECONDS_MIN: Final = 3.75
"""By a clock that runs fast."""
LEAVES_SHARE: Final = 0.02
PIECES_AT_END: Final = 20
NO_EPOCH: Final = 0
LEAVES: Final = -1
REJOIN: Final = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH}
)
HAS_LEFT: Final = frozenset({ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND})
"""Kafka answers a leave with GROUP_ID_NOT_FOUND where the coordinator has no consumer group, or only a
classic one: the member's session ended before, and a member that is not there has left."""
ELSEWHERE: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
Owned = tuple[TopicId, int]


class Owner(NamedTuple):
    member: str
    asked_at: float
    """When it asked for what was the last answer that it is the owner."""
    settled_at: float
    """When it last asked, and was told to give up nothing."""

    def may_be_gone(self, now: float) -> bool:
        is_silent = now >= self.asked_at + SESSION_SECONDS_MIN
        return is_silent or now >= self.settled_at + REBALANCE_SECONDS_MIN


class Places:
    """How far the group was told that its place is kept, and who has which partition."""

    def __init__(self) -> None:
        self.acknowledged: dict[Owned, int] = {}
        self._owners: dict[Owned, Owner] = {}

    def confirmed(self, owner: Owner, owned: Iterable[Owned], now: float) -> str | None:
        """The coordinator has told the member that these are its own. Returns what is wrong with that."""
        for each in owned:
            other = self._owners.get(each)
            if other is not None and other.member != owner.member and not other.may_be_gone(now):
                return f"{owner.member} is given partition {each[1]}, which is {other}'s"
            self._owners[each] = owner
        return None

    def left(self, member: str, kept: Container[Owned] = ()) -> None:
        """It owns nothing else any more, or is about to say so."""
        given_up = [
            each for each, owner in self._owners.items() if owner.member == member and each not in kept
        ]
        for each in given_up:
            del self._owners[each]

    def commit(self, owned: Owned, offset: int) -> None:
        self.acknowledged[owned] = max(offset, self.acknowledged.get(owned, 0))


class Member:
    def __init__(self, cluster: "SimCluster", name: str) -> None:
        self._client = Client(cluster, name)
        self._cluster = cluster
        self._places = cluster.places
        self._lives = 0
        self._id = ""
        self._epoch = NO_EPOCH
        self._was_answered = False
        """Where it was not, it says everything again, and is told everything again: that it is to give
        something up may have got lost."""
        self._settled_at = 0.0
        self._coordinator: int | None = None
        self._readers: dict[Owned, Reader] = {}
        self._committed: dict[Owned, int] = {}
        self._wanted: tuple[Owned, ...] = ()
        self._sent: OffsetCommitRequest | None = None
        """A commit that a slow network may bring once more."""

    def start(self) -> None:
        self._client.run(self._run())

    async def _run(self) -> None:
        self._begin_anew()
        while True:
            if self._coordinator is None:
                self._coordinator = await self._client.coordinator(GROUP)
            if self._coordinator is not None:
                await self._report()
                await self._work()
            await self._client.rest(HEARTBEAT_SECONDS)

    def _begin_anew(self) -> None:
        self._places.left(self._client.name)
        self._lives += 1
        self._id = f"{self._client.name}-{self._lives}"
        self._epoch, self._was_answered = NO_EPOCH, False
        self._readers, self._committed, self._wanted = {}, {}, ()

    def _failed(self, code: ErrorCode | None) -> None:
        """None: nobody answered."""
        if code in REJOIN:
            self._begin_anew()
        elif code is None or code in ELSEWHERE:
            self._coordinator = None
        else:
            self._cluster.violate(f"{self._client.name} is told {code.name}")

    # Membership

    async def _report(self) -> None:
        assert self._coordinator is not None
        leaves = self._epoch > 0 and self._client.random.random() < LEAVES_SHARE
        asked_at = self._cluster.loop.now
        says_all, self._was_answered = not self._was_answered, False
        # What it does not name it gives up, also what it was given and has not begun with.
        named = tuple(self._readers)
        self._places.left(self._client.name, () if leaves else named)
        owned: dict[TopicId, list[int]] = {}
        for topic_id, index in named:
            owned.setdefault(topic_id, []).append(index)
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self._id,
            member_epoch=LEAVES if leaves else self._epoch,
            rebalance_timeout_ms=REBALANCE_MS if says_all else -1,
            subscribed_topic_names=list(self._cluster.topics) if says_all else None,
            topic_partitions=[HeartbeatTopicPartitions(each, indexes) for each, indexes in owned.items()],
        )
        coordinator = self._coordinator
        try:
            answer = await self._client.ask(coordinator, CONSUMER_GROUP_HEARTBEAT, request)
        except TROUBLE:
            self._coordinator = None
            return
        code = ErrorCode(answer.error_code)
        if leaves and code in HAS_LEFT:
            self._begin_anew()
        elif code is not ErrorCode.NONE:
            self._failed(code)
        else:
            self._was_answered = True
            self._follow(answer)
            if not self._is_in_office(coordinator):
                return
            if set(named).issubset(self._wanted):
                self._settled_at = asked_at
            self._claim(asked_at)

    def _is_in_office(self, coordinator: int) -> bool:
        topic = self._cluster.truth.image.topics[GROUP_TOPIC]
        return topic.partitions[shard_of(GROUP, len(topic.partitions))].leader == coordinator

    def _claim(self, asked_at: float) -> None:
        self._places.left(self._client.name, self._wanted)
        owner = Owner(self._client.name, asked_at, self._settled_at)
        wrong = self._places.confirmed(owner, self._wanted, self._cluster.loop.now)
        if wrong is not None:
            self._cluster.violate(wrong)

    def _follow(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        self._epoch = answer.member_epoch
        self._repeat()
        if answer.assignment is None:
            return
        self._wanted = tuple(
            (each.topic_id, index) for each in answer.assignment.topic_partitions for index in each.partitions
        )
        self._readers = {owned: reader for owned, reader in self._readers.items() if owned in self._wanted}

    def _repeat(self) -> None:
        """What was sent under an epoch that is over arrives again, and must not count."""
        late, self._sent = self._sent, None
        if late is None or late.generation_id_or_member_epoch == self._epoch:
            self._sent = late
        elif self._coordinator is not None:
            self._client.run(self._arrive_late(self._coordinator, late))

    async def _arrive_late(self, coordinator: int, late: OffsetCommitRequest) -> None:
        await self._client.rest(1.0)
        with suppress(*TROUBLE):
            self._cluster.struck["duplicate"] += 1
            answer = await self._client.ask(coordinator, OFFSET_COMMIT, late, way=2)
            if answer.topics[0].partitions[0].error_code == ErrorCode.NONE:
                self._cluster.violate(f"{late} counts although its epoch is over")

    # Reading

    async def _work(self) -> None:
        for owned in self._wanted:
            if owned not in self._readers:
                await self._take_over(owned)
        for owned, reader in tuple(self._readers.items()):
            await self._read(reader)
            if reader.offset > self._committed.get(owned, 0):
                await self._commit(owned, reader)

    async def _read(self, reader: Reader) -> None:
        """A piece; at the end many, so that whoever was kept from reading for long gets there."""
        for _ in range(1 if self._cluster.is_producing else PIECES_AT_END):
            before = reader.offset
            await reader.step()
            if reader.offset == before:
                return

    async def _take_over(self, owned: Owned) -> None:
        """Begin where the group is."""
        place = await self._place_of(owned)
        name = self._cluster.topic_name(owned[0])
        if place is None or name is None:
            return
        reader = Reader(self._client, name, owned[1])
        reader.offset = place
        self._readers[owned] = reader
        self._committed[owned] = place

    async def find_coordinator(self) -> int:
        """Asked until somebody says."""
        while (found := await self._client.coordinator(GROUP)) is None:
            await self._client.rest()
        return found

    async def find_place(self, owned: Owned) -> int:
        """Where the group is, asked until somebody says."""
        while True:
            if self._coordinator is None:
                self._coordinator = await self.find_coordinator()
            place = await self._place_of(owned)
            if place is not None:
                return place
            await self._client.rest()

    async def _place_of(self, owned: Owned) -> int | None:
        """Where the group is; None: nobody says."""
        if self._coordinator is None:
            return None
        least = self._places.acknowledged.get(owned, 0)
        topic = OffsetFetchRequestTopic("", owned[0], [owned[1]])
        group = OffsetFetchRequestGroup(GROUP, None, -1, [topic])
        try:
            answer = await self._client.ask(
                self._coordinator, OFFSET_FETCH, OffsetFetchRequest(groups=[group])
            )
        except TROUBLE:
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

    async def _commit(self, owned: Owned, reader: Reader) -> None:
        if self._coordinator is None or owned not in self._readers:
            return
        offset = reader.offset
        part = OffsetCommitRequestPartition(owned[1], offset)
        topic = OffsetCommitRequestTopic("", owned[0], [part])
        request = OffsetCommitRequest(GROUP, self._epoch, self._id, topics=[topic])
        self._sent = self._sent or request
        try:
            answer = await self._client.ask(self._coordinator, OFFSET_COMMIT, request, way=1, seconds=1.0)
        except TROUBLE:
            self._coordinator = None
            return
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
        if code is ErrorCode.NONE:
            self._places.commit(owned, offset)
            self._committed[owned] = offset
            self._cluster.noted(f"{self._client.name} commits {offset} of {owned[1]}")
        elif code is not ErrorCode.UNKNOWN_TOPIC_ID:
            self._failed(code)
