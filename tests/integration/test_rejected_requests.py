"""What is rejected for good ends clients at once, and repeating it costs little."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError

from penstock.errors import ErrorCode
from penstock.limits import REJECTION_PAUSE_MS_MAX, REJECTIONS_BEFORE_PAUSE
from penstock.protocol.messages.describe_acls import DESCRIBE_ACLS, DescribeAclsRequest
from penstock.protocol.messages.describe_groups import DESCRIBE_GROUPS, DescribedGroup, DescribeGroupsRequest
from penstock.protocol.messages.find_coordinator import FIND_COORDINATOR, FindCoordinatorRequest
from penstock.protocol.messages.metadata import METADATA, MetadataRequest
from tests.integration.broker_process import eventually
from tests.integration.group_client import find_coordinator
from tests.integration.messages import QUIET
from tests.integration.raw_client import RawClient, connected

CLIENT_SECONDS = 30.0
AT_ONCE_SECONDS = 8.0
TRANSACTION = 1
TRANSACTIONAL = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=["t"])
OPERATIONS_OF_GROUPS = 3400
"""Kafka's bit set of everything that can be done to a group."""


def librdkafka(bootstrap: str) -> str:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", **QUIET})
    with pytest.raises(KafkaException) as failed:
        producer.init_transactions(CLIENT_SECONDS)
    return str(failed.value)


def kafka_python(bootstrap: str) -> str:
    options = {"transactional_id": "t", "max_block_ms": CLIENT_SECONDS * 1000}
    producer = KafkaProducer(bootstrap_servers=bootstrap, **options)
    with pytest.raises(KafkaPythonError) as failed:
        producer.init_transactions()
    producer.close(timeout=0)
    return str(failed.value)


def aiokafka(bootstrap: str) -> str:
    async def start() -> str:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="t")
        with pytest.raises(AioKafkaError) as failed:
            await asyncio.wait_for(producer.start(), CLIENT_SECONDS)
        await producer.stop()
        return str(failed.value)

    return asyncio.run(start())


@pytest.mark.parametrize(
    ("client", "says"),
    [
        (librdkafka, "Transactions are not offered by this broker"),
        (kafka_python, "ClusterAuthorizationFailed"),
        (aiokafka, "ClusterAuthorizationFailed"),
    ],
)
def test_a_transactional_producer_fails_at_once(
    bootstrap: str, client: Callable[[str], str], says: str
) -> None:
    began = time.monotonic()
    assert says in client(bootstrap)
    assert time.monotonic() - began < AT_ONCE_SECONDS


def of_a_transaction(client: RawClient) -> int:
    return client.ask(FIND_COORDINATOR, 6, TRANSACTIONAL).coordinators[0].error_code


def of_entries_by_a_long_name(client: RawClient) -> int:
    """The request does not fit the buffer that connections share, and is received in one of its own."""
    return client.ask(DESCRIBE_ACLS, 3, DescribeAclsRequest(principal_filter="x" * 500_000)).error_code


@pytest.mark.parametrize("ask", [of_a_transaction, of_entries_by_a_long_name])
def test_a_request_repeated_without_a_pause_is_answered_at_a_bounded_rate(
    bootstrap: str, ask: Callable[[RawClient], int]
) -> None:
    def rejected_for(seconds: float) -> int:
        count, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            assert ask(client) in (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.SECURITY_DISABLED)
            count += 1
        return count

    with connected(bootstrap) as client:
        rejected_for(1.0)
        seconds = 2.0
        assert rejected_for(seconds) <= seconds * 1000 / REJECTION_PAUSE_MS_MAX + 1


def test_others_do_not_wait_for_a_client_that_is_rejected(bootstrap: str) -> None:
    with connected(bootstrap) as client, connected(bootstrap) as other:
        for _ in range(REJECTIONS_BEFORE_PAUSE + 10):
            client.send(FIND_COORDINATOR, 6, TRANSACTIONAL)
        began = time.monotonic()
        for _ in range(REJECTIONS_BEFORE_PAUSE):
            assert not other.ask(METADATA, 12, MetadataRequest(topics=[])).topics
        assert time.monotonic() - began < 10 * REJECTION_PAUSE_MS_MAX / 1000
        for _ in range(REJECTIONS_BEFORE_PAUSE + 10):
            client.receive(FIND_COORDINATOR, 6)
        began = time.monotonic()
        for _ in range(100):
            client.ask(METADATA, 12, MetadataRequest(topics=[]))
        assert time.monotonic() - began < 10 * REJECTION_PAUSE_MS_MAX / 1000, "other requests do not wait"


def test_a_group_that_does_not_exist_has_authorised_operations(bootstrap: str) -> None:
    request = DescribeGroupsRequest(["none"], include_authorized_operations=True)
    with connected(bootstrap) as client:
        find_coordinator(client, "none")

        def described(version: int) -> DescribedGroup | None:
            (group,) = client.ask(DESCRIBE_GROUPS, version, request).groups
            return None if group.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else group

        before, since = (eventually(partial(described, version)) for version in (5, 6))
    assert before is not None
    assert since is not None
    assert (before.error_code, before.authorized_operations) == (0, OPERATIONS_OF_GROUPS)
    assert (since.error_code, since.authorized_operations) == (ErrorCode.GROUP_ID_NOT_FOUND, -(2**31))
