"""GroupReports: api key 20000, version 0.

Returns the groups that this broker coordinates to another broker: their names, the names of those with the
most lag, or full reports on some of them. Penstock's own API: ApiVersions does not list it, and Kafka has no
such request.

Behaviour
    Allowed to clients that may act as a broker (CLUSTER_ACTION on the cluster), as replication is.
    A group that does not exist has an empty report. If the coordinator of one of the groups is loading or is
    another broker, the whole reply is that error.
    Groups with the most lag are chosen also while others are loading, which are counted.
    More groups, names or partitions than one request may have: POLICY_VIOLATION.
"""

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.groups.cluster_groups import encoded
from penstock.broker.groups.group_lag import GroupLagReporter
from penstock.broker.served_api import ON_CLUSTER, ServedApi, cluster_name
from penstock.errors import ApiError, ErrorCode
from penstock.limits import (
    GROUP_REPORTS_AT_ONCE,
    GROUP_REPORTS_PER_CHUNK,
    HTTP_GROUPS_LISTED_MAX,
    METRICS_GROUP_PARTITIONS_MAX,
)
from penstock.protocol.messages.group_reports import GROUP_REPORTS, GroupReportsRequest, GroupReportsResponse
from penstock.security.access import Operation


class GroupReports:
    api = ServedApi(GROUP_REPORTS, Operation.CLUSTER_ACTION, ON_CLUSTER, cluster_name, is_advertised=False)

    def __init__(self, reports: GroupLagReporter) -> None:
        self._reports = reports
        # Separate from the limit of this broker's own pages, which may wait for the broker that sent this
        # request: one shared limit could deadlock both.
        self._turns = asyncio.Semaphore(GROUP_REPORTS_AT_ONCE)

    async def __call__(self, request: GroupReportsRequest, context: RequestContext) -> GroupReportsResponse:
        if context.cluster_denied:
            return GroupReportsResponse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if (
            len(request.group_ids) > GROUP_REPORTS_PER_CHUNK
            or request.names_max > HTTP_GROUPS_LISTED_MAX + 1
            or request.partitions_max > METRICS_GROUP_PARTITIONS_MAX
        ):
            return GroupReportsResponse(ErrorCode.POLICY_VIOLATION, "too many groups for one question")
        async with self._turns:
            try:
                if request.partitions_max > 0:
                    return GroupReportsResponse(
                        **(await self._reports.choose(request.partitions_max))._asdict()
                    )
                names = await self._names(request)
                reports = await self._reports.reports_of(request.group_ids)
            except ApiError as problem:
                return GroupReportsResponse(problem.code, problem.detail)
        return GroupReportsResponse(names=names, reports=[encoded(report) for report in reports])

    async def _names(self, request: GroupReportsRequest) -> list[str]:
        if request.names_max <= 0:
            return []
        return await self._reports.names(request.prefix, request.after, request.names_max)
