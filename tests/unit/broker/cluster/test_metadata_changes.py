"""Between two controllers a request waits for the next one, and holds up nobody."""

import asyncio
from functools import partial

import pytest

from penstock.broker.apis.alter_partition_reassignments import AlterPartitionReassignments
from penstock.broker.apis.delete_topics import DeleteTopics
from penstock.broker.cluster.metadata_changes import MetadataChange, no_controller_error
from penstock.broker.cluster.topic_creation import TopicCreation
from penstock.broker.context import RequestContext
from penstock.controller.decision import Decision, NoController, compare_term
from penstock.errors import ApiError, ErrorCode
from penstock.host.clock import SystemClock
from penstock.host.metadata_store import Delete
from penstock.host.randomness import SystemRandomness
from penstock.limits import METADATA_CONTROLLER_MS_MAX
from penstock.metadata.cluster_image import ClusterImage
from penstock.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.security.access import ANONYMOUS, AllowEverything
from penstock.sim.store import SimStore
from penstock.types import TopicId
from tests.unit.broker.cluster.cluster_support import (
    KEYS,
    admit,
    group,
    more_ids,
    new_topic,
    nodes,
    play,
    somebody_controls,
)


def controlled(image: ClusterImage, name: str = "g") -> Decision:
    return group(image, name)._replace(compares=compare_term(image))


def test_a_request_that_waits_for_a_controller_delays_no_other_request() -> None:
    async def scene(store: SimStore) -> None:
        admit(store, 1)
        somebody_controls(store)
        async with nodes(store, 1) as (node,):
            store.transact([], [Delete(KEYS.controller)])
            await asyncio.sleep(1)
            both = [partial(controlled, name="one"), partial(controlled, name="two")]
            one = asyncio.ensure_future(MetadataChange(node.cluster).commit(controlled))
            several = asyncio.ensure_future(MetadataChange(node.cluster).commit_each(both))
            trying = asyncio.ensure_future(MetadataChange(node.cluster).validate_each([controlled]))
            await node.cluster.change(more_ids)
            await asyncio.sleep(1)
            assert not any(asked.done() for asked in (one, several, trying))
            somebody_controls(store)
            assert (await one).overrides_of_group("g").overrides
            outcomes = [*await several, *await trying]
            assert not [outcome for outcome in outcomes if isinstance(outcome, ApiError)]
            assert asyncio.get_running_loop().time() < 3

    play(scene)


@pytest.mark.parametrize("count", [1, 1_000])
def test_without_a_controller_all_changes_of_a_request_fail_after_one_wait(
    count: int,
) -> None:
    async def scene(store: SimStore) -> None:
        admit(store, 1)
        async with nodes(store, 1) as (node,):
            names = [partial(controlled, name=f"g{number}") for number in range(count)]
            outcomes = await MetadataChange(node.cluster).commit_each(names)
            assert len(outcomes) == count
            assert isinstance(no_controller_error(outcomes), NoController)
            took_ms = asyncio.get_running_loop().time() * 1000
            assert METADATA_CONTROLLER_MS_MAX <= took_ms < METADATA_CONTROLLER_MS_MAX + 2_000

    play(scene)


def test_however_it_is_refused_it_is_waited_for_no_longer_than_once() -> None:
    def never(_: ClusterImage) -> Decision:
        raise NoController

    async def scene(store: SimStore) -> None:
        admit(store, 1)
        somebody_controls(store)
        async with nodes(store, 1) as (node,):
            with pytest.raises(NoController):
                await MetadataChange(node.cluster).commit(never)

    play(scene)


def test_who_does_not_wait_is_refused_at_once() -> None:
    async def scene(store: SimStore) -> None:
        admit(store, 1)
        async with nodes(store, 1) as (node,):
            with pytest.raises(NoController):
                await MetadataChange(node.cluster, waits_for_controller=False).commit(controlled)
            assert asyncio.get_running_loop().time() < 1

    play(scene)


def test_what_is_refused_for_itself_says_so_beside_what_needs_a_controller() -> None:
    def never(_: ClusterImage) -> Decision:
        raise ApiError(ErrorCode.INVALID_CONFIG)

    async def scene(store: SimStore) -> None:
        admit(store, 1)
        async with nodes(store, 1) as (node,):
            outcomes = await MetadataChange(node.cluster, waits_for_controller=False).commit_each(
                [never, controlled]
            )
            codes = [outcome.code for outcome in outcomes if isinstance(outcome, ApiError)]
            assert codes == [ErrorCode.INVALID_CONFIG, ErrorCode.NOT_CONTROLLER]
            assert no_controller_error(outcomes) is None

    play(scene)


def test_that_there_is_no_controller_refuses_moves_as_a_whole() -> None:
    """There clients look for it, and ask again."""

    async def scene(store: SimStore) -> None:
        admit(store, 1)
        somebody_controls(store)
        async with nodes(store, 1) as (node,):
            await node.cluster.change(partial(new_topic, name="t", topic_id=TopicId(b"t" * 16)))
            admit(store, 2)
            store.transact([], [Delete(KEYS.controller)])
            context = RequestContext(ANONYMOUS, "kafka", "peer", AllowEverything())
            move = ReassignableTopic("t", [ReassignablePartition(0, [2, 1])])
            request = AlterPartitionReassignmentsRequest(topics=[move])
            moved = await AlterPartitionReassignments(node.cluster)(request, context)
            assert moved.error_code == ErrorCode.NOT_CONTROLLER
            assert moved.responses[0].partitions[0].error_code == ErrorCode.NOT_CONTROLLER
            somebody_controls(store)
            moved = await AlterPartitionReassignments(node.cluster)(request, context)
            assert moved.error_code == moved.responses[0].partitions[0].error_code == ErrorCode.NONE

    play(scene)


def test_a_topic_is_deleted_by_its_id_when_there_is_a_controller_again() -> None:
    async def scene(store: SimStore) -> None:
        admit(store, 1)
        somebody_controls(store)
        async with nodes(store, 1) as (node,):
            topic_id = TopicId(b"t" * 16)
            await node.cluster.change(partial(new_topic, name="t", topic_id=topic_id))
            store.transact([], [Delete(KEYS.controller)])
            await asyncio.sleep(1)
            context = RequestContext(ANONYMOUS, "kafka", "peer", AllowEverything())
            request = DeleteTopicsRequest([DeleteTopicState(None, topic_id)], timeout_ms=1)
            asking = asyncio.ensure_future(
                DeleteTopics(node.cluster)(request, context.for_request(6, None, frozenset()))
            )
            await asyncio.sleep(1)
            assert not asking.done()
            somebody_controls(store)
            async with asyncio.timeout(1):
                (result,) = (await asking).responses
            assert (result.name, result.error_code) == ("t", ErrorCode.NONE)
            assert not node.cluster.image.topics

    play(scene)


def test_a_topic_that_is_to_be_made_on_the_way_has_no_leader_yet() -> None:
    """What else is said of it, librdkafka takes for the end of the records that wait for it."""

    async def scene(store: SimStore) -> None:
        admit(store, 1)
        async with nodes(store, 1) as (node,):
            creation = TopicCreation(node.cluster, SystemClock(), SystemRandomness())
            assert await creation.create_missing(["t"]) == {"t": ErrorCode.LEADER_NOT_AVAILABLE}
            assert asyncio.get_running_loop().time() < 1

    play(scene)
