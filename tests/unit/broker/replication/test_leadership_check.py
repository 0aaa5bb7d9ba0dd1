"""A leader makes a client give up only once the metadata store has said that it leads. On virtual time."""

import asyncio

import msgspec
import pytest

from penstock.host.metadata_store import Put
from penstock.limits import LEADERSHIP_CLAIM_MS_MAX, LEADERSHIP_CLAIMS_MAX
from penstock.metadata.documents import PartitionValue, decode_document, encode_document
from penstock.sim.store import SimStore
from tests.unit.broker.cluster.test_membership import KEYS
from tests.unit.broker.replication.test_isr_updates import Leader, play

CLAIM = "producer 7 sent sequence 9 where 5 was expected"


def elect_another(store: SimStore, leader: Leader, *, epoch: int) -> None:
    """The leader does not hear of it: nothing is shown to it any more."""
    leader.node.tasks[0].cancel()
    key = KEYS.partition(leader.partition.topic_id, 0)
    state = decode_document(PartitionValue, key, store.read(key).entries[key].value)
    store.transact(
        [], [Put(key, encode_document(msgspec.structs.replace(state, leader=2, leader_epoch=epoch)))]
    )


def test_a_leader_is_certain_when_the_store_has_confirmed_it_since() -> None:
    async def scene(store: SimStore, leader: Leader) -> None:
        leadership_confirmed = leader.followers.leadership_confirmed
        assert not leadership_confirmed(leader.partition, CLAIM)
        await asyncio.sleep(0.1)
        assert not leadership_confirmed(leader.partition, "another claim, which came later")
        assert leadership_confirmed(leader.partition, CLAIM)
        assert not leadership_confirmed(leader.partition, CLAIM)  # it is made anew

    play(scene)


@pytest.mark.parametrize("epoch", [1, 2])
def test_who_has_not_heard_that_another_was_elected_is_never_certain(epoch: int) -> None:
    async def scene(store: SimStore, leader: Leader) -> None:
        elect_another(store, leader, epoch=epoch)
        for _ in range(20):
            assert not leader.followers.leadership_confirmed(leader.partition, CLAIM)
            await asyncio.sleep(0.2)
        assert leader.partition.leading is not None

    play(scene)


def test_what_was_confirmed_before_a_claim_says_nothing_of_it() -> None:
    async def scene(store: SimStore, leader: Leader) -> None:
        leader.followers.leadership_confirmed(leader.partition, CLAIM)
        await asyncio.sleep(0.1)
        elect_another(store, leader, epoch=1)
        assert not leader.followers.leadership_confirmed(
            leader.partition, "of a client that the other has answered"
        )
        await asyncio.sleep(0.1)
        assert not leader.followers.leadership_confirmed(
            leader.partition, "of a client that the other has answered"
        )

    play(scene)


def test_whoever_comes_late_is_doubted_anew() -> None:
    async def scene(store: SimStore, leader: Leader) -> None:
        assert not leader.followers.leadership_confirmed(leader.partition, CLAIM)
        await asyncio.sleep(LEADERSHIP_CLAIM_MS_MAX / 1000 + 0.1)
        elect_another(store, leader, epoch=1)
        assert not leader.followers.leadership_confirmed(leader.partition, CLAIM)

    play(scene)


def test_a_crowd_is_told_all_the_same() -> None:
    """More than are remembered ask again and again."""

    async def scene(store: SimStore, leader: Leader) -> None:
        waiting = {f"claim {number}" for number in range(2 * LEADERSHIP_CLAIMS_MAX)}
        for _ in range(10):
            waiting -= {
                claim for claim in waiting if leader.followers.leadership_confirmed(leader.partition, claim)
            }
            await asyncio.sleep(0.5)
        assert not waiting

    play(scene)
