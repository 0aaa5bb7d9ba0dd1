"""FindCoordinator: the leader of a group's partition, and a plain no for what is not offered."""

from collections.abc import AsyncIterator

import pytest

from penstock.broker.apis.find_coordinator import GROUP, SHARE, TRANSACTION, FindCoordinator
from penstock.coordinator.shard_placement import shard_of
from penstock.errors import ErrorCode
from penstock.metadata.cluster_image import GROUP_TOPIC
from penstock.protocol.messages.find_coordinator import (
    FIND_COORDINATOR,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tests.unit.broker.support import (
    ALLOW_EVERYTHING,
    DENY_EVERYTHING,
    LISTENER,
    OTHER_LISTENER,
    CallbackAuthorizer,
    HandlerHarness,
    denying,
    running_cluster,
)

PARTITIONS = 6


@pytest.fixture
async def harness() -> AsyncIterator[HandlerHarness]:
    async with running_cluster() as harness:
        yield harness


async def find(
    harness: HandlerHarness,
    request: FindCoordinatorRequest,
    version: int,
    authorizer: CallbackAuthorizer | None = None,
    listener: str = LISTENER,
) -> FindCoordinatorResponse:
    async def create() -> None:
        await harness.topic(GROUP_TOPIC, PARTITIONS)

    handler = FindCoordinator(harness.cluster, create)
    return await harness.ask(
        FIND_COORDINATOR,
        handler,
        request,
        version,
        authorizer=authorizer or ALLOW_EVERYTHING,
        listener=listener,
    )


def nowhere(key: str, code: ErrorCode, reply: FindCoordinatorResponse) -> Coordinator:
    """What a refusal looks like, whatever it says."""
    (entry,) = reply.coordinators
    assert entry.error_message
    return Coordinator(key, -1, "", -1, code, entry.error_message)


def leader_of(harness: HandlerHarness, group: str) -> int:
    partitions = harness.cluster.image.topics[GROUP_TOPIC].partitions
    return partitions[shard_of(group, PARTITIONS)].leader


@pytest.mark.parametrize("version", range(4))
async def test_a_group_is_coordinated_by_the_leader_of_its_partition(
    harness: HandlerHarness, version: int
) -> None:
    reply = await find(harness, FindCoordinatorRequest("g"), version)
    node = leader_of(harness, "g")
    said = "NONE"  # as Kafka says where there is nothing to say (not written in version 0)

    assert reply == FindCoordinatorResponse(
        node_id=node, host=f"plain{node}", port=9000 + node, error_message=said
    )


async def test_groups_are_spread_over_the_brokers(harness: HandlerHarness) -> None:
    groups = [f"group-{number}" for number in range(30)]
    reply = await find(harness, FindCoordinatorRequest(coordinator_keys=groups), 4)

    assert {entry.node_id for entry in reply.coordinators} == {1, 2, 3}


async def test_the_topic_of_groups_is_made_when_the_first_group_asks(harness: HandlerHarness) -> None:
    assert GROUP_TOPIC not in harness.cluster.image.topics
    await find(harness, FindCoordinatorRequest("g"), 3, DENY_EVERYTHING)
    assert GROUP_TOPIC not in harness.cluster.image.topics, "not for those who may not use groups"
    await find(harness, FindCoordinatorRequest("g"), 3)
    assert harness.cluster.image.topics[GROUP_TOPIC].internal


async def test_the_coordinator_is_named_as_the_clients_listener_reaches_it(harness: HandlerHarness) -> None:
    reply = await find(harness, FindCoordinatorRequest("g"), 3, listener=OTHER_LISTENER)
    node = leader_of(harness, "g")

    assert (reply.host, reply.port) == (f"tls{node}", 9100 + node)


@pytest.mark.parametrize("version", [4, 5, 6])
async def test_every_key_is_answered_also_twice_and_also_if_empty(
    harness: HandlerHarness, version: int
) -> None:
    reply = await find(harness, FindCoordinatorRequest(coordinator_keys=["b", "", "b"]), version)

    nodes = [(key, leader_of(harness, key)) for key in ("b", "", "b")]
    assert reply.coordinators == [
        Coordinator(key, node, f"plain{node}", 9000 + node, ErrorCode.NONE, "") for key, node in nodes
    ]


async def test_no_keys_have_no_coordinators(harness: HandlerHarness) -> None:
    assert (await find(harness, FindCoordinatorRequest(), 6)).coordinators == []


@pytest.mark.parametrize(("key_type", "word"), [(TRANSACTION, "Transactions"), (SHARE, "Share groups")])
async def test_what_is_not_offered_is_rejected_for_good_and_says_so(
    harness: HandlerHarness, key_type: int, word: str
) -> None:
    many = await find(harness, FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"]), 6)
    one = await find(harness, FindCoordinatorRequest("x", key_type), 3)

    assert many.coordinators == [nowhere("x", ErrorCode.CLUSTER_AUTHORIZATION_FAILED, many)]
    assert (one.error_code, one.node_id, one.host, one.port) == (31, -1, "", -1)
    for message in (many.coordinators[0].error_message, one.error_message):
        assert str(message).startswith(f"{word} are not offered by this broker")


async def test_a_key_type_that_does_not_exist_is_an_invalid_request(harness: HandlerHarness) -> None:
    many = await find(harness, FindCoordinatorRequest(key_type=9, coordinator_keys=["x"]), 4)
    one = await find(harness, FindCoordinatorRequest("x", 9), 2)

    assert many.coordinators == [nowhere("x", ErrorCode.INVALID_REQUEST, many)]
    assert (one.error_code, one.node_id) == (ErrorCode.INVALID_REQUEST, -1)


async def test_groups_and_transactions_of_others_are_denied(harness: HandlerHarness) -> None:
    groups = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=["mine", "theirs"])
    reply = await find(harness, groups, 6, denying("theirs"))
    assert [entry.error_code for entry in reply.coordinators] == [0, ErrorCode.GROUP_AUTHORIZATION_FAILED]
    assert reply.coordinators[1].host == ""

    transaction = FindCoordinatorRequest("x", TRANSACTION)
    denied = await find(harness, transaction, 3, DENY_EVERYTHING)
    assert denied.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_a_listener_at_which_nobody_is_reached_has_no_coordinator_yet(harness: HandlerHarness) -> None:
    reply = await find(harness, FindCoordinatorRequest("g"), 3, listener="ELSEWHERE")

    assert (reply.error_code, reply.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
