"""Reports of all groups of the cluster, available on every broker.

Only the coordinator of a group reports it (`group_lag.py`), because only the coordinator has its members and
rates. The broker that serves a page finds the coordinators in its image, requests reports from those on other
brokers (`apis/group_reports.py`), and returns them unchanged. So every broker gives the same result.

Rule 1: the page names every coordinator that did not respond in time, with the reason, so that missing groups
        are visible. No request to a coordinator takes longer than PEER_REPORTS_MS_MAX.
Rule 2: GROUP_PAGES_AT_ONCE pages are built at once; further pages wait. The serving side of a request has a
        separate limit (`apis/group_reports.py`), so brokers that send requests to each other cannot deadlock.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.cluster.peer_requests import PeerRequests, PeerUnavailable
from penstock.broker.groups.group_lag import ChosenGroups, GroupLagReporter, GroupReport
from penstock.chunks import chunks
from penstock.coordinator.shard_placement import shard_of
from penstock.errors import ApiError, ErrorCode
from penstock.limits import GROUP_PAGES_AT_ONCE, GROUP_REPORTS_PER_CHUNK, PEER_REPORTS_MS_MAX
from penstock.metadata.cluster_image import GROUP_TOPIC, NO_NODE
from penstock.protocol.messages.group_reports import (
    GROUP_REPORTS,
    GroupReportsRequest,
    GroupReportsResponse,
)

ReplyType = TypeVar("ReplyType")

_TRANSIENT_ERRORS = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(GroupReport).decode


class GroupsUnavailable(Exception):
    """The coordinator of a group is unavailable. The message is a sentence for users."""


class UnavailableCoordinator(NamedTuple):
    """A coordinator that returned no reports."""

    broker_id: int | None
    """None: partitions of the group topic that have no leader."""
    reason: str


class GroupPage(NamedTuple):
    groups: Sequence[GroupReport]
    next_after: str | None
    """Value of `after` for the next page; None: this is the last page."""
    unavailable: Sequence[UnavailableCoordinator] = ()


class ClusterGroupSurvey(NamedTuple):
    """Reports of the cluster's groups, up to a limit of partitions."""

    groups: Sequence[GroupReport]
    """The groups with the most lag, if not all groups fit, sorted by name."""
    left_out: int
    unavailable: Sequence[UnavailableCoordinator]


