"""A broker that has lost what makes it a member leaves its cluster: others take over. On virtual time."""

import asyncio
from typing import Any

import pytest

from penstock.host.metadata_store import Put
from penstock.metadata.documents import OverridesValue, encode_document
from penstock.metadata.keys import ClusterKeys
from tests.unit.sim.scene import TOPIC, Scene


async def fail(*_: object) -> bool:
    raise ZeroDivisionError("a mistake of ours")


@pytest.mark.parametrize("task", ["controller", "membership", "followers", "metadata"])
def test_a_broker_whose_task_has_ended_ends_its_session(task: str) -> None:
    async def play(scene: Scene) -> None:
        scene.breaks_brokers = True
        broken_id, keys = scene.truth.image.controller_id, ClusterKeys(scene.truth.image.cluster_id)
        broken, cluster_member = scene.broker(broken_id), scene.cluster_member(broken_id)
        told: list[str | None] = []
        broken.on_membership_ended = lambda: told.append(broken.failure)
        if task == "controller":
            cluster_member.controller_loop.step = fail  # type: ignore[method-assign]
        elif task == "membership":
            cluster_member.membership.is_over = fail  # type: ignore[method-assign]
        elif task == "followers":
            cluster_member.followers._partitions = None  # type: ignore[assignment]
        else:
            broken.cluster.subscribe(fail)  # type: ignore[arg-type]
            value = encode_document(OverridesValue({"consumer.session.timeout.ms": "5000"}))
            scene.store.transact([], [Put(keys.group_config("g"), value)])
        others = set(scene.nodes) - {broken_id}
        # Nobody waits until its time is up.
        await scene.until(lambda image: image.admitted == others, 5)
        await scene.until(lambda image: image.controller_id in others, 5)
        assert broken.has_ended_membership
        assert [f"{task!r} ended" in (why or "") for why in told] == [True]
        assert f"{task!r} ended" in (broken.not_ready() or "")

    Scene(play).run()


def test_a_broker_that_has_given_up_stops_at_once_and_can_come_back() -> None:
    async def play(scene: Scene) -> None:
        scene.breaks_brokers = True
        scene.cluster_member(2).membership.is_over = fail  # type: ignore[method-assign]
        await scene.until(lambda image: image.admitted == {1, 3}, 5)
        began = scene.loop.now
        await scene.nodes[2].stop(30)
        assert scene.loop.now - began < 2, "nobody drains who is gone already"
        await scene.nodes[2].kill()
        scene.nodes[2].start()
        await scene.until(lambda image: image.admitted == set(scene.nodes))
        await scene.write()
        await scene.read_everything()

    Scene(play).run()


def test_a_document_that_nobody_can_read_is_no_reason_to_hold_on_to_a_session() -> None:
    async def play(scene: Scene) -> None:
        scene.breaks_brokers = True
        key = ClusterKeys(scene.truth.image.cluster_id).topic("unreadable")
        scene.store.on_commit = lambda event: None  # nor could the simulator
        brokers = [scene.broker(node_id) for node_id in scene.nodes]
        scene.store.transact([], [Put(key, b'{"version":99}')])
        await asyncio.sleep(3)
        assert all(broker.has_ended_membership for broker in brokers)
        assert not [found for found in scene.store.entries if "/live/" in found]
        assert all(key in (broker.not_ready() or "") for broker in brokers)

    Scene(play).run()


def test_a_mistake_with_one_answer_does_not_end_following() -> None:
    async def play(scene: Scene) -> None:
        scene.breaks_brokers = True
        leader = scene.truth.image.topics[TOPIC].partitions[0].leader
        follower = next(node_id for node_id in scene.nodes if node_id != leader)
        for fetcher in scene.cluster_member(follower).fetchers.by_leader.values():
            answered, mistakes = fetcher.append_response, iter([ZeroDivisionError("a mistake of ours")])

            def mistaken(*args: Any, answered: Any = answered, mistakes: Any = mistakes) -> object:
                for mistake in mistakes:
                    raise mistake
                return answered(*args)

            fetcher.append_response = mistaken  # type: ignore[method-assign, assignment]
        for _ in range(6):
            await scene.write()
        await scene.read_everything()
        isr = scene.truth.image.topics[TOPIC].partitions[0].isr
        assert set(isr) == set(scene.nodes), "it has caught up before anybody took it for gone"

    Scene(play).run()
