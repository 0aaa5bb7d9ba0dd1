"""DescribeAcls: api key 29, versions 1 to 3, flexible from 2.

Lists the access control entries that match a filter.

Versions
    3   user resources
"""

from __future__ import annotations

from penstock.protocol.schema import Api, Int8, Int16, Int32, String, Struct

LITERAL = 3


class DescribeAclsRequest(Struct):
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = None
    pattern_type_filter: Int8 = LITERAL
    principal_filter: String | None = None
    host_filter: String | None = None
    operation: Int8 = 0
    permission_type: Int8 = 0


class AclDescription(Struct):
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DescribeAclsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = LITERAL
    acls: list[AclDescription] = []


class DescribeAclsResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    resources: list[DescribeAclsResource] = []


DESCRIBE_ACLS = Api(
    key=29,
    versions=(1, 3),
    flexible=2,
    request=DescribeAclsRequest,
    response=DescribeAclsResponse,
)
