"""What a broker refuses is refused for what is true, whatever the broker has heard of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from penstock.broker.cluster import Decide
from penstock.broker.topic_creation import change_each
from penstock.controller.decision import NOTHING_TO_DO, Decision, term_of
from penstock.errors import ApiError, ErrorCode
from penstock.host.metadata_store import Delete, Put
from penstock.limits import METADATA_CONTROLLER_MS_MAX
from penstock.metadata.image import ClusterImage
from penstock.metadata.values import BrokerValue, ControllerValue, encode
from penstock.sim.store import SimStore
from tests.unit.broker.cluster_support import KEYS, Node, group, more_ids, nodes, play


@asynccontextmanager
async def one_is_behind(store: SimStore) -> AsyncIterator[Node]:
    """Both know group g. The one that is ahead removes it, which the other is shown a while later."""
    async with nodes(store, 2) as (behind, ahead):
        await ahead.cluster.change(lambda image: group(image, "g"))
        await asyncio.sleep(1)
        behind.client.is_shown.clear()
        await ahead.cluster.change(lambda _: Decision((), (Delete(KEYS.group_config("g")),)))
        asyncio.get_running_loop().call_later(0.1, behind.client.is_shown.set)
        yield behind


def new_group(image: ClusterImage) -> Decision:
    if image.overrides_of_group("g").overrides:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS)
    return group(image, "g", "2")


def unless_there(image: ClusterImage) -> Decision:
    return NOTHING_TO_DO if image.overrides_of_group("g").overrides else group(image, "g", "2")


@pytest.mark.parametrize("decide", [new_group, unless_there])
def test_nothing_is_refused_or_left_because_of_what_another_broker_has_changed_since(decide: Decide) -> None:
    async def scene(store: SimStore) -> None:
        async with one_is_behind(store) as behind:
            image = await behind.cluster.change(decide)
            assert image.overrides_of_group("g").overrides == {"consumer.session.timeout.ms": "2"}

    play(scene)


@pytest.mark.parametrize("validate_only", [False, True])
def test_of_several_changes_none_is_refused_because_of_what_was_true_before(validate_only: bool) -> None:
    async def scene(store: SimStore) -> None:
        async with one_is_behind(store) as behind:
            other = partial(group, name="other")
            outcomes = await change_each(behind.cluster, [other, new_group], validate_only=validate_only)
            assert not [outcome for outcome in outcomes if isinstance(outcome, ApiError)]

    play(scene)


def test_a_refusal_that_is_true_is_told_also_where_others_share_the_store() -> None:
    """Their changes move its revision, and no news of them ever comes."""

    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            await node.cluster.change(new_group)
            store.revision += 7
            with pytest.raises(ApiError, match="TOPIC_ALREADY_EXISTS"):
                await node.cluster.change(new_group)
            assert asyncio.get_running_loop().time() < 1

    play(scene)


# Between two controllers


def controlled(image: ClusterImage, name: str = "g") -> Decision:
    return group(image, name)._replace(compares=term_of(image))


def somebody_controls(store: SimStore) -> None:
    store.transact([], [Put(KEYS.controller, encode(ControllerValue(1)))])


def member_of_a_cluster(store: SimStore) -> None:
    store.transact([], [Put(KEYS.broker(1), encode(BrokerValue(None, {}, incarnation="one")))])


def test_a_change_waits_for_the_next_controller_and_holds_up_nobody_who_needs_none() -> None:
    async def scene(store: SimStore) -> None:
        member_of_a_cluster(store)
        somebody_controls(store)
        async with nodes(store, 1) as (node,):
            store.transact([], [Delete(KEYS.controller)])
            await asyncio.sleep(1)
            changing = asyncio.ensure_future(node.cluster.change(controlled))
            both = [partial(controlled, name="one"), partial(controlled, name="two")]
            several = asyncio.ensure_future(change_each(node.cluster, both))
            trying = asyncio.ensure_future(change_each(node.cluster, [controlled], validate_only=True))
            await node.cluster.change(more_ids)
            await asyncio.sleep(1)
            assert not changing.done()
            assert not several.done()
            assert not trying.done()
            somebody_controls(store)
            assert (await changing).overrides_of_group("g").overrides
            outcomes = [*await several, *await trying]
            assert not [outcome for outcome in outcomes if isinstance(outcome, ApiError)]
            assert asyncio.get_running_loop().time() < 3

    play(scene)


def test_where_nobody_becomes_controller_that_is_said() -> None:
    async def scene(store: SimStore) -> None:
        member_of_a_cluster(store)
        async with nodes(store, 1) as (node,):
            with pytest.raises(ApiError, match="NOT_CONTROLLER"):
                await node.cluster.change(controlled)
            assert asyncio.get_running_loop().time() >= METADATA_CONTROLLER_MS_MAX / 1000

    play(scene)
