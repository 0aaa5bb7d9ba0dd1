"""With flush.policy=os no two brokers lose their memory at once, as the cluster sees it. On virtual time.

The cluster treats a broker that ended uncleanly as one that has lost its memory. With two of them at once no
broker is left that the cluster knows to have all acknowledged records, and it may elect one that lacks some.
"""

import asyncio
from collections.abc import Awaitable, Callable

from penstock.sim.cluster.extras import NO_EXTRAS
from penstock.sim.cluster.faults.faults import Faults
from penstock.sim.cluster.plan import Fault, FaultKind
from tests.unit.sim.scene import Scene

POWER_SECONDS = 5.0


def play_with_flush_os(play: Callable[[Scene], Awaitable[None]]) -> None:
    Scene(play, extras=NO_EXTRAS._replace(flushes_before_ack=False)).run()


async def in_sync(scene: Scene) -> None:
    """Wait until every replica is in the ISR, so that one of them may lose its memory."""
    await scene.until(
        lambda image: all(
            set(state.isr) == set(state.replicas)
            for topic in image.topics.values()
            for state in topic.partitions
        )
    )


async def inject(scene: Scene, kind: FaultKind, node: int, seconds: float = 0.1) -> None:
    await Faults(scene).inject(Fault(0, kind, scene.loop.now, seconds, (node,)))


async def without_power(scene: Scene, node: int) -> "asyncio.Task[None]":
    """Cut the power of a broker for POWER_SECONDS; the task ends when the power is back."""
    await in_sync(scene)
    task = asyncio.create_task(inject(scene, FaultKind.POWER, node, POWER_SECONDS))
    await asyncio.sleep(1.0)
    assert scene.nodes[node].has_lost_data
    return task


async def write_and_read(scene: Scene) -> None:
    await scene.until(lambda image: image.admitted == set(scene.nodes))
    await scene.write()
    await scene.read_everything()


def test_no_broker_is_stopped_while_another_has_lost_its_memory() -> None:
    async def play(scene: Scene) -> None:
        power = await without_power(scene, 1)
        process = scene.nodes[2].process
        scene.nodes[2].disk.room_bytes = 0  # the stop could not be clean
        await inject(scene, FaultKind.STOP, 2)
        assert scene.nodes[2].process is process
        assert scene.nodes[2].is_up
        await power
        await scene.until(lambda image: image.admitted == set(scene.nodes))
        await inject(scene, FaultKind.STOP, 2)
        assert scene.nodes[2].process is not process, "the other broker is back, so this one may end"

    play_with_flush_os(play)


def test_no_sync_fails_while_another_broker_has_lost_its_memory() -> None:
    async def play(scene: Scene) -> None:
        power = await without_power(scene, 1)
        failing = asyncio.create_task(inject(scene, FaultKind.SYNC_FAILS, 2))
        await asyncio.sleep(0)
        assert not scene.nodes[2].disk.sync_fails
        await failing
        await power
        await write_and_read(scene)

    play_with_flush_os(play)


def test_no_broker_loses_power_while_another_one_stops() -> None:
    async def play(scene: Scene) -> None:
        await in_sync(scene)
        assert scene.may_lose_power(1)
        stop = asyncio.create_task(scene.nodes[2].stop(30))
        await asyncio.sleep(0)
        assert scene.nodes[2].is_up
        assert 2 in scene.truth.image.admitted
        assert not scene.may_lose_power(1)
        await stop

    play_with_flush_os(play)


def test_no_broker_loses_power_after_the_sync_of_another_has_failed() -> None:
    async def play(scene: Scene) -> None:
        scene.breaks_brokers = True
        await in_sync(scene)
        failing = scene.nodes[2]
        failing.disk.sync_fails = True
        assert not scene.may_lose_power(1)
        await scene.until(lambda _: not failing.disk.sync_fails)
        await asyncio.sleep(0.1)
        assert failing.is_up
        assert 2 in scene.truth.image.admitted
        assert not scene.may_lose_power(1)

    play_with_flush_os(play)
