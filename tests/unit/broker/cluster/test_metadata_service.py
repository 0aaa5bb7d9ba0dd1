"""The image follows the store, and changes are carried out, whatever the store does meanwhile."""

import asyncio

import pytest

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.config.broker import BrokerConfig
from penstock.controller.broker_lifecycle import register_standalone
from penstock.controller.decision import Decide, Decision
from penstock.controller.producer_ids import next_producer_id_block
from penstock.controller.topics import NewTopicFacts, TopicDefaults, TopicRequest, create_topic, delete_topic
from penstock.errors import ApiError, CorruptData, ErrorCode, StorageFull
from penstock.host.metadata_store import ABSENT, CommittedTransaction, Compare, Conflict, Delete
from penstock.limits import PRODUCER_IDS_PER_BLOCK
from penstock.metadata.cluster_image import ClusterImage
from penstock.metadata.image_builder import image_of
from penstock.sim.store import SimStore, StoreBackup, StoreFaults
from penstock.types import TopicId
from tests.unit.broker.cluster.cluster_support import KEYS, Node, group, more_ids, nodes, play

WAIT_SECONDS_MAX = 60
"""Simulated time: a test that waits in vain fails at once."""


def test_a_change_is_answered_when_every_subscriber_has_followed_it() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            followed: list[int] = []

            async def follow(before: ClusterImage, after: ClusterImage) -> None:
                await asyncio.sleep(1)
                followed.append(after.producer_ids.next_id - before.producer_ids.next_id)

            node.cluster.subscribe(follow)
            image = await node.cluster.change(more_ids)
            assert image.producer_ids.next_id == PRODUCER_IDS_PER_BLOCK
            assert followed == [PRODUCER_IDS_PER_BLOCK]

    play(scene)


def test_every_broker_sees_what_one_has_changed() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 3) as (one, *others):
            image = await one.cluster.change(lambda image: group(image, "g"))
            await asyncio.sleep(0.1)
            assert [node.cluster.image for node in others] == [image, image]

    play(scene)


def test_decisions_that_collide_are_made_again_until_each_has_happened() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 4) as brokers:
            changes = [node.cluster.change(more_ids) for node in brokers for _ in range(5)]
            images = await asyncio.gather(*changes)
            assert max(image.producer_ids.next_id for image in images) == 20 * PRODUCER_IDS_PER_BLOCK

    play(scene)


def test_a_decision_about_a_deleted_topic_is_repeated_without_a_full_read() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            await node.cluster.change(lambda image: group(image, "g"))
            read = store.read
            prefixes: list[str] = []
            store.read = lambda prefix: prefixes.append(prefix) or read(prefix)  # type: ignore
            store.transact([], [Delete(KEYS.group_config("g"))])
            image = await node.cluster.change(lambda image: group(image, "g", "2"))
            assert image.overrides_of_group("g").overrides == {"consumer.session.timeout.ms": "2"}
            assert prefixes == []

    play(scene)


def test_a_conflict_that_no_news_explains_is_settled_by_reading() -> None:
    """The watch is slow, the store answers at once."""

    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            await node.cluster.change(lambda image: group(image, "g"))
            await asyncio.sleep(1)
            store.faults = StoreFaults(delay_seconds=(60.0, 60.0))
            store.transact([], [Delete(KEYS.group_config("g"))])
            await asyncio.sleep(0.01)  # on its way to the watcher
            store.faults = StoreFaults()
            changing = asyncio.ensure_future(
                node.cluster.commit_once(group(node.cluster.image, "g", "2"))  # on what is no longer true
            )
            assert await changing == Conflict(None)
            await node.cluster.wait_for_conflict(Conflict(None), node.cluster.image)
            assert node.cluster.image.overrides_of_group("g").revision == ABSENT

    play(scene)


def test_a_topic_larger_than_a_transaction_comes_into_being_at_one_moment() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 2) as (node, other):
            await node.cluster.change(lambda image: register_standalone(image, 1, rack=None, endpoints={}))
            counts: set[int] = set()

            async def follow(_: ClusterImage, after: ClusterImage) -> None:
                counts.add(after.partition_count)

            other.cluster.subscribe(follow)
            request = TopicRequest(name="t", partitions=1_000)
            new = NewTopicFacts(TopicId(b"t" * 16), 0)
            await node.cluster.change(
                lambda image: create_topic(image, request, new, defaults=TopicDefaults(1, 1))
            )
            assert len(node.cluster.image.topics["t"].partitions) == 1_000
            await asyncio.sleep(1)
            assert counts == {0, 1_000}
            await node.cluster.change(lambda image: delete_topic(image, name="t"))
            await asyncio.sleep(1)
            assert other.cluster.image.topics == {}
            assert [key for key in store.entries if "/partitions/" in key] == []

    play(scene)