class ClusterGroups:
    def __init__(self, own: GroupLagReporter, cluster: MetadataService, peers: PeerRequests | None) -> None:
        """`peers`: None for a single broker, which coordinates all groups."""
        self._own = own
        self._cluster = cluster
        self._node_id = cluster.config.node.node_id
        self._peers = peers
        self._slots = asyncio.Semaphore(GROUP_PAGES_AT_ONCE)

    async def one(self, group_id: str) -> GroupReport | None:
        """Report of one group; None if it does not exist.

        ApiError: the coordinator is loading. GroupsUnavailable: there is none, or it did not respond.
        """
        topic = self._cluster.image.topics.get(GROUP_TOPIC)
        if topic is None:
            return None  # the topic is created with the first group, so no group exists
        # The leader of the group's partition of the group topic is the group's coordinator, as in Kafka.
        coordinator = topic.partitions[shard_of(group_id, len(topic.partitions))].leader
        if coordinator == NO_NODE:
            raise GroupsUnavailable(f"No broker coordinates group {group_id} at the moment.")
        async with self._slots:
            try:
                (report,) = await self._reports(coordinator, [group_id])
            except PeerUnavailable as problem:
                raise GroupsUnavailable(
                    f"The coordinator of group {group_id} did not answer: {problem}."
                ) from problem
        return report

    async def page(self, prefix: str, after: str, limit: int) -> GroupPage:
        """One page of groups with this name prefix after `after`, sorted. ApiError: a shard is loading."""
        async with self._slots:
            unavailable = self._leaderless_partitions()
            # One name beyond the limit, from every coordinator, shows whether another page follows.
            listed = await _ask_each(
                self._coordinators(),
                lambda node: self._names(node, prefix, after, limit + 1),
                unavailable,
            )
            found = sorted((name, node) for node, names in listed for name in names)
            next_after = found[limit - 1][0] if len(found) > limit else None
            of_node: dict[int, list[str]] = {}
            for name, node in found[:limit]:
                of_node.setdefault(node, []).append(name)
            reported = await _ask_each(
                list(of_node), lambda node: self._reports(node, of_node[node]), unavailable
            )
        groups = [report for _, reports in reported for report in reports if report is not None]
        groups.sort(key=lambda report: report.status.group_id)
        return GroupPage(groups, next_after, unavailable)

    async def survey(self, partitions_max: int) -> ClusterGroupSurvey:
        """Report every group if their partitions fit into `partitions_max`, else the groups with most lag."""
        async with self._slots:
            unavailable = self._leaderless_partitions()
            # Each coordinator is asked for its choice and then for its reports, without a wait for the
            # others: a silent one delays the page by one time limit and no more.
            surveyed = await _ask_each(
                self._coordinators(),
                lambda node: _as_unavailable(node, self._survey_of(node, partitions_max)),
                unavailable,
            )
        found: list[GroupReport] = []
        left_out = 0
        for node, (chosen, reports) in surveyed:
            found += reports
            left_out += chosen.left_out
            if chosen.shards_loading:
                detail = f"{chosen.shards_loading} of its partitions are being loaded"
                unavailable.append(UnavailableCoordinator(node, detail))
        kept = with_most_lag(found, partitions_max)
        return ClusterGroupSurvey(kept, left_out + len(found) - len(kept), tuple(unavailable))

    def _coordinators(self) -> list[int]:
        topic = self._cluster.image.topics.get(GROUP_TOPIC)
        leaders = set() if topic is None else {state.leader for state in topic.partitions}
        return sorted(leaders - {NO_NODE})

    def _leaderless_partitions(self) -> list[UnavailableCoordinator]:
        topic = self._cluster.image.topics.get(GROUP_TOPIC)
        count = 0 if topic is None else sum(state.leader == NO_NODE for state in topic.partitions)
        what = "1 partition has" if count == 1 else f"{count} partitions have"
        return [UnavailableCoordinator(None, f"{what} no leader in {GROUP_TOPIC}")] if count else []

    # Coordinators on this broker and on others

    async def _names(self, node: int, prefix: str, after: str, names_max: int) -> list[str]:
        if node == self._node_id:
            return await self._own.names(prefix, after, names_max)
        request = GroupReportsRequest(names_max=names_max, prefix=prefix, after=after)
        return (await self._send(node, request)).names

    async def _reports(self, node: int, names: Sequence[str]) -> list[GroupReport | None]:
        if node == self._node_id:
            return await self._own.reports_of(names)
        reports: list[GroupReport | None] = []
        for some in chunks(names, GROUP_REPORTS_PER_CHUNK):
            answer = await self._send(node, GroupReportsRequest(group_ids=list(some)))
            if len(answer.reports) != len(some):
                raise PeerUnavailable(node, "it answered something else")
            reports += [decoded(node, bytes(encoded)) for encoded in answer.reports]
        return reports

    async def _survey_of(self, node: int, partitions_max: int) -> tuple[ChosenGroups, list[GroupReport]]:
        chosen = await self._choose(node, partitions_max)
        reports = await self._reports(node, chosen.names)
        return chosen, [report for report in reports if report is not None]

    async def _choose(self, node: int, partitions_max: int) -> ChosenGroups:
        if node == self._node_id:
            return await self._own.choose(partitions_max)
        answer = await self._send(node, GroupReportsRequest(partitions_max=partitions_max))
        return ChosenGroups(answer.names, answer.left_out, answer.shards_loading)

    async def _send(self, node: int, request: GroupReportsRequest) -> GroupReportsResponse:
        if self._peers is None:
            raise PeerUnavailable(node, "this broker is alone")
        answer = await self._peers.ask(node, GROUP_REPORTS, request, PEER_REPORTS_MS_MAX)
        if answer.error_code in _TRANSIENT_ERRORS:
            raise ApiError(ErrorCode(answer.error_code), answer.error_message)
        if answer.error_code != ErrorCode.NONE:
            raise PeerUnavailable(node, answer.error_message or f"it answered error {answer.error_code}")
        return answer


def encoded(report: GroupReport | None) -> bytes:
    """Encode a report for another broker, without the committed positions: `partitions` has them too."""
    return b"" if report is None else _encode(report._replace(status=report.status._replace(positions=())))


def decoded(node: int, data: bytes) -> GroupReport | None:
    """Decode a report that broker `node` sent; None if the group does not exist."""
    if not data:
        return None
    try:
        return _decode(data)
    except msgspec.MsgspecError as problem:
        raise PeerUnavailable(
            node, f"its report cannot be read, it may be of another release: {problem}"
        ) from problem


async def _as_unavailable(node: int, reply: Awaitable[ReplyType]) -> ReplyType:
    """Treat a coordinator whose groups are loading or have just moved as one that did not respond."""
    try:
        return await reply
    except ApiError as problem:
        raise PeerUnavailable(node, str(problem)) from problem


def with_most_lag(reports: Sequence[GroupReport], partitions_max: int) -> list[GroupReport]:
    """The reports with the most lag that fit, sorted by name. Each has at least one series."""
    room, kept = partitions_max, []
    for report in sorted(reports, key=lambda each: (-each.totals.behind, each.status.group_id)):
        # A group that does not fit is skipped, and smaller groups behind it may still fit.
        count = max(1, len(report.partitions))
        if count <= room:
            room -= count
            kept.append(report)
    return sorted(kept, key=lambda each: each.status.group_id)


async def _ask_each(
    nodes: Sequence[int],
    ask: Callable[[int], Awaitable[ReplyType]],
    unavailable: list[UnavailableCoordinator],
) -> list[tuple[int, ReplyType]]:
    """Responses of several coordinators; those that gave none are added to `unavailable`."""

    async def attempt(node: int) -> tuple[int, ReplyType] | UnavailableCoordinator:
        try:
            return node, await ask(node)
        except PeerUnavailable as problem:
            return UnavailableCoordinator(problem.broker_id, problem.reason)

    outcomes = await asyncio.gather(*map(attempt, nodes))
    unavailable += [each for each in outcomes if isinstance(each, UnavailableCoordinator)]
    return [each for each in outcomes if not isinstance(each, UnavailableCoordinator)]
