"""DescribeAcls: api key 29, versions 1 to 3.

Replies as Kafka does without an authorizer: there are no access control entries.

Behaviour
    Always SECURITY_DISABLED, with a message, whatever the filter. Tools such as MirrorMaker then copy
    nothing; without the API they would fail.
Versions
    3  user resources
Differs from Kafka
    A filter with an invalid number gets a reply; Kafka closes the connection.
"""

from penstock.broker.context import RequestContext
from penstock.broker.served_api import ON_CLUSTER, ServedApi, cluster_name, never_waits
from penstock.errors import ErrorCode
from penstock.protocol.messages.describe_acls import DESCRIBE_ACLS, DescribeAclsRequest, DescribeAclsResponse
from penstock.security.access import Operation


class DescribeAcls:
    api = ServedApi(DESCRIBE_ACLS, Operation.DESCRIBE, ON_CLUSTER, cluster_name, weigh=never_waits)

    def __call__(self, request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
        if context.cluster_denied:
            return DescribeAclsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED,
            error_message="No authorizer is configured: this broker has no access control entries.",
        )
