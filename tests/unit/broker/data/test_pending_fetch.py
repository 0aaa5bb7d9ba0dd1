"""A fetch that waits: when it looks again, what it costs, and that it lets go of everything."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from penstock.broker.context import RequestContext
from penstock.broker.data.fetch_reader import FetchParams, FetchResult
from penstock.broker.data.fetch_sessions import FetchPartitionKey, FetchTarget, ResolvedFetch
from penstock.broker.data.pending_fetch import FetchCapacity, PendingFetch
from penstock.broker.router import DeferredReply
from penstock.limits import FETCH_SESSION_PARTITIONS_MAX
from penstock.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, PartitionData
from penstock.security.access import ANONYMOUS, AllowEverything
from penstock.types import NO_TOPIC_ID

CONTEXT = RequestContext(ANONYMOUS, "PLAINTEXT", "peer", AllowEverything())


class FakePartition:
    def __init__(self) -> None:
        self.fetch_waits: dict[Any, int] = {}
        self.follower_waits = self.fetch_waits
        self.log_start = 0
        self.committed_bytes = 0
        self.offline_error: object | None = None

    def shows(self, count: int) -> None:
        self.committed_bytes += count
        self.wake()

    def wake(self) -> None:
        for wake, number in tuple(self.fetch_waits.items()):
            wake(number)


class FakeReader:
    """Reads whatever its partitions have shown, and counts how often it was asked to."""

    def __init__(self, partitions: int = 1, watched_max: int = FETCH_SESSION_PARTITIONS_MAX) -> None:
        self.capacity = FetchCapacity(lambda: self.free_reply_bytes, 2**20, watched_max)
        self.partitions = [FakePartition() for _ in range(partitions)]
        self.free_reply_bytes = 2**20
        self.reads = 0
        self.moved: list[int] = []

    def find(self, key: FetchPartitionKey) -> FakePartition:
        return self.partitions[key.partition]

    def gather(self, targets: list[FetchTarget], params: FetchParams, context: RequestContext) -> FetchResult:
        self.reads += 1
        gathered = FetchResult(params)
        gathered.ends_wait = any(each.offline_error for each in self.partitions)
        for entry, partition in zip(targets, self.partitions, strict=True):
            gathered.size += partition.committed_bytes
            gathered.answers.append(self.answer(entry.key.partition))
        return gathered

    def gather_again(
        self,
        targets: list[FetchTarget],
        params: FetchParams,
        context: RequestContext,
        idle: list[PartitionData],
        moved: Iterable[int],
    ) -> FetchResult:
        """Only those that moved."""
        self.reads += 1
        self.moved = sorted(moved)
        gathered = FetchResult(params)
        gathered.answers = idle.copy()
        for number in self.moved:
            gathered.ends_wait |= self.partitions[number].offline_error is not None
            gathered.size += self.partitions[number].committed_bytes
            gathered.answers[number] = self.answer(number)
        return gathered

    def answer(self, number: int) -> PartitionData:
        partition = self.partitions[number]
        return PartitionData(number, 0, 0, 0, partition.log_start, records=b"x" * partition.committed_bytes)

    def begin(
        self, *, wait_ms: int = 60_000, bytes_min: int = 1, replica_id: int = -1
    ) -> FetchResponse | DeferredReply:
        targets = [
            FetchTarget(FetchPartitionKey("t", NO_TOPIC_ID, number), FetchPartition(partition=number))
            for number in range(len(self.partitions))
        ]
        for entry in targets:
            entry.sent_log_start = 0
        request = FetchRequest(replica_id=replica_id, max_wait_ms=wait_ms, min_bytes=bytes_min)
        fetching = ResolvedFetch(targets, None, is_incremental=False)
        params = FetchParams.of(request, CONTEXT.version, is_rack_aware=False)
        reader, tasks = cast(Any, self), cast(Any, None)
        return PendingFetch(reader, self.capacity, tasks, params, fetching, CONTEXT).begin()

    def is_let_go(self) -> bool:
        return self.capacity.watched == 0 and not any(partition.fetch_waits for partition in self.partitions)


def waiting(answer: FetchResponse | DeferredReply) -> list[FetchResponse]:
    """Where the reply will be, once there is one."""
    assert isinstance(answer, DeferredReply)
    replies: list[Any] = []
    answer.then(replies.append)
    return replies


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_enough_is_answered_at_once() -> None:
    fetch = FakeReader()
    fetch.partitions[0].committed_bytes = 10
    assert isinstance(fetch.begin(bytes_min=10), FetchResponse)
    assert fetch.is_let_go()


async def test_it_waits_until_there_is_enough_and_reads_once_for_it() -> None:
    fetch = FakeReader()
    fetch.partitions[0].committed_bytes = 100
    replies = waiting(fetch.begin(bytes_min=1000))
    for _ in range(80):
        fetch.partitions[0].shows(10)
        await turn()
    assert (replies, fetch.reads) == ([], 1), "what is there is not read to be counted"
    fetch.partitions[0].shows(100)
    await turn()
    assert len(replies) == 1
    assert fetch.reads == 2
    assert fetch.is_let_go()


async def test_what_all_partitions_have_together_counts() -> None:
    fetch = FakeReader(3)
    replies = waiting(fetch.begin(bytes_min=30))
    for partition in fetch.partitions:
        assert replies == []
        partition.shows(10)
        await turn()
    assert len(replies) == 1


@pytest.mark.parametrize(("replica_id", "is_told"), [(2, True), (-1, False)])
async def test_a_follower_that_waits_is_told_of_a_new_start(replica_id: int, *, is_told: bool) -> None:
    fetch = FakeReader(2)
    replies = waiting(fetch.begin(replica_id=replica_id))
    fetch.partitions[1].wake()
    await turn()
    assert replies == []
    fetch.partitions[1].log_start = 5
    fetch.partitions[1].wake()
    await turn()
    assert bool(replies) == is_told


async def test_only_partitions_that_have_more_are_looked_at_again() -> None:
    fetch = FakeReader(5)
    replies = waiting(fetch.begin())
    for number in (3, 1, 3):
        fetch.partitions[number].shows(10)
    await turn()
    assert fetch.moved == [1, 3]
    (topic,) = replies[0].responses
    assert [(data.partition_index, data.records) for data in topic.partitions] == [
        (0, b""),
        (1, b"x" * 10),
        (2, b""),
        (3, b"x" * 20),
        (4, b""),
    ]


async def test_what_came_too_little_is_not_missing_when_there_is_enough() -> None:
    fetch = FakeReader(3)
    replies = waiting(fetch.begin(bytes_min=30))
    for number in range(3):
        fetch.partitions[number].shows(10)
        await turn()
    assert [len(bytes(data.records or b"")) for data in replies[0].responses[0].partitions] == [10, 10, 10]  # type: ignore[arg-type]


async def test_a_partition_that_fails_answers_at_once() -> None:
    fetch = FakeReader(2)
    replies = waiting(fetch.begin(bytes_min=1000))
    fetch.partitions[1].offline_error = "the disk"
    fetch.partitions[1].wake()
    await turn()
    assert len(replies) == 1
    assert fetch.is_let_go()


async def test_when_the_time_is_up_whatever_is_there_is_sent() -> None:
    fetch = FakeReader()
    answer = fetch.begin(wait_ms=5, bytes_min=1000)
    assert isinstance(answer, DeferredReply)
    fetch.partitions[0].shows(3)
    replied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answer.then(replied.set_result)
    async with asyncio.timeout(5):
        reply = await replied
    assert reply.responses[0].partitions[0].records == b"xxx"
    assert fetch.is_let_go()


async def test_a_client_that_left_is_no_longer_watched_for() -> None:
    fetch = FakeReader(2)
    later = fetch.begin(bytes_min=5)
    assert isinstance(later, DeferredReply)
    assert fetch.capacity.watched == 2
    assert later.abandon is not None
    later.abandon()
    assert fetch.is_let_go()
    fetch.partitions[0].shows(10)
    await turn()
    assert fetch.reads == 1


async def test_while_replies_fill_the_memory_a_fetch_waits_without_reading() -> None:
    fetch = FakeReader()
    fetch.partitions[0].committed_bytes = 5000
    fetch.free_reply_bytes = 0
    replies = waiting(fetch.begin(bytes_min=1000))
    assert fetch.reads == 0
    fetch.free_reply_bytes = 2**20
    fetch.partitions[0].shows(1)
    await turn()
    assert len(replies) == 1


async def test_beyond_what_all_may_watch_a_fetch_does_not_wait() -> None:
    fetch = FakeReader(3, watched_max=5)
    first = waiting(fetch.begin())
    assert isinstance(fetch.begin(), FetchResponse)
    fetch.partitions[0].shows(1)
    await turn()
    assert len(first) == 1
    fetch.partitions[0].committed_bytes = 0
    assert isinstance(fetch.begin(), DeferredReply), "what was let go is there for the next"


async def test_a_wait_beyond_the_longest_is_the_longest() -> None:
    params = FetchParams.of(FetchRequest(max_wait_ms=2**31 - 1), 17, is_rack_aware=False)
    assert params.wait_ms == 5 * 60 * 1000


@pytest.mark.parametrize(
    ("free_reply_bytes", "bytes_max", "expected"),
    [(1000, 20, 20), (1000, 5000, 300), (100, 5000, 100), (-7, 5000, 0)],
    ids=["the client's limit", "the broker's limit", "little memory", "no memory"],
)
def test_a_reply_takes_no_more_bytes_than_every_limit_allows(
    free_reply_bytes: int, bytes_max: int, expected: int
) -> None:
    capacity = FetchCapacity(lambda: free_reply_bytes, reply_bytes_max=300)
    assert capacity.fit(FetchParams(bytes_max, 0, -1)).bytes_max == expected
