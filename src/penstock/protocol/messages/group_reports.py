"""GroupReports: api key 20000, version 0, flexible throughout.

Penstock's own, between brokers: returns the groups that the receiving broker coordinates. ApiVersions
does not list it.
"""

from __future__ import annotations

from penstock.protocol.schema import Api, Bytes, Int16, Int32, String, Struct


class GroupReportsRequest(Struct):
    group_ids: list[String] = []
    """Groups to report in full."""
    names_max: Int32 = 0
    """Maximum number of group names to return, in the order of names; 0: none."""
    prefix: String = ""
    after: String = ""
    partitions_max: Int32 = 0
    """Return the names of the groups with the most lag instead, which have at most so many partitions; 0:
    do not.
    """


class GroupReportsResponse(Struct):
    error_code: Int16 = 0
    error_message: String = ""
    names: list[String] = []
    reports: list[Bytes] = []
    """One report per group id, in their order; empty if there is no such group."""
    left_out: Int32 = 0
    """Groups with less lag, beyond `partitions_max`."""
    shards_loading: Int32 = 0
    """With `partitions_max`: partitions of the group topic whose groups are not known yet."""


GROUP_REPORTS = Api(
    key=20000,
    versions=(0, 0),
    flexible=0,
    request=GroupReportsRequest,
    response=GroupReportsResponse,
)
