"""A broker of a cluster that finds a copy damaged, over a simulated store and disk. On virtual time."""

import asyncio
from typing import Any

import pytest

from penstock.broker.replication import damaged_replicas
from penstock.controller.decision import Decision
from penstock.controller.elections import ElectionType, elect, withdraw
from penstock.errors import StorageFailed, StorageFull
from penstock.host.disk import SmallFile
from penstock.host.metadata_store import Compare, Put
from penstock.limits import DISK_RESERVE_FREE_BYTES
from penstock.log.damaged_copies import CopySpaceNeeds, DiscardedCopy
from penstock.metadata.cluster_image import ClusterImage
from penstock.sim.store import SimStore
from penstock.types import TopicPartition
from tests.unit.broker.cluster.test_membership import Node
from tests.unit.broker.replication.damage_support import (
    DAMAGE,
    NOTE,
    SECONDS_OF_CONFLICTS,
    Damaged,
    Events,
    play,
)
from tests.unit.log.log_support import append
from tests.unit.replication.replica_support import sync


def test_a_damaged_leader_hands_over_and_begins_anew() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        broker.storage.damage(broker.partition, DAMAGE)
        assert broker.partition.offline_error is not None
        await asyncio.sleep(1)
        assert (broker.state.leader, broker.state.isr) == (2, (2, 3))
        broker.require_copied_anew()
        assert broker.log.said[:2] == ["partition.damaged", "partition.handed_over"]

    play(scene)


def test_a_damaged_follower_leaves_the_in_sync_replicas_under_a_new_epoch() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        epoch = broker.state.leader_epoch
        broker.storage.damage(broker.partition, DAMAGE)
        await asyncio.sleep(1)
        assert (broker.state.leader, broker.state.isr) == (2, (2, 3))
        assert broker.state.leader_epoch == epoch + 1, "a late fetch for the damaged copy is rejected"
        broker.require_copied_anew()
        assert broker.log.said[:2] == ["partition.damaged", "partition.out_of_sync"]

    play(scene, replicas=(2, 1, 3))


def test_a_damaged_replica_keeps_trying_while_the_store_is_unavailable() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        store.become_unavailable()
        broker.storage.damage(broker.partition, DAMAGE)
        await asyncio.sleep(30)
        assert 1 in broker.state.isr
        assert broker.partition.is_damaged
        assert not broker.disk.exists("data/strays"), "the cluster still counts on it"
        store.become_available()
        await asyncio.sleep(15)
        assert 1 not in broker.state.isr
        broker.require_copied_anew()

    play(scene)


def test_the_last_copy_is_kept_until_another_that_has_it_is_there() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        for node in others:
            await node.die()
        await asyncio.sleep(15)
        assert (broker.state.leader, broker.state.isr, broker.state.elr) == (1, (1,), (3,))
        broker.storage.damage(broker.partition, DAMAGE)
        await asyncio.sleep(5)
        assert (broker.state.leader, broker.partition.is_damaged) == (1, True)
        assert "partition.last_copy_damaged" in broker.log.said
        assert broker.disk.exists(NOTE)
        assert not broker.disk.exists("data/strays")
        back = Node(store, 3)
        await back.join()
        try:
            await asyncio.sleep(5)
            assert (broker.state.leader, broker.state.isr) == (3, (3,))
            broker.require_copied_anew()
        finally:
            await back.die()

    play(scene)


def test_leadership_that_comes_to_a_damaged_copy_is_handed_over() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        broker.storage.damage(broker.partition, StorageFailed("a truncation that could not be completed"))
        store.become_unavailable()  # before it could leave the in-sync replicas
        await others[0].die()
        await asyncio.sleep(1)
        store.become_available()
        await asyncio.sleep(15)
        assert (broker.state.leader, broker.state.isr) == (3, (3,))
        broker.require_copied_anew()

    play(scene, replicas=(2, 1, 3))


def test_a_copy_that_cannot_be_set_aside_yet_is_tried_again() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        refusals = [StorageFull("no room for the folder"), StorageFailed("cannot rename it")] * 3
        give_up = broker.directory.discard_damaged

        def refusing(partition: TopicPartition, mark: str, room: CopySpaceNeeds) -> DiscardedCopy:
            if refusals:
                raise refusals.pop()
            return give_up(partition, mark, room)

        broker.directory.discard_damaged = refusing  # type: ignore[method-assign]
        broker.storage.damage(broker.partition, DAMAGE)
        await asyncio.sleep(0.2)
        assert (broker.state.isr, broker.partition.is_damaged) == ((2, 3), True)
        await asyncio.sleep(60)
        assert broker.log.said.count("partition.not_mended") == 6
        broker.require_copied_anew()

    play(scene)


