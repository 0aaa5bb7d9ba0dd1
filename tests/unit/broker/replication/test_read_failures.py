"""Copies that the device fails to read: when a broker of a cluster gives one up. On virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from penstock.broker.storage.cold_reads import ColdReads
from penstock.errors import StorageFailed
from penstock.host.disk import TooManyOpenFiles
from penstock.limits import READ_FAILURES_MAX
from penstock.log.reading.cold_reading import ColdResult
from penstock.replication.partition import Partition
from penstock.sim.store import SimStore
from tests.unit.broker.cluster.test_membership import Node
from tests.unit.broker.replication.damage_support import (
    Damaged,
    play,
)


class Unreadable:
    """A read of a segment that the device fails."""

    def __init__(self, partition: Partition) -> None:
        self.segments = (partition.log.view(partition.log.active),)

    def run(self) -> ColdResult:
        raise StorageFailed("cannot read 00000000000000000000.log: Input/output error")


class Inline:
    async def run(self, job: Callable[[], Any]) -> Any:
        return job()


async def fail_to_read(broker: Damaged, times: int, pause_seconds: float) -> None:
    reads = ColdReads(cast(Any, Inline()), broker.storage.read_failed)
    for _ in range(times):
        with pytest.raises(StorageFailed):
            await reads.run(broker.partition, Unreadable(broker.partition))
        await asyncio.sleep(pause_seconds)


@pytest.mark.parametrize("pause_seconds", [0.6, 1, 29])
def test_a_leader_that_cannot_read_a_segment_again_and_again_hands_over(pause_seconds: float) -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        await fail_to_read(broker, READ_FAILURES_MAX - 1, pause_seconds)
        assert (broker.partition.offline_error, broker.log.said) == (None, ["partition.read_failed"])
        await fail_to_read(broker, 1, 1)
        assert (broker.state.leader, broker.state.isr) == (2, (2, 3))
        broker.require_copied_anew()
        assert not broker.disk.exists("data/strays/orders-0.damaged/damaged"), "an I/O error may pass"

    play(scene)


@pytest.mark.parametrize(("times", "pause_seconds"), [(20, 0.01), (10, 31)])
def test_reads_that_fail_together_or_now_and_then_are_no_reason_to_hand_over(
    times: int, pause_seconds: float
) -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        await fail_to_read(broker, times, pause_seconds)
        assert (broker.state.leader, broker.partition.offline_error) == (1, None)

    play(scene)


def test_the_last_copy_stays_in_use_where_it_can_be_read() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        for node in others:
            await node.die()
        await asyncio.sleep(15)
        assert broker.state.isr == (1,)
        await fail_to_read(broker, 20, 1)
        assert (broker.state.leader, broker.partition.offline_error) == (1, None)
        assert broker.log.said == ["partition.read_failed"], "once"
        back = Node(store, 3)
        await back.join()
        try:
            await asyncio.sleep(5)
            await fail_to_read(broker, 1, 1)
            assert (broker.state.leader, broker.state.isr) == (3, (3,))
            broker.require_copied_anew()
        finally:
            await back.die()

    play(scene)


def test_a_device_that_is_full_or_has_no_descriptor_is_no_reason_to_hand_over() -> None:
    class Short(Unreadable):
        def run(self) -> ColdResult:
            raise TooManyOpenFiles("cannot open 00000000000000000000.log: Too many open files")

    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        reads = ColdReads(cast(Any, Inline()), broker.storage.read_failed)
        for _ in range(10):
            with pytest.raises(TooManyOpenFiles):
                await reads.run(broker.partition, Short(broker.partition))
            await asyncio.sleep(1)
        assert (broker.state.leader, broker.partition.offline_error, broker.log.said) == (1, None, [])

    play(scene)
