"""DescribeAcls: what a Kafka without an authorizer says."""

import pytest

from penstock.broker.apis.describe_acls import DescribeAcls
from penstock.errors import ErrorCode
from penstock.protocol.messages.describe_acls import DESCRIBE_ACLS, DescribeAclsRequest
from tests.unit.broker.support import DENY_EVERYTHING, running_cluster


@pytest.mark.parametrize(
    "request_", [DescribeAclsRequest(), DescribeAclsRequest(2, "t", 1, "User:u", "*", 3, 3)]
)
async def test_security_is_disabled_whatever_is_asked_for(request_: DescribeAclsRequest) -> None:
    async with running_cluster() as harness:
        reply = await harness.ask(DESCRIBE_ACLS, DescribeAcls(), request_)
    assert reply.error_code == ErrorCode.SECURITY_DISABLED
    assert "No authorizer is configured" in str(reply.error_message)
    assert reply.resources == []


async def test_who_may_not_describe_the_cluster_is_told_so() -> None:
    async with running_cluster() as harness:
        reply = await harness.ask(
            DESCRIBE_ACLS, DescribeAcls(), DescribeAclsRequest(), authorizer=DENY_EVERYTHING
        )
    assert reply.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
