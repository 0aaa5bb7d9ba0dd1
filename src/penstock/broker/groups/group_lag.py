"""Lag reports of the groups that this broker coordinates: members, rebalances, and lag per partition.

A report is computed on request. It combines the state of the coordinators (members, rebalances, committed
offsets, rates) with data from the leaders of the partitions, on this broker or others (`log_positions.py`:
log start offset, high watermark, and the age of the first record that the group has not consumed).

The broker's own metrics cover only these groups, so that each group has time series on one broker of the
cluster. `cluster_groups.py` reports all groups of the cluster on every broker.

Rule: many groups are processed GROUPS_REPORTED_PER_CHUNK at a time, and the event loop runs in between.
"""

import asyncio
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.groups.coordinator_runtime import CoordinatorErrors
from penstock.broker.groups.group_coordinator import GroupCoordinator, GroupLookup, reply_of
from penstock.broker.groups.log_positions import LogPositionLookup, span_of
from penstock.chunks import chunks
from penstock.coordinator.outcome import Now
from penstock.errors import ApiError, ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.groups.group_status import GroupStatus
from penstock.groups.offsets.committed_offsets import GroupOffsets, OffsetAndMetadata
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
from penstock.limits import GROUP_REPORTS_AT_ONCE, GROUPS_REPORTED_PER_CHUNK
from penstock.protocol.messages.log_positions import FoundPosition, WantedPosition
from penstock.types import NO_TIMESTAMP, Offset, TopicPartition

ReplyType = TypeVar("ReplyType")

Spans = Mapping[str, Mapping[int, LogSpan]]
"""Log start and end by topic name and partition index."""

_NO_GROUP = (ErrorCode.GROUP_ID_NOT_FOUND,)
_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.GROUP_ID_NOT_FOUND)
"""Errors of groups whose coordinator has moved during a survey: the new coordinator reports them."""


class PartitionReport(NamedTuple):
    partition: TopicPartition
    lag: PartitionLag
    committed_at_ms: int | None
    member_id: str | None
    """Member that the partition is assigned to; None if there is none."""


class GroupReport(NamedTuple):
    status: GroupStatus
    partitions: Sequence[PartitionReport]
    totals: LagTotals


class ChosenGroups(NamedTuple):
    """Names of the groups with the most lag, up to a limit of partitions, sorted by name."""

    names: Sequence[str]
    left_out: int = 0
    shards_loading: int = 0