def test_a_process_that_was_replaced_withdraws_nothing_of_its_successor() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        broker.is_replaced = True
        broker.storage.damage(broker.partition, DAMAGE)
        await asyncio.sleep(5)
        assert (broker.state.leader, broker.state.isr) == (1, (1, 2, 3))
        assert broker.partition.is_damaged
        assert not broker.disk.exists("data/strays")

    play(scene)


def test_a_withdrawn_copy_that_is_elected_uncleanly_stays_offline_and_is_kept() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        def refusing(partition: TopicPartition, mark: str, room: CopySpaceNeeds) -> DiscardedCopy:
            raise StorageFailed("cannot rename it")

        broker.directory.discard_damaged = refusing  # type: ignore[method-assign]
        broker.storage.damage(broker.partition, DAMAGE)
        await asyncio.sleep(1)
        assert broker.state.isr == (2, 3)
        for node in others:
            await node.die()
        await asyncio.sleep(15)
        await broker.node.cluster.change(lambda image: elect(image, "orders", 0, ElectionType.UNCLEAN))
        await asyncio.sleep(5)
        after = broker.state
        assert (after.leader, after.isr) == (1, (1,))
        assert broker.partition.is_damaged
        assert broker.partition.offline_error is not None, (
            "it answers nobody, so that no follower truncates its log"
        )
        assert "partition.last_copy_damaged" in broker.log.said
        assert broker.disk.exists("data/logs/orders-0"), "it is not given up while it is all there is"

    play(scene)


def test_a_damaged_copy_is_kept_where_another_one_fits_beside_it() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        size_bytes = broker.folder_bytes(0)
        broker.storage.damage(broker.partition, DAMAGE)
        broker.disk.disk.room_bytes = 2 * size_bytes + DISK_RESERVE_FREE_BYTES
        await asyncio.sleep(1)
        broker.require_copied_anew()
        (said,) = broker.log.told("partition.replacement_begins")
        assert (said["files"], said["moved_to"]) == ("kept", "data/strays/orders-0.damaged")
        assert said["size_bytes"] == size_bytes + len(str(DAMAGE)), "with the note that it is damaged"

    play(scene)


def test_a_damaged_copy_is_removed_where_another_one_does_not_fit_beside_it() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        size_bytes = broker.folder_bytes(0)
        broker.storage.damage(broker.partition, DAMAGE)
        broker.disk.disk.room_bytes = size_bytes + DISK_RESERVE_FREE_BYTES
        await asyncio.sleep(1)
        assert (broker.partition.is_damaged, broker.partition.log.log_end_offset) == (False, 0)
        assert not broker.disk.exists("data/strays")
        assert [name for name in broker.disk.list_folder("data/logs") if name.startswith("0.")] == []
        assert not broker.disk.exists("data/logs/orders-0")
        (said,) = broker.log.told("partition.replacement_begins")
        assert said["files"] == "removed"
        assert "moved_to" not in said
        assert broker.disk.disk.room_bytes >= 2 * size_bytes, "the copy has the room of the damaged one"

    play(scene)