def test_what_changes_nothing_is_answered_at_once() -> None:
    """Others who share the store move its revision, and nothing of that is ever seen here."""

    async def scene(store: SimStore) -> None:
        store.faults.foreign_changes = 1.0
        async with nodes(store, 1) as (node,):
            nothing = Decision((), (Delete(KEYS.group_config("absent")),))
            await node.cluster.change(lambda _: nothing)
            assert asyncio.get_running_loop().time() < 1
            assert isinstance(await node.cluster.commit_once(nothing), CommittedTransaction)

    play(scene)


# A store that does not answer


def test_a_lost_answer_is_no_lost_change() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            store.faults.lost_replies = 1.0
            changing = asyncio.ensure_future(node.cluster.change(lambda image: group(image, "g")))
            await asyncio.sleep(1)
            store.faults.lost_replies = 0.0
            image = await changing
            assert image.overrides_of_group("g").overrides

    play(scene)


def test_an_unavailable_store_is_reported_at_once_and_changes_resume_after_it() -> None:
    async def scene(store: SimStore) -> None:
        loop = asyncio.get_running_loop()
        async with nodes(store, 1) as (node,):
            image = await node.cluster.change(more_ids)
            went_at = loop.time()
            store.become_unavailable()
            with pytest.raises(ApiError) as refusal:
                await node.cluster.change(more_ids)
            assert refusal.value.code == ErrorCode.REQUEST_TIMED_OUT
            await asyncio.sleep(20)
            assert node.cluster.image == image
            assert node.cluster.store_unavailable_since is not None
            assert went_at <= node.cluster.store_unavailable_since < went_at + 10
            asked_at = loop.time()
            with pytest.raises(ApiError, match="cannot be used"):
                await node.cluster.change(more_ids)
            assert loop.time() == asked_at
            store.become_available()
            await asyncio.sleep(10)
            assert node.cluster.store_unavailable_since is None
            assert (await node.cluster.change(more_ids)).revision > image.revision

    play(scene)


def test_a_broker_that_missed_compacted_history_reads_everything_again() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 2) as (cut, other):
            cut.client.is_disconnected = True
            for number in range(5):
                await other.cluster.change(lambda image, number=number: group(image, f"g{number}"))  # type: ignore[misc]
            await asyncio.sleep(20)
            store.compact()
            cut.client.is_disconnected = False
            await asyncio.sleep(10)
            assert cut.cluster.image == image_of(store.read(KEYS.prefix), "c")

    play(scene)


def test_a_watch_that_lags_behind_what_was_read_does_not_take_the_image_back() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            store.faults = StoreFaults(delay_seconds=(2.0, 2.0))
            store.transact([], group(node.cluster.image, "g").changes)
            store.transact([], [Delete(KEYS.group_config("g"))])
            await asyncio.sleep(0.01)  # both are on their way to the watcher
            store.faults = StoreFaults()
            await node.cluster.wait_for_conflict(Conflict(None), node.cluster.image)  # reads everything
            revisions = [node.cluster.image.revision]

            async def follow(_: ClusterImage, after: ClusterImage) -> None:
                revisions.append(after.revision)

            node.cluster.subscribe(follow)
            await asyncio.sleep(10)
            assert revisions == [store.revision]
            assert node.cluster.image == image_of(store.read(KEYS.prefix), "c")

    play(scene)


def test_a_store_that_has_gone_back_ends_everything() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            await node.cluster.change(more_ids)
            store.become_unavailable()
            await asyncio.sleep(20)
            store.restore(StoreBackup(1, {}, []))
            store.compact(1_000)
            store.become_available()
            with pytest.raises(CorruptData, match="put back from an older copy"):
                await node.running
            with pytest.raises(ApiError):
                await node.cluster.change(more_ids)

    play(scene)


def test_a_store_put_back_from_an_older_copy_ends_everybody_who_has_seen_more() -> None:
    """With all of its history: nothing that is asked of it is missing, and nothing that is watched comes."""

    async def scene(store: SimStore) -> None:
        async with nodes(store, 3) as started:
            await started[0].cluster.change(more_ids)
            backup = store.backup()
            for _ in range(20):
                await started[0].cluster.change(more_ids)
            await asyncio.sleep(1)
            store.become_unavailable()
            await asyncio.sleep(20)
            store.restore(backup)
            store.become_available()
            await asyncio.wait([node.running for node in started], timeout=20)
            assert all(node.running.done() for node in started)
            for node in started:
                with pytest.raises(CorruptData, match=r"put back from an older copy\. Put back the one"):
                    await node.running

    play(scene)


