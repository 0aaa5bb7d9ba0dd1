"""Between two controllers a request waits for the next one, and holds up nobody."""

import asyncio
from functools import partial

import pytest

from penstock.broker.apis.alter_partition_reassignments import AlterPartitionReassignments
from penstock.broker.apis.elect_leaders import ElectLeaders
from penstock.broker.changing import Changing, refusal_of_all
from penstock.broker.context import RequestContext
from penstock.controller.decision import Decision, NoController, term_of
from penstock.errors import ApiError, ErrorCode
from penstock.host.metadata_store import Delete
from penstock.limits import METADATA_CONTROLLER_MS_MAX
from penstock.metadata.image import ClusterImage
from penstock.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.messages.elect_leaders import ElectLeadersRequest
from penstock.security.access import ANONYMOUS, AllowEverything
from penstock.sim.store import SimStore
from penstock.types import TopicId
from tests.unit.broker.cluster_support import (
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
    return group(image, name)._replace(compares=term_of(image))


def test_a_request_waits_for_the_next_controller_and_holds_up_nobody_who_needs_none() -> None:
    async def scene(store: SimStore) -> None:
        admit(store, 1)
        somebody_controls(store)
        async with nodes(store, 1) as (node,):
            store.transact([], [Delete(KEYS.controller)])
            await asyncio.sleep(1)
            both = [partial(controlled, name="one"), partial(controlled, name="two")]
            one = asyncio.ensure_future(Changing(node.cluster).make(controlled))
            several = asyncio.ensure_future(Changing(node.cluster).make_each(both))
            trying = asyncio.ensure_future(Changing(node.cluster).try_each([controlled]))
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
def test_where_nobody_becomes_controller_it_is_said_after_one_wait_however_much_was_asked_for(
    count: int,
) -> None:
    async def scene(store: SimStore) -> None:
        admit(store, 1)
        async with nodes(store, 1) as (node,):
            names = [partial(controlled, name=f"g{number}") for number in range(count)]
            outcomes = await Changing(node.cluster).make_each(names)
            assert len(outcomes) == count
            assert isinstance(refusal_of_all(outcomes), NoController)
            took_ms = asyncio.get_running_loop().time() * 1000
            assert METADATA_CONTROLLER_MS_MAX <= took_ms < METADATA_CONTROLLER_MS_MAX + 2_000

    play(scene)


def test_who_does_not_wait_is_refused_at_once() -> None:
    async def scene(store: SimStore) -> None:
        admit(store, 1)
        async with nodes(store, 1) as (node,):
            with pytest.raises(NoController):
                await Changing(node.cluster, waits=False).make(controlled)
            assert asyncio.get_running_loop().time() < 1

    play(scene)


def test_what_is_refused_for_itself_says_so_beside_what_needs_a_controller() -> None:
    def never(_: ClusterImage) -> Decision:
        raise ApiError(ErrorCode.INVALID_CONFIG)

    async def scene(store: SimStore) -> None:
        admit(store, 1)
        async with nodes(store, 1) as (node,):
            outcomes = await Changing(node.cluster, waits=False).make_each([never, controlled])
            codes = [outcome.code for outcome in outcomes if isinstance(outcome, ApiError)]
            assert codes == [ErrorCode.INVALID_CONFIG, ErrorCode.NOT_CONTROLLER]
            assert refusal_of_all(outcomes) is None

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
            moved = await AlterPartitionReassignments(node.cluster)(
                AlterPartitionReassignmentsRequest(topics=[move]), context
            )
            assert moved.error_code == ErrorCode.NOT_CONTROLLER
            assert moved.responses[0].partitions[0].error_code == ErrorCode.NOT_CONTROLLER

    play(scene)


def test_an_election_waits_for_the_next_controller() -> None:
    async def scene(store: SimStore) -> None:
        admit(store, 1)
        admit(store, 2)
        somebody_controls(store)
        async with nodes(store, 1) as (node,):
            await node.cluster.change(partial(new_topic, name="t", topic_id=TopicId(b"t" * 16)))
            store.transact([], [Delete(KEYS.controller)])
            await asyncio.sleep(1)
            context = RequestContext(ANONYMOUS, "kafka", "peer", AllowEverything())
            asking = asyncio.ensure_future(
                ElectLeaders(node.cluster)(ElectLeadersRequest(topic_partitions=None), context)
            )
            await asyncio.sleep(1)
            assert not asking.done()
            somebody_controls(store)
            assert (await asking).error_code == ErrorCode.NONE

    play(scene)