def without_room(damage: Exception, *, dies: bool, is_moved: bool = False) -> Events:
    """What a broker says whose copy is damaged and does not fit beside itself, before a person makes room.

    `dies`: one of the others. `is_moved`: the person moves the damaged files away.
    """
    before = Events()

    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        if dies:
            await others[1].die()
            await asyncio.sleep(15)
        size_bytes = broker.folder_bytes(0)
        broker.storage.damage(broker.partition, damage)
        broker.disk.disk.room_bytes = size_bytes - 1 + DISK_RESERVE_FREE_BYTES
        await asyncio.sleep(60)
        assert 1 not in broker.state.isr
        assert broker.partition.is_damaged
        assert broker.disk.exists("data/logs/orders-0/00000000000000000000.log")
        before.said, before.fields = list(broker.log.said), list(broker.log.fields)
        if is_moved:
            broker.disk.make_folder("elsewhere")
            broker.disk.rename("data/logs/orders-0", "elsewhere/orders-0")
        else:
            broker.disk.disk.room_bytes = 3 * size_bytes + DISK_RESERVE_FREE_BYTES
        await asyncio.sleep(5)
        assert (broker.partition.is_damaged, broker.partition.log.log_end_offset) == (False, 0)
        assert broker.disk.exists("data/strays/orders-0.damaged") != is_moved

    play(scene)
    return before


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_damaged_copy_is_not_removed_where_only_one_other_is_in_sync(is_moved: bool) -> None:
    """That one may be damaged, too, elsewhere in its files."""
    log = without_room(DAMAGE, dies=True, is_moved=is_moved)
    assert "partition.replacement_begins" not in log.said
    (said,) = log.told("partition.no_room_for_copy")
    assert "move data/logs/orders-0 to another one" in str(said["help"])
    assert said["lacking_bytes"] == 1 + 2 * len(str(DAMAGE)), "the note counts twice"
    assert log.said.count("partition.not_mended") == 1, "it is said once, however often it is tried"


def test_a_copy_that_could_not_be_read_is_not_removed() -> None:
    """An I/O error says nothing of the records: another attempt may find all of them."""
    log = without_room(StorageFailed("Input/output error"), dies=False)
    assert len(log.told("partition.no_room_for_copy")) == 1


def test_a_copy_is_set_aside_only_after_its_damage_is_recorded_on_a_slow_disk() -> None:
    """A process that is killed in between goes on where it was: the note is in the folder."""

    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        steps: list[str] = []
        note, set_aside = broker.directory.record_damage, broker.directory.move_damaged_to_strays

        def noting(partition: TopicPartition, reason: str) -> None:
            note(partition, reason)
            steps.append("noted")

        def setting_aside(partition: TopicPartition) -> str:
            steps.append("set aside")
            return set_aside(partition)

        broker.directory.record_damage = noting  # type: ignore[method-assign]
        broker.directory.move_damaged_to_strays = setting_aside  # type: ignore[method-assign]
        broker.job_seconds = 20
        broker.storage.damage(broker.partition, DAMAGE)
        await asyncio.sleep(5)
        assert (broker.state.leader, steps) == (2, []), "clients do not wait for the disk"
        await asyncio.sleep(90)
        assert steps == ["noted", "set aside"]
        broker.require_copied_anew()

    play(scene)


@pytest.mark.parametrize("job_seconds", [20, 1_000_000], ids=["slow", "hung"])
def test_a_partition_is_handed_over_while_the_disk_is_busy_with_another(job_seconds: float) -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        broker.job_seconds = job_seconds
        second = broker.storage.partitions.find("orders", 1)
        assert second is not None
        broker.storage.damage(second, DAMAGE)
        await asyncio.sleep(0.5)
        broker.storage.damage(broker.partition, DAMAGE)
        await asyncio.sleep(5)
        assert (broker.state.leader, broker.state.isr) == (2, (2, 3))
        assert broker.partition.is_damaged, "its folder has to wait"

    play(scene)


def test_damaged_partitions_are_withdrawn_together() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        second = broker.storage.partitions.find("orders", 1)
        assert second is not None
        broker.storage.damage(broker.partition, DAMAGE)
        broker.storage.damage(second, DAMAGE)
        await asyncio.sleep(1)
        both = [broker.node.cluster.image.partition("orders", index) for index in (0, 1)]
        assert [state.isr for state in both if state is not None] == [(2, 3)] * 2
        assert len({state.revision for state in both if state is not None}) == 1, "one transaction"
        assert len(broker.log.told("partition.handed_over")) == 1
        assert len(broker.log.told("partition.out_of_sync")) == 1

    play(scene)