def test_a_store_that_was_put_back_and_has_come_as_far_again_is_noticed() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 2) as (one, two):
            await one.cluster.change(more_ids)
            backup = store.backup()
            await one.cluster.change(lambda image: group(image, "lost"))
            two.client.is_disconnected = True
            store.become_unavailable()
            await asyncio.sleep(20)
            store.restore(backup)
            store.transact([], group(image_of(store.read(KEYS.prefix), "c"), "another").changes)
            store.transact([], group(image_of(store.read(KEYS.prefix), "c"), "and more").changes)
            store.become_available()
            two.client.is_disconnected = False
            for node in (one, two):
                with pytest.raises(CorruptData, match="shows another change at revision"):
                    await asyncio.wait_for(node.running, 20)

    play(scene)


def test_a_full_read_publishes_nothing_of_a_store_that_was_restored() -> None:
    """A partition that it does not know would be deleted."""

    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            backup = store.backup()
            await node.cluster.change(lambda image: group(image, "lost"))
            store.restore(backup)
            store.faults = StoreFaults(delay_seconds=(60.0, 60.0))
            for name in ("another", "and more"):
                store.transact([], group(image_of(store.read(KEYS.prefix), "c"), name).changes)
            await asyncio.sleep(0.01)  # both are on their way to the watcher
            store.faults = StoreFaults()
            with pytest.raises(CorruptData, match="shows another change at revision"):
                await node.cluster.wait_for_conflict(Conflict(None), node.cluster.image)
            assert "lost" in node.cluster.image.group_overrides
            with pytest.raises(CorruptData):
                await node.running

    play(scene)


def test_who_writes_to_a_store_that_was_put_back_notices_first() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            for _ in range(20):
                await node.cluster.change(more_ids)
            store.revision = 3
            with pytest.raises(CorruptData):
                await node.cluster.commit_once(group(node.cluster.image, "g"))
            with pytest.raises(CorruptData):
                await node.running

    play(scene)


# Decisions that cannot be made


def divided_by_zero(_: ClusterImage) -> Decision:
    raise ZeroDivisionError("a mistake of ours")


def changed_twice(_: ClusterImage) -> Decision:
    return Decision((), (Delete(KEYS.group_config("g")), Delete(KEYS.group_config("g"))))


@pytest.mark.parametrize(
    ("mistaken", "kind"), [(divided_by_zero, ZeroDivisionError), (changed_twice, AssertionError)]
)
def test_a_decision_that_fails_is_the_trouble_of_who_asked(mistaken: Decide, kind: type[Exception]) -> None:
    async def scene(store: SimStore) -> None:
        reported: list[BaseException] = []
        client = store.client()
        image = image_of(store.read(KEYS.prefix), "c")
        cluster = MetadataService(
            client, image, BrokerConfig.of(), report=lambda name, mistake: reported.append(mistake)
        )
        running = asyncio.ensure_future(cluster.run())

        with pytest.raises(ApiError) as refusal:
            await cluster.change(mistaken)
        assert refusal.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert [type(mistake) for mistake in reported] == [kind]
        assert (await cluster.change(more_ids)).producer_ids.next_id == PRODUCER_IDS_PER_BLOCK
        running.cancel()
        await asyncio.wait([running])

    play(scene)


def test_a_decision_that_rests_on_more_than_a_transaction_takes_is_refused() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            compares = tuple(Compare(KEYS.group_config(f"g{n}"), ABSENT) for n in range(200))
            too_much = Decision(compares, group(node.cluster.image, "g").changes)
            with pytest.raises(ApiError, match="200 keys at once, and the metadata store takes 128"):
                await node.cluster.change(lambda _: too_much)
            with pytest.raises(ApiError, match="200 keys"):
                await node.cluster.commit_once(too_much)
            assert await node.cluster.change(more_ids)

    play(scene)