class GroupLagSurvey(NamedTuple):
    """Reports of this broker's groups, up to a limit of partitions."""

    groups: Sequence[GroupReport]
    """The groups with the most lag, if not all groups fit."""
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
        """Limits surveys of all groups, whose results take memory until they are sent."""

    # Reports

    async def reports_of(self, names: Sequence[str]) -> list[GroupReport | None]:
        """Reports of groups; None for a group that does not exist.

        ApiError: a shard is loading, or another broker coordinates a group.
        """
        reports: list[GroupReport | None] = []
        for some in chunks(names, GROUPS_REPORTED_PER_CHUNK):
            statuses = await self._statuses(some, _NO_GROUP)
            found = iter(await self._build_reports([status for status in statuses if status is not None]))
            reports += [None if status is None else next(found) for status in statuses]
        return reports

    async def names(self, prefix: str, after: str, names_max: int) -> list[str]:
        """The first group names with this prefix after `after`, sorted. ApiError: a shard is loading."""

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
        """Report every group if their partitions fit into `partitions_max`, else the groups with most lag."""
        async with self._slots:
            chosen = await self.choose(partitions_max)
            reports: list[GroupReport] = []
            for some in chunks(chosen.names, GROUPS_REPORTED_PER_CHUNK):
                reports += await self._build_reports(
                    [each for each in await self._statuses(some, _MOVED) if each]
                )
        return GroupLagSurvey(reports, chosen.left_out, chosen.shards_loading)

    # Selection of groups

    async def choose(self, partitions_max: int) -> ChosenGroups:
        """All groups if their partitions fit into `partitions_max`, else those with the most lag."""
        names, rejections = await self._names(lambda state, now: list(state.names()))
        chosen = await self._choose_groups(names, partitions_max)
        return ChosenGroups(chosen, len(names) - len(chosen), len(rejections))

    async def _names(
        self, query: Callable[[GroupStateMachine, Now], list[str]]
    ) -> tuple[list[str], list[ErrorCode]]:
        answers = [answer async for answer in self._groups.query_shards(query, lambda code, _: code)]
        rejections = [answer for answer in answers if isinstance(answer, ErrorCode)]
        return [name for names in answers if not isinstance(names, ErrorCode) for name in names], rejections

    async def _choose_groups(self, names: Sequence[str], partitions_max: int) -> list[str]:
        """All groups if they fit; else the groups with the most lag, so that none of these is missed."""
        groups: list[tuple[str, GroupOffsets]] = []
        for some in chunks(names, GROUPS_REPORTED_PER_CHUNK):
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
            if number % GROUPS_REPORTED_PER_CHUNK == 0:
                await asyncio.sleep(0)
        room, chosen = partitions_max, []
        for _, name, partitions in sorted(sizes):
            # A group that does not fit is skipped, and smaller groups behind it may still fit.
            if partitions <= room:
                room -= partitions
                chosen.append(name)
        return sorted(chosen)

    async def _spans(self, groups: Sequence[tuple[str, GroupOffsets]]) -> Spans:
        """Start and end of every log that a group has committed offsets of, each looked up once."""
        committed: dict[str, set[int]] = {}
        for number, (_, offsets) in enumerate(groups, 1):
            for name, of_topic in offsets.items():
                committed.setdefault(name, set()).update(of_topic)
            if number % GROUPS_REPORTED_PER_CHUNK == 0:
                await asyncio.sleep(0)
        topics = self._cluster.image.topics
        places = [
            (name, index)
            for name, indexes in committed.items()
            if (topic := topics.get(name)) is not None
            for index in indexes
            if index < len(topic.partitions)
        ]
        found = await self._positions.find([WantedPosition(topics[name].id, index) for name, index in places])
        spans: dict[str, dict[int, LogSpan]] = {}
        for (name, index), position in zip(places, found, strict=True):
            span = span_of(position)
            if span is not None:
                spans.setdefault(name, {})[index] = span
        return spans

    def _size(self, name: str, offsets: GroupOffsets, spans: Spans) -> "_Size":
        """Total lag and partition count, only what the selection needs: it runs for every group."""
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

    # Building reports

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
        """Query a few groups, after yielding to the event loop. None for a rejection in `none_for`."""
        await asyncio.sleep(0)

        def lookup(name: str) -> GroupLookup:
            return GroupLookup(name, lambda state, now: ask(state, name, now), ApiError)

        answers = await reply_of(self._groups.query_each([lookup(name) for name in names], list))
        return [_unless_rejected(answer, none_for) for answer in answers]

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
        """Partitions with committed offsets, and assigned partitions without a commit yet."""
        topics = self._cluster.image.topics
        holders = {
            partition: member.member_id for member in status.members for partition in member.assigned or ()
        }
        entries = []
        for name, committed, rate in status.positions:
            topic = topics.get(name.topic)
            # Offsets of a deleted topic, or of an earlier topic with the same name, have no lag.
            if (
                topic is None
                or name.partition >= len(topic.partitions)
                or not committed.is_for_topic(topic.id)
            ):
                continue
            question = WantedPosition(topic.id, name.partition, committed.offset)
            entries.append(_Entry(name, question, committed, rate, holders.pop(name, None)))
        for name, member_id in holders.items():
            topic = topics.get(name.topic)
            if topic is not None and name.partition < len(topic.partitions):
                entries.append(_Entry(name, WantedPosition(topic.id, name.partition), None, 0.0, member_id))
        return sorted(entries, key=lambda entry: entry.name)


class _Entry(NamedTuple):
    name: TopicPartition
    question: WantedPosition
    committed: OffsetAndMetadata | None
    rate: float
    member_id: str | None

    def report(self, position: FoundPosition, now_ms: int) -> PartitionReport:
        committed = self.committed
        lag = _lag(committed.offset if committed else None, position, self.rate)
        if lag.behind and position.timestamp != NO_TIMESTAMP:
            lag = lag.with_age(position.timestamp, now_ms)
        committed_at_ms = committed.commit_timestamp_ms if committed else None
        return PartitionReport(self.name, lag, committed_at_ms, self.member_id)


class _Size(NamedTuple):
    ahead: int
    """Total lag, negated so that the largest lag sorts first."""
    name: str
    partitions: int


def _lag(committed: Offset | None, position: FoundPosition, rate: float) -> PartitionLag:
    span = span_of(position)
    if span is None:
        unknown = OFFLINE if position.error_code == ErrorCode.KAFKA_STORAGE_ERROR else UNKNOWN
        return unknown._replace(committed=committed)
    return compute_lag(committed, span, rate)


def _unless_rejected(answer: ReplyType | ApiError, none_for: Sequence[ErrorCode]) -> ReplyType | None:
    if not isinstance(answer, ApiError):
        return answer
    if answer.code in none_for:
        return None
    raise answer
