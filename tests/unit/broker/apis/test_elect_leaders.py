"""ElectLeaders: preferred leaders, those that nobody needs, and every refusal. UnregisterBroker beside it."""

from collections.abc import AsyncIterator

import pytest

from penstock.broker.apis.elect_leaders import ElectLeaders
from penstock.broker.apis.unregister_broker import UnregisterBroker
from penstock.broker.cluster.topic_creation import RequestedTopic
from penstock.controller.broker_lifecycle import drain
from penstock.controller.elections import ElectionType
from penstock.controller.elections import elect as elect_one
from penstock.controller.reassignment import Reassignment, reassign
from penstock.controller.topics import TopicRequest
from penstock.errors import ErrorCode
from penstock.limits import PARTITIONS_CHANGED_MAX
from penstock.protocol.messages.elect_leaders import (
    ELECT_LEADERS,
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from penstock.protocol.messages.unregister_broker import UNREGISTER_BROKER, UnregisterBrokerRequest
from penstock.security.access import Authorizer
from tests.unit.broker.support import ALLOW_EVERYTHING, DENY_EVERYTHING, HandlerHarness, running_cluster

PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
async def harness() -> AsyncIterator[HandlerHarness]:
    """Topic t has two partitions, everywhere in sync; another than the leader is preferred for the first."""
    async with running_cluster() as harness:
        wanted = RequestedTopic(TopicRequest(name="t", partitions=2, replication_factor=3), {})
        await harness.creation.create([wanted])
        first, *others = harness.cluster.image.topics["t"].partitions[0].replicas
        turned = Reassignment("t", 0, (*others, first))
        await harness.cluster.change(lambda image: reassign(image, turned))
        yield harness


async def elect(
    harness: HandlerHarness,
    partitions: list[int] | None,
    kind: int = PREFERRED,
    *,
    topic: str = "t",
    version: int = 2,
    authorizer: Authorizer = ALLOW_EVERYTHING,
) -> ElectLeadersResponse:
    named = None if partitions is None else [TopicPartitions(topic, partitions)]
    request = ElectLeadersRequest(kind, named)
    return await harness.ask(
        ELECT_LEADERS, ElectLeaders(harness.cluster), request, version, authorizer=authorizer
    )


def codes(reply: ElectLeadersResponse) -> dict[tuple[str, int], int]:
    return {
        (topic.topic, result.partition_id): result.error_code
        for topic in reply.replica_election_results
        for result in topic.partition_result
    }


def leads(harness: HandlerHarness, index: int) -> bool:
    state = harness.cluster.image.topics["t"].partitions[index]
    return state.leader == state.replicas[0]


@pytest.mark.parametrize("version", range(3))
async def test_the_preferred_one_leads_and_who_leads_already_is_told_so(
    harness: HandlerHarness, version: int
) -> None:
    assert not leads(harness, 0)
    reply = await elect(harness, [0, 1, 0, 5], version=version)
    assert reply.error_code == ErrorCode.NONE
    assert codes(reply) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert leads(harness, 0)


async def test_of_all_partitions_those_are_told_that_needed_it(harness: HandlerHarness) -> None:
    assert codes(await elect(harness, None)) == {("t", 0): ErrorCode.NONE}
    assert codes(await elect(harness, None)) == {}
    assert codes(await elect(harness, None, UNCLEAN)) == {}


async def test_of_all_partitions_one_that_another_has_just_elected_is_not_told(
    harness: HandlerHarness,
) -> None:
    decision = elect_one(harness.cluster.image, "t", 0, ElectionType.PREFERRED)
    harness.store.before_commit = decision.changes
    assert codes(await elect(harness, None)) == {}
    assert leads(harness, 0)


async def test_a_preferred_one_that_is_being_drained_is_not_elected(harness: HandlerHarness) -> None:
    preferred = harness.cluster.image.topics["t"].partitions[0].replicas[0]
    await harness.cluster.change(lambda image: drain(image, preferred))
    assert codes(await elect(harness, [0])) == {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert codes(await elect(harness, None)) == {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}


async def test_nobody_is_elected_uncleanly_where_somebody_leads(harness: HandlerHarness) -> None:
    assert codes(await elect(harness, [0], UNCLEAN)) == {("t", 0): ErrorCode.ELECTION_NOT_NEEDED}


async def test_a_kind_that_does_not_exist_elects_nobody(harness: HandlerHarness) -> None:
    reply = await elect(harness, [0], 7)
    assert reply.error_code == ErrorCode.INVALID_REQUEST
    assert codes(reply) == {("t", 0): ErrorCode.INVALID_REQUEST}
    assert not leads(harness, 0)


@pytest.mark.parametrize("version", range(3))
async def test_who_may_not_alter_the_cluster_elects_nobody(harness: HandlerHarness, version: int) -> None:
    reply = await elect(harness, [0], version=version, authorizer=DENY_EVERYTHING)
    assert codes(reply) == {("t", 0): ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    assert not leads(harness, 0)


async def test_without_time_nobody_is_elected(harness: HandlerHarness) -> None:
    request = ElectLeadersRequest(PREFERRED, [TopicPartitions("t", [0])], timeout_ms=0)
    reply = await harness.ask(ELECT_LEADERS, ElectLeaders(harness.cluster), request)
    assert reply.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert not leads(harness, 0)


async def test_too_many_elections_at_once_are_refused(harness: HandlerHarness) -> None:
    reply = await elect(harness, list(range(PARTITIONS_CHANGED_MAX + 1)))
    assert reply.error_code == ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize(
    ("broker_id", "code"),
    [(1, ErrorCode.INVALID_REQUEST), (9, ErrorCode.BROKER_ID_NOT_REGISTERED)],
)
async def test_a_broker_that_is_there_or_unknown_is_not_unregistered(
    harness: HandlerHarness, broker_id: int, code: ErrorCode
) -> None:
    handler, request = UnregisterBroker(harness.cluster), UnregisterBrokerRequest(broker_id)
    reply = await harness.ask(UNREGISTER_BROKER, handler, request)
    assert reply.error_code == code
    assert reply.error_message
    reply = await harness.ask(UNREGISTER_BROKER, handler, request, authorizer=DENY_EVERYTHING)
    assert reply.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert set(harness.cluster.image.brokers) == {1, 2, 3}
