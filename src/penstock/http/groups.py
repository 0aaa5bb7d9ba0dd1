"""Consumer groups over HTTP: all groups of the cluster, from any broker.

GET /v1/groups            one entry for each group, by name; ?prefix= ?limit= ?after=
GET /v1/groups/{group}    the details of one group: members, rebalances and lag
"""

from typing import Any

from aiohttp import web

from penstock.broker.groups.cluster_groups import ClusterGroups
from penstock.broker.groups.group_lag import GroupReport, PartitionReport
from penstock.groups.group_status import MemberStatus, RebalanceStatus
from penstock.groups.offsets.lag import PartitionLag
from penstock.http.errors import HttpError, json_reply
from penstock.limits import HTTP_GROUPS_LISTED_DEFAULT, HTTP_GROUPS_LISTED_MAX
from penstock.types import TopicPartition

JsonObject = dict[str, Any]


class GroupPages:
    def __init__(self, reports: ClusterGroups) -> None:
        self._reports = reports

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_get("/v1/groups", self.many)
        router.add_get("/v1/groups/{group}", self.one)

    async def many(self, request: web.Request) -> web.Response:
        query = request.query
        page = await self._reports.page(query.get("prefix", ""), query.get("after", ""), _limit(request))
        groups = [summary(report) for report in page.groups]
        unavailable = [{"broker": each.broker_id, "reason": each.reason} for each in page.unavailable]
        return json_reply({"groups": groups, "next_after": page.next_after, "unavailable": unavailable})

    async def one(self, request: web.Request) -> web.Response:
        name = request.match_info["group"]
        report = await self._reports.one(name)
        if report is None:
            raise HttpError(
                404,
                "group_not_found",
                f"There is no group {name}. A group exists once it has members or committed offsets.",
            )
        return json_reply(document(report))


def _limit(request: web.Request) -> int:
    text = request.query.get("limit", str(HTTP_GROUPS_LISTED_DEFAULT))
    # The length is checked first: converting a very long number would take long, and it is out of bounds
    # anyway.
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(HTTP_GROUPS_LISTED_MAX))
    if not is_number or not 1 <= int(text) <= HTTP_GROUPS_LISTED_MAX:
        raise HttpError(400, "bad_limit", f"limit must be a number from 1 to {HTTP_GROUPS_LISTED_MAX}.")
    return int(text)


def summary(report: GroupReport) -> JsonObject:
    status, totals = report.status, report.totals
    return {
        "group": status.group_id,
        "type": status.type,
        "state": status.state,
        "member_count": len(status.members),
        "records_behind": totals.behind,
        "records_lost": totals.lost,
        "age_ms": totals.age_ms_max,
        "partitions_unknown": totals.unknown,
    }


def document(report: GroupReport) -> JsonObject:
    status, totals = report.status, report.totals
    return summary(report) | {
        "assignor": status.assignor or None,
        "rate": totals.rate,
        "drain_ms": totals.drain_ms,
        "members": [_member(member) for member in status.members],
        "rebalances": _rebalances(status.rebalances),
        "partitions": [_partition(entry) for entry in report.partitions],
    }


def _member(member: MemberStatus) -> JsonObject:
    assigned = member.assigned
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "partitions": None if assigned is None else [_named(name) for name in sorted(assigned)],
    }


def _rebalances(rebalances: RebalanceStatus) -> JsonObject:
    return {
        "total": rebalances.total,
        "last_reason": rebalances.reason or None,
        "last_duration_ms": rebalances.duration_ms,
        "under_way_ms": rebalances.under_way_ms,
    }


def _partition(entry: PartitionReport) -> JsonObject:
    lag = entry.lag
    return _named(entry.partition) | {
        "standing": str(lag.standing),
        "committed_offset": lag.committed,
        "committed_at_ms": entry.committed_at_ms,
        **_span(lag),
        "records_behind": lag.behind,
        "records_lost": lag.lost,
        "age_ms": lag.age_ms,
        "rate": lag.rate,
        "drain_ms": lag.drain_ms,
        "member_id": entry.member_id,
    }


def _named(name: TopicPartition) -> JsonObject:
    return {"topic": name.topic, "partition": name.partition}


def _span(lag: PartitionLag) -> JsonObject:
    start, end = lag.span or (None, None)
    return {"log_start_offset": start, "log_end_offset": end}
