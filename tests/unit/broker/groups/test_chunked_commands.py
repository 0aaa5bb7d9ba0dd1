"""Long commands about groups are done in pieces: in order, with turns for others, and to the end."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.apis.delete_groups import DeleteGroups
from penstock.broker.apis.offset_commit import OffsetCommit
from penstock.broker.apis.offset_delete import OffsetDelete
from penstock.broker.apis.offset_fetch import OffsetFetch
from penstock.broker.context import RequestContext
from penstock.broker.groups.group_coordinator import GroupCoordinator, reply_of
from penstock.coordinator.outcome import Now, WaitingRequest
from penstock.errors import ApiError, ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.limits import COMMITS_AT_ONCE, LONG_MAX, STATE_RECORDS_PER_CHUNK, TOMBSTONES_AT_ONCE
from penstock.protocol.frames import encode_response
from penstock.protocol.messages.delete_groups import DeleteGroupsRequest
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from penstock.protocol.messages.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from penstock.security.access import ANONYMOUS, AllowEverything
from tests.unit.groups.consumer.consumer_support import topic
from tests.unit.groups.test_groups_bounds import START, GroupsHarness, places

MANY = 3 * COMMITS_AT_ONCE + 5
ORDERS = topic("orders", 20_000)


class Shards:
    """One shard whose log is safe one turn after it was written."""

    def __init__(self, harness: GroupsHarness) -> None:
        self.harness = harness
        self.fails_at: int | None = None
        self.refuses_at: int | None = None
        self.records: list[int] = []
        """Number of records of each command."""

    def __len__(self) -> int:
        return 1

    def execute(
        self, number: int, command: Callable[[GroupStateMachine, Now], Any], pending: WaitingRequest
    ) -> None:
        if len(self.records) == self.refuses_at:
            pending.reject(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return
        try:
            outcome = command(self.harness.groups, START)
        except ApiError as rejection:
            pending.reject(rejection.code, rejection.detail)
            return
        self.records.append(len(outcome.records))
        loop = asyncio.get_running_loop()
        if len(self.records) - 1 == self.fails_at:
            loop.call_soon(pending.reject, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        self.harness.take([outcome])
        for reply in outcome.replies:
            loop.call_soon(reply.pending.complete, reply.content)


class Broker:
    def __init__(self) -> None:
        self.harness = GroupsHarness()
        self.shards = Shards(self.harness)
        image = SimpleNamespace(
            topics={"orders": ORDERS},
            topics_by_id={ORDERS.id: ORDERS},
            partition=lambda name, index: ORDERS.partitions[index],
        )
        config = SimpleNamespace(groups=self.harness.settings)
        cluster = cast(Any, SimpleNamespace(image=image, config=config))
        groups = GroupCoordinator(cast(Any, self.shards), cluster, cast(Any, None))
        clock = cast(Any, SimpleNamespace(wall_ms=lambda: START.wall_ms))
        self._commit = OffsetCommit(groups, cluster, clock)
        self._delete = DeleteGroups(groups)
        self._delete_offsets = OffsetDelete(groups, cluster)
        self._fetch = OffsetFetch(groups, cluster)

    def context(self, version: int) -> RequestContext:
        return RequestContext(ANONYMOUS, "kafka", "peer", AllowEverything()).for_request(
            version, "c", frozenset()
        )

    def commit(self, offset: int, count: int = MANY, *, version: int = 9, kept_ms: int = -1) -> Any:
        partitions = [OffsetCommitRequestPartition(index, offset, 3, "") for index in range(count)]
        request = OffsetCommitRequest(
            group_id="g",
            retention_time_ms=kept_ms,
            topics=[OffsetCommitRequestTopic("orders", partitions=partitions)],
        )
        return reply_of(cast(Any, self._commit(request, self.context(version))))

    def delete(self, *names: str) -> Any:
        return reply_of(
            cast(Any, self._delete(DeleteGroupsRequest(groups_names=list(names)), self.context(2)))
        )

    def delete_offsets(self, count: int) -> Any:
        partitions = [OffsetDeleteRequestPartition(index) for index in range(count)]
        request = OffsetDeleteRequest("g", [OffsetDeleteRequestTopic("orders", partitions)])
        return reply_of(cast(Any, self._delete_offsets(request, self.context(0))))

    async def fetch(self, *groups: OffsetFetchRequestGroup) -> Any:
        answer = cast(Any, self._fetch(OffsetFetchRequest(groups=list(groups)), self.context(9)))
        return await (answer if asyncio.iscoroutine(answer) else reply_of(answer))

    def offsets(self) -> set[int]:
        return {committed.offset for _, committed in self.harness.groups.offsets.partitions("g")}


def codes(response: OffsetCommitResponse) -> list[int]:
    return [partition.error_code for partition in response.topics[0].partitions]


# Commits


async def test_a_commit_of_very_many_partitions_is_kept_in_pieces() -> None:
    broker = Broker()
    assert codes(await broker.commit(5)) == [0] * MANY
    assert broker.shards.records == [*[COMMITS_AT_ONCE] * 3, 5]
    assert len(list(broker.harness.groups.offsets.partitions("g"))) == MANY


async def test_commits_of_a_group_are_kept_in_the_order_in_which_they_came() -> None:
    broker = Broker()
    long, short, longer = broker.commit(5), broker.commit(6, 10), broker.commit(7, MANY + 1)
    last = broker.commit(8, 1)
    for response in await asyncio.gather(long, short, longer, last):
        assert set(codes(response)) == {0}
    assert broker.harness.groups.offsets.find("g", "orders", 0).offset == 8  # type: ignore[union-attr]
    assert broker.offsets() == {7, 8}


@pytest.mark.parametrize("kind", ["fails", "refuses"])
async def test_only_the_partitions_whose_records_are_not_safe_are_rejected(kind: str) -> None:
    broker = Broker()
    setattr(broker.shards, f"{kind}_at", 2)
    answers = codes(await broker.commit(5))
    assert answers[: 2 * COMMITS_AT_ONCE] == [0] * (2 * COMMITS_AT_ONCE)
    assert 0 not in answers[2 * COMMITS_AT_ONCE :]
    setattr(broker.shards, f"{kind}_at", None)
    assert codes(await broker.commit(6, 1)) == [0], "the group is free again"


async def test_a_long_commit_that_says_too_much_is_refused_before_any_of_it_is_kept() -> None:
    broker = Broker()
    assert set(codes(await broker.commit(5, 20_000))) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert broker.offsets() == set()


async def test_a_commit_that_is_to_be_kept_for_ever_is_kept() -> None:
    broker = Broker()
    assert codes(await broker.commit(5, 1, version=2, kept_ms=LONG_MAX)) == [0]
    committed = broker.harness.groups.offsets.find("g", "orders", 0)
    assert committed is not None
    assert committed.expire_timestamp_ms == LONG_MAX


# Turns


async def test_others_get_a_turn_between_two_pieces() -> None:
    broker = Broker()
    queue: list[int] = []

    async def watch() -> None:
        while True:
            queue.append(sum(broker.shards.records))
            await asyncio.sleep(0)

    watching = asyncio.get_running_loop().create_task(watch())
    await broker.commit(5)
    await broker.delete("g")
    watching.cancel()
    steps = [after - before for before, after in pairwise(queue)]
    assert max(steps) <= STATE_RECORDS_PER_CHUNK + 1
    assert sum(steps) >= 2 * MANY


async def test_the_pieces_of_several_groups_share_the_turns() -> None:
    broker = Broker()
    names = [f"g-{number}" for number in range(10)]
    for name in names:
        broker.harness.replay_commits(name, places(STATE_RECORDS_PER_CHUNK - 1))
    deleting = asyncio.ensure_future(broker.delete(*names))
    queue = [0]
    while not deleting.done():
        await asyncio.sleep(0)
        queue.append(sum(broker.shards.records))
    assert max(after - before for before, after in pairwise(queue)) < (2 * STATE_RECORDS_PER_CHUNK)
    assert {result.error_code for result in (await deleting).results} == {0}
    assert list(broker.harness.groups.names()) == []


# Deletions


async def test_a_group_that_is_being_deleted_is_gone_for_whoever_asks_meanwhile() -> None:
    broker = Broker()
    await broker.commit(5, 2 * TOMBSTONES_AT_ONCE + 1)
    deleting = broker.delete("g")
    late = broker.commit(9, 1)
    deleted, answer = await asyncio.gather(deleting, late)
    assert [result.error_code for result in deleted.results] == [0]
    assert codes(answer) == [0]
    assert broker.offsets() == {9}
    assert len(list(broker.harness.groups.offsets.partitions("g"))) == 1


async def test_a_deletion_that_was_refused_half_way_can_be_asked_for_again() -> None:
    broker = Broker()
    await broker.commit(5)
    broker.shards.records.clear()
    broker.shards.refuses_at = 2
    (result,) = (await broker.delete("g")).results
    assert result.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.shards.refuses_at = None
    (result,) = (await broker.delete("g")).results
    assert result.error_code == 0
    assert list(broker.harness.groups.names()) == []


async def test_a_group_that_does_not_exist_is_not_deleted() -> None:
    (result,) = (await Broker().delete("nobody")).results
    assert result.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_very_many_offsets_are_deleted_in_pieces() -> None:
    broker = Broker()
    await broker.commit(5, MANY)
    broker.shards.records.clear()
    response = await broker.delete_offsets(MANY - 1)
    assert {partition.error_code for partition in response.topics[0].partitions} == {0}
    assert len(response.topics[0].partitions) == MANY - 1
    assert max(broker.shards.records) <= TOMBSTONES_AT_ONCE
    assert len(list(broker.harness.groups.offsets.partitions("g"))) == 1


# Reading


async def test_a_long_answer_has_the_bytes_of_a_short_one() -> None:
    broker = Broker()
    await broker.commit(5, 10)
    asked = OffsetFetchRequestTopic("orders", partition_indexes=list(range(10)))
    everything = await broker.fetch(OffsetFetchRequestGroup("g", topics=None))
    named = await broker.fetch(OffsetFetchRequestGroup("g", topics=[asked]))
    assert bytes_of(everything) == bytes_of(named)
    assert len(bytes_of(named)) > 10 * 20


def bytes_of(response: Any) -> bytes:
    return b"".join(bytes(part) for part in encode_response(OFFSET_FETCH, 9, 1, response))
