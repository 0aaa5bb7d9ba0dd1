"""What a broker refuses is refused for what is true, whatever the broker has heard of it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest

from penstock.broker.apis.delete_topics import DeleteTopics
from penstock.broker.cluster.metadata_changes import MetadataChange
from penstock.broker.context import RequestContext
from penstock.controller.decision import NOTHING_TO_DO, Decide, Decision
from penstock.errors import ApiError, ErrorCode
from penstock.host.metadata_store import Delete
from penstock.metadata.cluster_image import ClusterImage
from penstock.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.security.access import ANONYMOUS
from penstock.sim.store import SimStore
from penstock.types import NO_TOPIC_ID, TopicId
from tests.unit.broker.cluster.cluster_support import (
    KEYS,
    Node,
    admit,
    group,
    more_ids,
    new_topic,
    nodes,
    play,
    somebody_controls,
)
from tests.unit.broker.support import denying


@asynccontextmanager
async def one_is_behind(store: SimStore) -> AsyncIterator[Node]:
    """Both know group g. The one that is ahead removes it, which the other is shown a while later."""
    async with nodes(store, 2) as (behind, ahead):
        await ahead.cluster.change(lambda image: group(image, "g"))
        await asyncio.sleep(1)
        behind.client.watch_events_flow.clear()
        await ahead.cluster.change(lambda _: Decision((), (Delete(KEYS.group_config("g")),)))
        asyncio.get_running_loop().call_later(0.1, behind.client.watch_events_flow.set)
        yield behind


def new_group(image: ClusterImage) -> Decision:
    if image.overrides_of_group("g").overrides:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS)
    return group(image, "g", "2")


def unless_there(image: ClusterImage) -> Decision:
    return NOTHING_TO_DO if image.overrides_of_group("g").overrides else group(image, "g", "2")


@pytest.mark.parametrize("decide", [new_group, unless_there])
def test_a_change_is_decided_again_when_another_broker_changed_its_reason(decide: Decide) -> None:
    async def scene(store: SimStore) -> None:
        async with one_is_behind(store) as behind:
            image = await MetadataChange(behind.cluster).commit(decide)
            assert image.overrides_of_group("g").overrides == {"consumer.session.timeout.ms": "2"}

    play(scene)


def other_group(image: ClusterImage) -> Decision:
    return group(image, "other")


@pytest.mark.parametrize("decide", [new_group, unless_there])
def test_each_of_several_changes_is_decided_on_the_newest_image(decide: Decide) -> None:
    async def scene(store: SimStore) -> None:
        async with one_is_behind(store) as behind:
            outcomes = await MetadataChange(behind.cluster).commit_each([other_group, decide])
            assert not refused(outcomes)
            assert behind.cluster.image.overrides_of_group("g").overrides

    play(scene)


def test_what_is_only_tried_is_tried_on_what_is_true() -> None:
    async def scene(store: SimStore) -> None:
        async with one_is_behind(store) as behind:
            assert not refused(await MetadataChange(behind.cluster).validate_each([other_group, new_group]))
            assert not behind.cluster.image.overrides_of_group("other").overrides

    play(scene)


def test_what_is_only_tried_is_refused_at_once_while_the_store_is_away() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            store.become_unavailable()
            await asyncio.sleep(20)
            began = asyncio.get_running_loop().time()
            outcomes = await MetadataChange(node.cluster).validate_each([new_group, other_group])
            assert [outcome.code for outcome in refused(outcomes)] == [ErrorCode.REQUEST_TIMED_OUT] * 2
            assert asyncio.get_running_loop().time() == began

    play(scene)


def test_a_refusal_that_cannot_be_confirmed_is_not_told() -> None:
    async def scene(store: SimStore) -> None:
        async with one_is_behind(store) as behind:
            store.become_unavailable()
            outcomes = await MetadataChange(behind.cluster).commit_each([other_group, new_group])
            assert [outcome.code for outcome in refused(outcomes)] == [ErrorCode.REQUEST_TIMED_OUT] * 2

    play(scene)


def test_one_request_asks_the_store_once_however_much_of_it_is_refused() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            await node.cluster.change(new_group)
            reads, changing = count_reads(store), MetadataChange(node.cluster)
            for _ in range(3):
                assert len(refused(await changing.commit_each([new_group] * 200))) == 200
            assert len(reads) == 1

    play(scene)


def test_many_refusals_ask_the_store_together_and_hold_up_nobody() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            await node.cluster.change(new_group)
            reads = count_reads(store)
            refusals = [
                asyncio.ensure_future(MetadataChange(node.cluster).commit(new_group)) for _ in range(500)
            ]
            await asyncio.sleep(0)
            began = asyncio.get_running_loop().time()
            await node.cluster.change(more_ids)
            assert asyncio.get_running_loop().time() - began < 0.1  # a transaction and its news
            assert len(refused(await asyncio.gather(*refusals, return_exceptions=True))) == 500
            assert len(reads) <= 2

    play(scene)


def test_a_topic_found_on_a_second_look_is_deleted_only_with_permission() -> None:
    async def scene(store: SimStore) -> None:
        admit(store, 1)
        somebody_controls(store)
        async with nodes(store, 2) as (behind, ahead):
            behind.client.watch_events_flow.clear()
            for number, name in enumerate(("free", "denied", "__consumer_offsets"), start=1):
                await ahead.cluster.change(partial(new_topic, name=name, topic_id=topic_id(number)))
            asyncio.get_running_loop().call_later(0.1, behind.client.watch_events_flow.set)
            asked = [DeleteTopicState(None, topic_id(number)) for number in (1, 2, 3)]
            asked.append(DeleteTopicState("free", NO_TOPIC_ID))
            context = RequestContext(ANONYMOUS, "kafka", "peer", denying("denied"))
            request = DeleteTopicsRequest(asked, timeout_ms=1)
            answer = await DeleteTopics(behind.cluster)(request, context.for_request(6, None, frozenset()))
            codes = {(result.name, result.topic_id): result.error_code for result in answer.responses}
            assert codes == {
                ("free", topic_id(1)): ErrorCode.INVALID_REQUEST,  # by name and by id
                (None, topic_id(2)): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                (None, topic_id(3)): ErrorCode.INVALID_TOPIC_EXCEPTION,
            }
            assert len(behind.cluster.image.topics) == 3

    play(scene)


def topic_id(number: int) -> TopicId:
    return TopicId(bytes([number]) * 16)


def refused(outcomes: Sequence[ClusterImage | BaseException]) -> list[ApiError]:
    return [outcome for outcome in outcomes if isinstance(outcome, ApiError)]


def count_reads(store: SimStore) -> list[str]:
    """What is read from now on."""
    read, prefixes = store.read, list[str]()
    store.read = lambda prefix: prefixes.append(prefix) or read(prefix)  # type: ignore
    return prefixes


def test_a_refusal_that_is_true_is_told_also_where_others_share_the_store() -> None:
    """Their changes move its revision, and no news of them ever comes."""

    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            await node.cluster.change(new_group)
            store.revision += 7
            with pytest.raises(ApiError, match="TOPIC_ALREADY_EXISTS"):
                await MetadataChange(node.cluster).commit(new_group)
            assert asyncio.get_running_loop().time() < 1

    play(scene)
