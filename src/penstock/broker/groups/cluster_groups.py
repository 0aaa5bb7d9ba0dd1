"""Every group of the cluster, on whichever broker somebody asks.

A group is reported by its coordinator alone (`group_reports.py`), which knows its members and its rates. The
broker that is asked finds the coordinators in its image, asks those that are other brokers
(`apis/group_reports.py`), and passes on what they say. So all brokers give the same answer.

Rule 1: a coordinator that does not answer in time is named, with the reason. Its groups are not left out in
        silence, and nobody waits for it for longer than PEER_REPORTS_MS_MAX a question.
Rule 2: a few pages are made at once; others wait their turn. Coordinators that are asked have bounds of their
        own (`apis/group_reports.py`), so brokers that ask each other never wait for each other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.cluster.peer_requests import PeerRequests, PeerUnavailable
from penstock.broker.groups.group_lag import GroupLagReporter, GroupReport
from penstock.coordinator.shard_placement import shard_of
from penstock.errors import ApiError, ErrorCode
from penstock.limits import GROUP_PAGES_AT_ONCE, GROUP_REPORTS_PER_QUESTION, PEER_REPORTS_MS_MAX
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
    """The coordinator of a group cannot be asked; the text is a sentence for people."""


class UnavailableCoordinator(NamedTuple):
    """Groups of which nothing is known."""

    broker_id: int | None
    """Their coordinator; None if there is none at the moment."""
    reason: str


class Page(NamedTuple):
    groups: Sequence[GroupReport]
    next_after: str | None
    """To go on from; None if these are the last."""
    unavailable: Sequence[UnavailableCoordinator] = ()


class ClusterGroups:
    def __init__(self, own: GroupLagReporter, cluster: MetadataService, peers: PeerRequests | None) -> None:
        """`peers`: None for a broker that is alone, which coordinates all groups."""
        self._own = own
        self._cluster = cluster
        self._node_id = cluster.config.node.node_id
        self._peers = peers
        self._slots = asyncio.Semaphore(GROUP_PAGES_AT_ONCE)

    async def one(self, group_id: str) -> GroupReport | None:
        """None if there is no such group. ApiError while its coordinator loads; GroupsUnavailable."""
        topic = self._cluster.image.topics.get(GROUP_TOPIC)
        if topic is None:
            return None  # no group was ever there
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

    async def page(self, prefix: str, after: str, limit: int) -> Page:
        """Groups whose names begin so, in the order of names, beyond `after`. ApiError while some load."""
        async with self._slots:
            gathered = _CoordinatorReplies(self._leaderless_partitions())
            listed = await gathered.each(
                self._coordinators(), lambda node: self._names(node, prefix, after, limit + 1)
            )
            found = sorted((name, node) for node, names in listed for name in names)
            next_after = found[limit - 1][0] if len(found) > limit else None
            of_node: dict[int, list[str]] = {}
            for name, node in found[:limit]:
                of_node.setdefault(node, []).append(name)
            reported = await gathered.each(list(of_node), lambda node: self._reports(node, of_node[node]))
        groups = [report for _, reports in reported for report in reports if report is not None]
        groups.sort(key=lambda report: report.status.group_id)
        return Page(groups, next_after, gathered.unavailable)

    def _coordinators(self) -> list[int]:
        topic = self._cluster.image.topics.get(GROUP_TOPIC)
        leaders = set() if topic is None else {state.leader for state in topic.partitions}
        return sorted(leaders - {NO_NODE})

    def _leaderless_partitions(self) -> list[UnavailableCoordinator]:
        topic = self._cluster.image.topics.get(GROUP_TOPIC)
        count = 0 if topic is None else sum(state.leader == NO_NODE for state in topic.partitions)
        what = "1 partition has" if count == 1 else f"{count} partitions have"
        return [UnavailableCoordinator(None, f"{what} no leader in {GROUP_TOPIC}")] if count else []

    # Coordinators, here and elsewhere

    async def _names(self, node: int, prefix: str, after: str, names_max: int) -> list[str]:
        if node == self._node_id:
            return await self._own.names(prefix, after, names_max)
        request = GroupReportsRequest(names_max=names_max, prefix=prefix, after=after)
        return (await self._send(node, request)).names

    async def _reports(self, node: int, names: Sequence[str]) -> list[GroupReport | None]:
        if node == self._node_id:
            return await self._own.reports_of(names)
        reports: list[GroupReport | None] = []
        for start in range(0, len(names), GROUP_REPORTS_PER_QUESTION):
            some = list(names[start : start + GROUP_REPORTS_PER_QUESTION])
            answer = await self._send(node, GroupReportsRequest(group_ids=some))
            if len(answer.reports) != len(some):
                raise PeerUnavailable(node, "it answered something else")
            reports += [decoded(node, bytes(encoded)) for encoded in answer.reports]
        return reports

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
    """As brokers send it to each other. What the group committed is in its partitions."""
    return b"" if report is None else _encode(report._replace(status=report.status._replace(positions=())))


def decoded(node: int, data: bytes) -> GroupReport | None:
    """What broker `node` sent; None if there is no such group."""
    if not data:
        return None
    try:
        return _decode(data)
    except msgspec.MsgspecError as problem:
        raise PeerUnavailable(
            node, f"its report cannot be read, it may be of another release: {problem}"
        ) from problem


class _CoordinatorReplies:
    """Answers of several coordinators, and which of them gave none."""

    def __init__(self, unavailable: list[UnavailableCoordinator]) -> None:
        self.unavailable = unavailable

    async def each(
        self, nodes: Sequence[int], ask: Callable[[int], Awaitable[ReplyType]]
    ) -> list[tuple[int, ReplyType]]:
        async def attempt(node: int) -> tuple[int, ReplyType] | UnavailableCoordinator:
            try:
                return node, await ask(node)
            except PeerUnavailable as problem:
                return UnavailableCoordinator(problem.broker_id, problem.reason)

        outcomes = await asyncio.gather(*map(attempt, nodes))
        self.unavailable += [each for each in outcomes if isinstance(each, UnavailableCoordinator)]
        return [each for each in outcomes if not isinstance(each, UnavailableCoordinator)]
