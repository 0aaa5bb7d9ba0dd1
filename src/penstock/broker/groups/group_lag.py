"""How far the groups have come that this broker coordinates: members, rebalances, and lag in every partition.

Nothing is computed until somebody asks. What is asked for is put together from the coordinators
(members, rebalances, committed offsets, rates) and from the leaders of the partitions, here or elsewhere
(`log_positions.py`: where logs begin and end, and how old the first record is that waits).

Metrics are about these groups alone, so that each group has series on one broker of the cluster.
`cluster_groups.py` answers for all groups on every broker.

Rule: many groups are looked at a few at a time, with a turn for everybody else between.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.groups.coordinator_runtime import CoordinatorErrors
from penstock.broker.groups.group_coordinator import GroupCoordinator, read_only_command
from penstock.broker.groups.log_positions import LogPosition, LogPositionLookup, PositionQuery
from penstock.broker.router import DeferredReply
from penstock.coordinator.outcome import Now
from penstock.errors import ApiError, ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.groups.group_status import GroupStatus
from penstock.groups.offsets.committed_offsets import GroupOffsets
from penstock.groups.offsets.lag import (
    OFFLINE,
    UNKNOWN,
    LagTotals,
    LogSpan,
    PartitionLag,
    compute_lag,
    compute_totals,
    records_behind,
)
from penstock.host.clock import Clock
from penstock.limits import GROUP_REPORTS_AT_ONCE, GROUPS_REPORTED_PER_TURN
from penstock.types import Offset, TopicPartition

ReplyType = TypeVar("ReplyType")

Spans = Mapping[str, Mapping[int, LogSpan]]
"""By topic and partition."""

_NO_GROUP = (ErrorCode.GROUP_ID_NOT_FOUND,)
_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.GROUP_ID_NOT_FOUND)
"""While all groups are looked at, another broker may become the coordinator of some: it reports them."""


class PartitionReport(NamedTuple):
    partition: TopicPartition
    lag: PartitionLag
    committed_at_ms: int | None
    member_id: str | None
    """Who reads it now; None if nobody does."""


class GroupReport(NamedTuple):
    status: GroupStatus
    partitions: Sequence[PartitionReport]
    totals: LagTotals


class GroupLagSurvey(NamedTuple):
    """All groups of this broker, as far as they are to be told apart."""

    groups: Sequence[GroupReport]
    """Those that are furthest behind, if not all of them fit."""
    left_out: int
    shards_loading: int


class GroupLagReporter:
    def __init__(
        self, groups: GroupCoordinator, cluster: MetadataService, positions: LogPositionLookup, clock: Clock
    ) -> None:
        self._groups = groups
        self._cluster = cluster
        self._positions = positions
        self._clock = clock
        self._slots = asyncio.Semaphore(GROUP_REPORTS_AT_ONCE)
        """For questions about all groups, whose answers take memory until they are sent."""

    # Questions

    async def reports_of(self, names: Sequence[str]) -> list[GroupReport | None]:
        """None where there is no such group. ApiError while a coordinator cannot answer, or is elsewhere."""
        reports: list[GroupReport | None] = []
        for some in _in_chunks(names):
            statuses = await self._statuses(some, _NO_GROUP)
            found = iter(await self._build_reports([status for status in statuses if status is not None]))
            reports += [None if status is None else next(found) for status in statuses]
        return reports

    async def names(self, prefix: str, after: str, names_max: int) -> list[str]:
        """The first groups whose names begin so, beyond `after`, in the order of names. ApiError while some
        load.
        """

        def matching_names(state: GroupStateMachine, now: Now) -> list[str]:
            names = (name for name in state.names() if name.startswith(prefix) and name > after)
            return heapq.nsmallest(names_max, names)

        found, rejections = await self._names(matching_names)
        if rejections:
            raise ApiError(rejections[0], "groups are being loaded")
        return heapq.nsmallest(names_max, found)

    def coordinator_errors(self) -> CoordinatorErrors:
        return self._groups.coordinator_errors()

    async def survey(self, partitions_max: int) -> GroupLagSurvey:
        """Every group if so many partitions are enough for that, else those that are furthest behind."""
        async with self._slots:
            names, rejections = await self._names(lambda state, now: list(state.names()))
            chosen = await self._choose_groups(names, partitions_max)
            reports: list[GroupReport] = []
            for some in _in_chunks(chosen):
                reports += await self._build_reports(
                    [each for each in await self._statuses(some, _MOVED) if each]
                )
        return GroupLagSurvey(reports, len(names) - len(chosen), len(rejections))

    # Choosing

    async def _names(
        self, query: Callable[[GroupStateMachine, Now], list[str]]
    ) -> tuple[list[str], list[ErrorCode]]:
        answers = await _reply_of(self._groups.query_shards(query, lambda code, _: code, list))
        rejections = [answer for answer in answers if isinstance(answer, ErrorCode)]
        return [name for names in answers if not isinstance(names, ErrorCode) for name in names], rejections

    async def _choose_groups(self, names: Sequence[str], partitions_max: int) -> list[str]:
        """All, if they fit; else those with the most records behind, so that none of these is missed."""
        groups: list[tuple[str, GroupOffsets]] = []
        for some in _in_chunks(names):
            found = await self._query_each(
                some, lambda state, name, now: state.offsets.of_group(name), _MOVED
            )
            groups += [
                (name, offsets) for name, offsets in zip(some, found, strict=True) if offsets is not None
            ]
        if sum(max(1, sum(map(len, offsets.values()))) for _, offsets in groups) <= partitions_max:
            return sorted(names)
        spans = await self._spans(groups)
        sizes: list[_Size] = []
        for number, (name, offsets) in enumerate(groups, 1):
            sizes.append(self._size(name, offsets, spans))
            if number % GROUPS_REPORTED_PER_TURN == 0:
                await asyncio.sleep(0)
        room, chosen = partitions_max, []
        for _, name, partitions in sorted(sizes):
            if partitions <= room:
                room -= partitions
                chosen.append(name)
        return sorted(chosen)

    async def _spans(self, groups: Sequence[tuple[str, GroupOffsets]]) -> Spans:
        """The ends of every log that some group has committed to, each asked for once."""
        committed: dict[str, set[int]] = {}
        for number, (_, offsets) in enumerate(groups, 1):
            for name, of_topic in offsets.items():
                committed.setdefault(name, set()).update(of_topic)
            if number % GROUPS_REPORTED_PER_TURN == 0:
                await asyncio.sleep(0)
        topics = self._cluster.image.topics
        places = [
            (name, index)
            for name, indexes in committed.items()
            if (topic := topics.get(name)) is not None
            for index in indexes
            if index < len(topic.partitions)
        ]
        found = await self._positions.find([PositionQuery(topics[name].id, index) for name, index in places])
        spans: dict[str, dict[int, LogSpan]] = {}
        for (name, index), position in zip(places, found, strict=True):
            if position.span is not None:
                spans.setdefault(name, {})[index] = position.span
        return spans

    def _size(self, name: str, offsets: GroupOffsets, spans: Spans) -> "_Size":
        """What matters for the choice, and no more: it is asked of every group there is."""
        ahead, count = 0, 0
        topics = self._cluster.image.topics
        for topic_name, committed in offsets.items():
            count += len(committed)
            topic, of_topic = topics.get(topic_name), spans.get(topic_name)
            if topic is None or of_topic is None:
                continue
            for index, place in committed.items():
                span = of_topic.get(index)
                if span is not None and place.is_for_topic(topic.id):
                    ahead -= records_behind(place.offset, span)
        return _Size(ahead, name, max(count, 1))

    # Looking

    async def _statuses(
        self, names: Sequence[str], none_for: Sequence[ErrorCode]
    ) -> list[GroupStatus | None]:
        return await self._query_each(names, lambda state, name, now: state.status(name, now), none_for)

    async def _query_each(
        self,
        names: Sequence[str],
        ask: Callable[[GroupStateMachine, str, Now], ReplyType],
        none_for: Sequence[ErrorCode],
    ) -> list[ReplyType | None]:
        """A few groups, after everybody else had a turn. None where the refusal is one of `none_for`."""
        await asyncio.sleep(0)
        later = self._groups.each(
            names,
            lambda name: read_only_command(lambda state, now: ask(state, name, now)),
            lambda name: lambda code, detail: ApiError(code, detail),
            list,
        )
        return [_unless_rejected(answer, none_for) for answer in await _reply_of(later)]

    async def _build_reports(self, statuses: Sequence[GroupStatus]) -> list[GroupReport]:
        groups = [self._entries(status) for status in statuses]
        positions = iter(
            await self._positions.find([entry.question for entries in groups for entry in entries])
        )
        now_ms = self._clock.wall_ms()
        reports = []
        for status, entries in zip(statuses, groups, strict=True):
            partitions = [entry.report(next(positions), now_ms) for entry in entries]
            totals = compute_totals(partition.lag for partition in partitions)
            reports.append(GroupReport(status, partitions, totals))
        return reports

    def _entries(self, status: GroupStatus) -> "list[_Entry]":
        """What the group committed, and what its members hold without having committed yet."""
        topics = self._cluster.image.topics
        holders = {
            partition: member.member_id for member in status.members for partition in member.assigned or ()
        }
        entries = []
        for name, committed, rate in status.positions:
            topic = topics.get(name.topic)
            # What was committed for a topic that is gone is nobody's any more.
            if (
                topic is None
                or name.partition >= len(topic.partitions)
                or not committed.is_for_topic(topic.id)
            ):
                continue
            question = PositionQuery(topic.id, name.partition, committed.offset)
            at_ms = committed.commit_timestamp_ms
            entries.append(_Entry(name, question, rate, at_ms, holders.pop(name, None)))
        for name, member_id in holders.items():
            topic = topics.get(name.topic)
            if topic is not None and name.partition < len(topic.partitions):
                entries.append(_Entry(name, PositionQuery(topic.id, name.partition), 0.0, None, member_id))
        return sorted(entries, key=lambda entry: entry.name)


class _Entry(NamedTuple):
    name: TopicPartition
    question: PositionQuery
    rate: float
    committed_at_ms: int | None
    member_id: str | None

    def report(self, position: LogPosition, now_ms: int) -> PartitionReport:
        lag = _lag(self.question.committed, position, self.rate)
        if lag.behind:
            lag = lag.with_age(position.timestamp_ms, now_ms)
        return PartitionReport(self.name, lag, self.committed_at_ms, self.member_id)


class _Size(NamedTuple):
    ahead: int
    """How far behind, negative, so that what is furthest behind comes first in order."""
    name: str
    partitions: int


def _lag(committed: Offset | None, position: LogPosition, rate: float) -> PartitionLag:
    if position.span is None:
        unknown = OFFLINE if position.is_offline else UNKNOWN
        return unknown._replace(committed=committed)
    return compute_lag(committed, position.span, rate)


def _in_chunks(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), GROUPS_REPORTED_PER_TURN):
        yield names[start : start + GROUPS_REPORTED_PER_TURN]


def _unless_rejected(answer: ReplyType | ApiError, none_for: Sequence[ErrorCode]) -> ReplyType | None:
    if not isinstance(answer, ApiError):
        return answer
    if answer.code in none_for:
        return None
    raise answer


async def _reply_of(later: DeferredReply) -> Any:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    later.then(lambda reply: None if answer.done() else answer.set_result(reply))
    return await answer
