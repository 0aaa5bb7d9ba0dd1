"""How far groups have come: the one place that CLI, HTTP and metrics take it from.

Nothing is computed until somebody asks. What is asked for is put together from the coordinators
(members, rebalances, committed offsets, rates), from the partitions (where logs begin and end) and,
for what is behind, from the log (how old the first record is that waits).

Rule: many groups are looked at a few at a time, with a turn for everybody else between.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from penstock.broker.coordination import Troubles
from penstock.broker.group_coordinator import GroupCoordinator, asking
from penstock.broker.record_times import RecordTimes, Wanted
from penstock.broker.router import Later
from penstock.coordinator.outcome import Now
from penstock.errors import ApiError, ErrorCode
from penstock.groups.groups import Groups
from penstock.groups.lag import OFFLINE, LogSpan, PartitionLag, Totals, lag_of, records_behind, totals_of
from penstock.groups.status import GroupStatus
from penstock.host.clock import Clock
from penstock.limits import GROUP_REPORTS_AT_ONCE, GROUPS_REPORTED_PER_TURN
from penstock.replication.manager import Partitions
from penstock.replication.partition import Partition
from penstock.types import Offset, TopicPartition

Answer = TypeVar("Answer")

_NOBODY_KNOWS = (ErrorCode.NOT_COORDINATOR, ErrorCode.GROUP_ID_NOT_FOUND)


class PartitionReport(NamedTuple):
    partition: TopicPartition
    lag: PartitionLag
    committed_at_ms: int | None
    member_id: str | None
    """Who reads it now; None if nobody does."""


class GroupReport(NamedTuple):
    status: GroupStatus
    partitions: Sequence[PartitionReport]
    totals: Totals


class Page(NamedTuple):
    groups: Sequence[GroupReport]
    next_after: str | None
    """To go on from; None if these are the last."""


class Survey(NamedTuple):
    """All groups, as far as they are to be told apart."""

    groups: Sequence[GroupReport]
    """Those that are furthest behind, if not all of them fit."""
    left_out: int
    shards_loading: int


class GroupReports:
    def __init__(
        self, groups: GroupCoordinator, partitions: Partitions, times: RecordTimes, clock: Clock
    ) -> None:
        self._groups = groups
        self._partitions = partitions
        self._times = times
        self._clock = clock
        self._turns = asyncio.Semaphore(GROUP_REPORTS_AT_ONCE)
        """For questions about many groups, whose answers take memory until they are sent."""

    # Questions

    async def one(self, group_id: str) -> GroupReport | None:
        """None if there is no such group. ApiError while its coordinator cannot answer."""
        (status,) = await self._statuses([group_id])
        return None if status is None else (await self._reported([status]))[0]

    async def page(self, prefix: str, after: str, limit: int) -> Page:
        """Groups whose names begin so, in the order of names, beyond `after`. ApiError while some load."""

        def wanted(state: Groups, now: Now) -> list[str]:
            names = (name for name in state.names() if name.startswith(prefix) and name > after)
            return heapq.nsmallest(limit + 1, names)

        async with self._turns:
            found, refusals = await self._names(wanted)
            if refusals:
                raise ApiError(refusals[0], "groups are being loaded")
            names = heapq.nsmallest(limit + 1, found)
            next_after = names[limit - 1] if len(names) > limit else None
            return Page([report async for report in self._reports(names[:limit])], next_after)

    def troubles(self) -> Troubles:
        return self._groups.troubles()

    async def survey(self, partitions_max: int) -> Survey:
        """Every group if so many partitions are enough for that, else those that are furthest behind."""
        async with self._turns:
            names, refusals = await self._names(lambda state, now: list(state.names()))
            chosen = await self._chosen(names, partitions_max)
            reports = [report async for report in self._reports(chosen)]
        return Survey(reports, len(names) - len(chosen), len(refusals))

    # Choosing

    async def _names(self, query: Callable[[Groups, Now], list[str]]) -> tuple[list[str], list[ErrorCode]]:
        answers = await _answer_of(self._groups.all_shards(query, lambda code, _: code, list))
        refusals = [answer for answer in answers if isinstance(answer, ErrorCode)]
        return [name for names in answers if not isinstance(names, ErrorCode) for name in names], refusals

    async def _chosen(self, names: Sequence[str], partitions_max: int) -> list[str]:
        """All, if they fit; else those with the most records behind, so that none of these is missed."""
        sizes: list[_Size] = []
        for some in _in_turns(names):
            sizes += filter(None, await self._ask_each(some, self._size))
        room, chosen = partitions_max, []
        for _, name, partitions in sorted(sizes):
            if partitions <= room:
                room -= partitions
                chosen.append(name)
        return sorted(chosen)

    def _size(self, state: Groups, name: str, now: Now) -> "_Size":
        """What matters for the choice, and no more: it is asked of every group there is."""
        ahead, count = 0, 0
        for topic, committed in state.offsets.of_group(name).items():
            partitions = self._partitions.of_topic(topic)
            for index, place in committed.items():
                count += 1
                if index < len(partitions) and place.is_of(partitions[index].topic_id):
                    ahead -= records_behind(place.offset, _span(partitions[index]))
        return _Size(ahead, name, max(count, 1))

    # Looking

    async def _reports(self, names: Sequence[str]) -> AsyncIterator[GroupReport]:
        for some in _in_turns(names):
            for report in await self._reported([status for status in await self._statuses(some) if status]):
                yield report

    async def _statuses(self, names: Sequence[str]) -> list[GroupStatus | None]:
        return await self._ask_each(names, lambda state, name, now: state.status(name, now))

    async def _ask_each(
        self, names: Sequence[str], ask: Callable[[Groups, str, Now], Answer]
    ) -> list[Answer | None]:
        """A few groups, after everybody else had a turn. None for those that nobody knows."""
        await asyncio.sleep(0)
        later = self._groups.each(
            names,
            lambda name: asking(lambda state, now: ask(state, name, now)),
            lambda name: lambda code, detail: ApiError(code, detail),
            list,
        )
        return [_unless_refused(answer) for answer in await _answer_of(later)]

    async def _reported(self, statuses: Sequence[GroupStatus]) -> list[GroupReport]:
        """With the ages, which have to be read from the log."""
        groups = [self._entries(status) for status in statuses]
        waiting = [entry.waiting for entries in groups for entry in entries if entry.waiting is not None]
        times = iter(await self._times.find(waiting))
        now_ms = self._clock.wall_ms()
        reports = []
        for status, entries in zip(statuses, groups, strict=True):
            partitions = [entry.report(times, now_ms) for entry in entries]
            totals = totals_of(partition.lag for partition in partitions)
            reports.append(GroupReport(status, partitions, totals))
        return reports

    def _entries(self, status: GroupStatus) -> "list[_Entry]":
        """What the group committed, and what its members hold without having committed yet."""
        holders = {
            partition: member.member_id for member in status.members for partition in member.holds or ()
        }
        entries = []
        for name, committed, rate in status.positions:
            partition = self._partitions.find(*name)
            # What was committed for a topic that is gone is nobody's any more.
            if partition is not None and committed.is_of(partition.topic_id):
                at_ms = committed.commit_timestamp_ms
                entries.append(
                    _Entry(partition, _lag(partition, committed.offset, rate), at_ms, holders.pop(name, None))
                )
        for name, member_id in holders.items():
            partition = self._partitions.find(*name)
            if partition is not None:
                entries.append(_Entry(partition, _lag(partition, None, 0.0), None, member_id))
        return sorted(entries, key=lambda entry: entry.partition.name)


class _Entry(NamedTuple):
    partition: Partition
    lag: PartitionLag
    committed_at_ms: int | None
    member_id: str | None

    @property
    def waiting(self) -> Wanted | None:
        offset = self.lag.next_offset
        return None if offset is None else Wanted(self.partition, offset)

    def report(self, times: Iterator[int | None], now_ms: int) -> PartitionReport:
        """Takes its time from `times` if it has something waiting."""
        lag = self.lag if self.waiting is None else self.lag.aged(next(times), now_ms)
        return PartitionReport(self.partition.name, lag, self.committed_at_ms, self.member_id)


class _Size(NamedTuple):
    ahead: int
    """How far behind, negative, so that what is furthest behind comes first in order."""
    name: str
    partitions: int


def _span(partition: Partition) -> LogSpan:
    return LogSpan(partition.log.log_start_offset, partition.high_watermark)


def _lag(partition: Partition, committed: Offset | None, rate: float) -> PartitionLag:
    if partition.offline is not None:
        return OFFLINE._replace(committed=committed)
    return lag_of(committed, _span(partition), rate)


def _in_turns(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), GROUPS_REPORTED_PER_TURN):
        yield names[start : start + GROUPS_REPORTED_PER_TURN]


def _unless_refused(answer: Answer | ApiError) -> Answer | None:
    if not isinstance(answer, ApiError):
        return answer
    if answer.code in _NOBODY_KNOWS:
        return None
    raise answer


async def _answer_of(later: Later) -> Any:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    later.then(lambda reply: None if answer.done() else answer.set_result(reply))
    return await answer