@pytest.mark.parametrize("mistake", [StorageFull("no space left"), ValueError("a mistake of ours")])
def test_a_subscriber_that_fails_ends_everything(mistake: Exception) -> None:
    """It has missed a difference of images, as have those after it, and no later image makes up for that."""

    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):

            async def fail(_: ClusterImage, after: ClusterImage) -> None:
                if "g" in after.group_overrides:
                    raise mistake

            node.cluster.subscribe(fail)
            change = asyncio.ensure_future(node.cluster.change(lambda image: group(image, "g")))
            with pytest.raises(type(mistake)):
                await asyncio.wait_for(node.running, WAIT_SECONDS_MAX)
            with pytest.raises((ApiError, asyncio.CancelledError)):
                await change
            with pytest.raises(ApiError, match="can no longer be changed"):
                await node.cluster.change(more_ids)

    play(scene)


def test_a_subscriber_that_fails_ends_everything_whoever_read_the_image() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            await lag_behind(store, node)

            async def fail(_: ClusterImage, after: ClusterImage) -> None:
                raise ValueError("a mistake of ours")

            node.cluster.subscribe(fail)
            with pytest.raises(ValueError, match="a mistake of ours"):
                await node.cluster.wait_until_current()
            with pytest.raises(ValueError, match="a mistake of ours"):
                await node.running

    play(scene)


def test_all_subscribers_follow_although_who_read_the_image_gives_up() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            await lag_behind(store, node)
            is_told, followed = asyncio.Event(), []

            async def be_slow(_: ClusterImage, after: ClusterImage) -> None:
                is_told.set()
                await asyncio.sleep(1)

            async def follow(_: ClusterImage, after: ClusterImage) -> None:
                followed.append("g" in after.group_overrides)

            node.cluster.subscribe(be_slow)
            node.cluster.subscribe(follow)
            reading = asyncio.ensure_future(node.cluster.wait_until_current())
            await is_told.wait()
            reading.cancel()
            await asyncio.sleep(2)
            assert followed == [True]

    play(scene)


async def lag_behind(store: SimStore, node: Node) -> None:
    """Something is committed that the watch of this broker does not show."""
    await asyncio.sleep(0.1)
    node.client.watch_events_flow.clear()
    decision = group(node.cluster.image, "g")
    store.transact(decision.compares, decision.changes)


def test_a_proposal_is_tried_once_beside_the_changes_that_wait() -> None:
    async def scene(store: SimStore) -> None:
        async with nodes(store, 1) as (node,):
            store.faults = StoreFaults(delay_seconds=(0.5, 0.5))
            waiting = [asyncio.ensure_future(node.cluster.change(more_ids)) for _ in range(10)]
            await asyncio.sleep(0)
            decision = group(node.cluster.image, "quick")
            assert isinstance(await node.cluster.commit_once(decision), CommittedTransaction)
            assert "quick" in node.cluster.image.group_overrides
            assert isinstance(await node.cluster.commit_once(decision), Conflict)
            assert sum(change.done() for change in waiting) < 5
            await asyncio.gather(*waiting)

    play(scene)


@pytest.mark.parametrize("seed", range(8))
def test_under_store_failures_images_agree_and_each_block_of_ids_is_given_once(seed: int) -> None:
    faults = StoreFaults(
        delay_seconds=(0.0, 0.2),
        stalls=0.02,
        lost_requests=0.05,
        lost_replies=0.05,
        broken_watches=0.1,
        foreign_changes=0.3,
    )
    given: list[int] = []

    async def use(node: Node) -> None:
        for _ in range(10):
            blocks: list[int] = []

            def decide(image: ClusterImage, blocks: list[int] = blocks) -> Decision:
                block = next_producer_id_block(image)
                blocks.append(block.first)
                return block.decision

            try:
                await node.cluster.change(decide)
            except ApiError:
                continue
            given.append(blocks[-1])

    async def trouble(store: SimStore, brokers: list[Node]) -> None:
        for node in brokers:
            await asyncio.sleep(5)
            node.client.is_disconnected = True
            await asyncio.sleep(5)
            store.compact()
            node.client.is_disconnected = False
            store.become_unavailable()
            await asyncio.sleep(5)
            store.become_available()

    async def scene(store: SimStore) -> None:
        async with nodes(store, 3) as brokers:
            await asyncio.gather(trouble(store, brokers), *map(use, brokers))
            store.faults = StoreFaults()
            await asyncio.sleep(60)
            fresh = image_of(store.read(KEYS.prefix), "c")
            for node in brokers:
                assert node.cluster.store_unavailable_since is None
                assert node.cluster.image.producer_ids == fresh.producer_ids

    play(scene, faults, seed)
    assert given
    assert len(set(given)) == len(given)