def test_a_partition_that_cannot_be_withdrawn_does_not_keep_others_in_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is changed again and again: what its decision compares never holds."""

    def decide(image: ClusterImage, partition: Any, broker_id: int, *, fetched_epoch: int) -> Decision | None:
        decision = withdraw(image, partition, broker_id, fetched_epoch=fetched_epoch)
        if decision is None or partition[1].index != 1:
            return decision
        (change,) = decision.changes
        assert isinstance(change, Put)
        return decision._replace(compares=(Compare(change.key, 1),))

    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        monkeypatch.setattr(damaged_replicas, "withdraw", decide)
        second = broker.storage.partitions.find("orders", 1)
        assert second is not None
        broker.storage.damage(second, DAMAGE)
        broker.storage.damage(broker.partition, DAMAGE)
        await asyncio.sleep(SECONDS_OF_CONFLICTS)
        assert (broker.state.leader, broker.state.isr) == (2, (2, 3))
        (said,) = broker.log.told("partition.not_mended")
        assert said["partitions"] == 1
        assert "kept changing" in str(said["reason"])

    play(scene)


def test_copies_that_are_under_way_need_room_too() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        second = broker.storage.partitions.find("orders", 1)
        assert second is not None
        for partition in (broker.partition, second):
            append(partition.log, [b"x" * 100_000], epoch=0)
            sync(partition)
        broker.disk.disk.room_bytes = 150_000 + DISK_RESERVE_FREE_BYTES
        broker.storage.damage(broker.partition, DAMAGE)
        await asyncio.sleep(1)
        broker.storage.damage(second, DAMAGE)
        await asyncio.sleep(1)
        assert [said["files"] for said in broker.log.told("partition.replacement_begins")] == [
            "kept",
            "removed",
        ]

    play(scene)


def test_each_further_replacement_of_a_partition_waits_longer() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        for wait_seconds in (0, 60, 120, 240):
            broker.storage.damage(broker.partition, DAMAGE)
            if wait_seconds:
                await asyncio.sleep(wait_seconds - 1)
                assert broker.partition.is_damaged
                assert 1 not in broker.state.isr, "it leaves the in-sync replicas at once"
                assert broker.log.told("partition.replacement_waits")[-1]["seconds"] == wait_seconds
            await asyncio.sleep(2)
            assert not broker.partition.is_damaged
        assert [said["replacements"] for said in broker.log.told("partition.replacement_waits")] == [1, 2, 3]
        second = broker.storage.partitions.find("orders", 1)
        assert second is not None
        broker.storage.damage(second, DAMAGE)
        await asyncio.sleep(1)
        second = broker.storage.partitions.find("orders", 1)
        assert second is not None
        assert not second.is_damaged, "it was never replaced before"

    play(scene)


def test_damage_found_by_reading_is_remembered_over_a_restart() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        store.become_unavailable()
        broker.storage.damage(broker.partition, DAMAGE)
        await asyncio.sleep(1)
        assert broker.disk.read_file(NOTE).decode() == str(DAMAGE)
        again = await broker.restarted()
        assert again.partition.is_damaged
        assert again.disk.exists("data/logs/orders-0"), "the cluster still counts on it"
        store.become_available()
        await asyncio.sleep(15)
        assert 1 not in again.state.isr
        again.require_copied_anew(has_fetched=False)
        await again.tasks.stop()

    play(scene)


def test_the_last_copy_is_kept_over_restarts() -> None:
    """It waits for broker 3, which is eligible: of the two that are named only this one is there."""

    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        for node in others:
            await node.die()
        await asyncio.sleep(15)
        assert (broker.state.leader, broker.state.isr, broker.state.elr) == (1, (1,), (3,))
        broker.storage.damage(broker.partition, DAMAGE)
        await asyncio.sleep(5)
        again = await broker.restarted()
        await asyncio.sleep(5)
        assert "partition.last_copy_damaged" in again.log.said
        assert again.storage.partitions.lost == {}
        assert again.disk.exists(NOTE)
        assert not again.disk.exists("data/strays")
        back = Node(store, 3)
        await back.join()
        try:
            await asyncio.sleep(5)
            assert (again.state.leader, again.state.isr) == (3, (3,))
            again.require_copied_anew(has_fetched=False)
        finally:
            await back.die()
            await again.tasks.stop()

    play(scene)


def test_a_copy_that_cannot_be_opened_hands_over_and_begins_anew() -> None:
    async def scene(store: SimStore, broker: Damaged, others: list[Node]) -> None:
        snapshot = SmallFile("data/logs/orders-0/00000000000000000005.snapshot", b"of records that are gone")
        broker.disk.store([snapshot])
        again = await broker.restarted()
        assert again.log.said[0] == "partition.damaged"
        await asyncio.sleep(1)
        assert (again.state.leader, again.state.isr) == (2, (2, 3))
        again.require_copied_anew(has_fetched=False)
        await again.tasks.stop()

    play(scene)
