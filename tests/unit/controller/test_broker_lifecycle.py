"""Brokers join, are admitted when nothing rests on what they lost, and leave."""

from functools import partial

import pytest
from msgspec.structs import replace

from penstock.controller.broker_lifecycle import (
    RegistrationRequest,
    admit,
    adopt,
    awaits_admission,
    become_controller,
    depose_controller,
    drain,
    fence,
    is_drained,
    prepare_admission,
    register,
    register_standalone,
    unregister,
)
from penstock.controller.configs import alter_broker_config
from penstock.controller.partitions import every_partition
from penstock.errors import ErrorCode
from penstock.host.metadata_store import SessionId
from penstock.limits import BROKERS_MAX
from penstock.metadata.cluster_image import ClusterImage, PartitionState
from penstock.metadata.keys import topic_id_text
from penstock.types import TopicId
from tests.unit.controller.controller_support import (
    EMPTY,
    LISTENERS,
    StoredCluster,
    cluster_of,
    refusal,
)
from tests.unit.controller.scenarios import shrink, upkeep

SESSION = SessionId(7)
OTHER_DISK: dict[str, object] = {"directory_id": "another disk"}
FIRST_START = "the first start"
COPY_FROM_BEFORE: dict[str, object] = {"start_ids": ("a start before the first", "second")}
FOLDER_GONE: dict[str, object] = {"lost": {topic_id_text(TopicId((2).to_bytes(16, "big"))): (0,)}}
"""The folder of the first topic that was made."""
OLDER_COPY: dict[str, object] = {"clean_epoch": 1}
"""It stopped cleanly once, and was admitted since."""


def registration(broker_id: int, incarnation: str) -> RegistrationRequest:
    return RegistrationRequest(
        broker_id=broker_id, incarnation=incarnation, directory_id="d", endpoints=LISTENERS
    )


def members(state: PartitionState) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return state.isr, state.elr, state.leader


def test_a_broker_joins_with_one_transaction_and_waits() -> None:
    cluster = StoredCluster()
    cluster.join(3, rack="r")
    broker = cluster.image.brokers[3]
    assert awaits_admission(broker)
    assert not broker.is_admitted
    assert (broker.rack, broker.endpoints, broker.broker_epoch) == ("r", LISTENERS, 1)


def test_joining_again_after_an_answer_that_did_not_come_changes_nothing() -> None:
    cluster = StoredCluster()
    cluster.commit(register(EMPTY, registration(1, "one"), SESSION))
    assert not register(cluster.image, registration(1, "one"), SESSION).changes


def test_an_id_that_is_in_use_is_refused() -> None:
    cluster = cluster_of(1)
    error = refusal(lambda: register(cluster.image, registration(1, "two"), SESSION))
    assert error.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    both = [register(EMPTY, registration(5, name), SESSION) for name in ("one", "two")]
    assert [cluster.attempt(decision) for decision in both] == [True, False]


def test_a_process_that_starts_takes_the_place_of_the_one_before_it_on_its_disk() -> None:
    cluster = cluster_of(1)
    cluster.join(2, lock="a lock")
    cluster.admit(2)
    before = cluster.image.brokers[2]
    assert before.live is not None
    same = replace(registration(2, "second"), directory_id=before.live.directory_id, lock="a lock")
    assert refusal(lambda: register(cluster.image, same, SESSION)).code == (
        ErrorCode.DUPLICATE_BROKER_REGISTRATION
    )
    copy = replace(same, lock="the lock of a copy")
    nameless = replace(same, lock="")
    for other in (copy, nameless):
        refused = refusal(partial(register, cluster.image, other, SESSION, is_first=True))
        assert refused.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert cluster.attempt(register(cluster.image, same, SESSION, is_first=True))
    after = cluster.image.brokers[2]
    assert after.broker_epoch > before.broker_epoch
    assert not after.is_admitted


def test_the_epoch_of_a_broker_grows_with_every_session() -> None:
    cluster = cluster_of(1, 2)
    before = cluster.image.brokers[2]
    cluster.end_session(2)
    assert not cluster.image.brokers[2].is_alive
    cluster.join(2, "second")
    again = cluster.image.brokers[2]
    assert again.broker_epoch > before.broker_epoch
    assert again.admitted_epoch == before.broker_epoch
    assert not again.is_admitted


def without_controller(cluster: StoredCluster) -> ClusterImage:
    return cluster.commit(depose_controller(cluster.image, 1, cluster.image.brokers[1].broker_epoch))


def test_one_broker_is_the_controller_until_its_session_ends() -> None:
    cluster = cluster_of(1, 2, 3)
    error = refusal(lambda: become_controller(cluster.image, 2, SESSION))
    assert error.code == ErrorCode.NOT_CONTROLLER
    term = cluster.image.controller
    without_controller(cluster)
    claims = [become_controller(cluster.image, broker_id, SESSION) for broker_id in (2, 3)]
    assert [cluster.attempt(claim) for claim in claims] == [True, False]
    assert cluster.image.controller_id == 2
    assert term is not None
    assert cluster.image.controller is not None
    assert cluster.image.controller.term > term.term


def test_who_is_gone_cannot_become_the_controller() -> None:
    cluster = cluster_of(1, 2)
    claim = become_controller(without_controller(cluster), 2, SESSION)
    cluster.end_session(2)
    assert not cluster.attempt(claim)
    error = refusal(lambda: become_controller(cluster.image, 2, SESSION))
    assert error.code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize("loss", [{}, OTHER_DISK, FOLDER_GONE, {"has_lost_all": True}, COPY_FROM_BEFORE])
def test_the_last_in_sync_comes_back(loss: dict[str, object]) -> None:
    """With its disk it leads; without what it had, nobody has what was committed."""
    lost = bool(loss)
    cluster = cluster_of(1, 2)
    for broker_id in (1, 2):
        cluster.end_session(broker_id)
        cluster.join(broker_id, "first", start_ids=(FIRST_START,))
    upkeep(cluster)
    cluster.create("t", factor=1, overrides={"flush.policy": "os"})
    leader = cluster.state().leader
    cluster.end_session(leader)
    cluster.end_session(1000)
    other = 3 - leader
    cluster.commit(become_controller(cluster.image, other, SESSION))
    upkeep(cluster)
    assert members(cluster.state()) == ((leader,), (), -1)
    cluster.join(leader, "second", **{"start_ids": (FIRST_START, "second"), **loss})
    upkeep(cluster)
    assert cluster.image.brokers[leader].is_admitted
    assert members(cluster.state()) == (((), (), -1) if lost else ((leader,), (), leader))
    assert cluster.state().leader_epoch == (1 if lost else 2)


def down_to_one(overrides: dict[str, str]) -> tuple[StoredCluster, int, int]:
    """Three replicas, of which only the leader is in sync, and the one who left last is eligible."""
    cluster = cluster_of(1, 2, 3, 4)
    cluster.create("t", overrides=overrides)
    leader, second, third = cluster.state().isr
    shrink(cluster, leader, second)
    shrink(cluster, leader)
    assert members(cluster.state()) == ((leader,), (second,), leader)
    assert third not in cluster.state().elr
    return cluster, leader, second


@pytest.mark.parametrize(
    ("overrides", "start", "stays"),
    [
        ({}, {}, True),
        ({}, OTHER_DISK, False),
        ({"flush.policy": "os"}, {}, False),
        ({"flush.policy": "interval"}, {}, False),
        ({"flush.policy": "os"}, {"clean_epoch": "its own"}, True),
        ({}, {"clean_epoch": "its own"}, True),
        ({}, OLDER_COPY, False),
        ({"flush.policy": "os"}, OLDER_COPY, False),
        ({}, FOLDER_GONE, False),
        ({"flush.policy": "os"}, {"clean_epoch": "its own", **FOLDER_GONE}, False),
        ({}, {"lost": {topic_id_text(TopicId(bytes(16))): (0,)}}, True),
        ({}, {"lost": {topic_id_text(TopicId((2).to_bytes(16, "big"))): (1,)}}, True),
        ({"flush.policy": "os"}, {"clean_epoch": "its own", **OTHER_DISK}, False),
    ],
)
def test_an_eligible_leader_that_lost_records_is_none_any_more(
    overrides: dict[str, str], start: dict[str, object], stays: bool
) -> None:
    cluster, leader, second = down_to_one(overrides)
    facts = dict(start)
    if facts.get("clean_epoch") == "its own":
        facts["clean_epoch"] = cluster.image.brokers[second].admitted_epoch
    cluster.end_session(second)
    upkeep(cluster)
    cluster.join(second, "second", **facts)
    upkeep(cluster)
    assert cluster.image.brokers[second].is_admitted
    assert members(cluster.state()) == ((leader,), (second,) if stays else (), leader)
    is_gone = "directory_id" in start or "lost" in start or start == OLDER_COPY
    assert cluster.state().last_known_elr == (() if stays or is_gone else (second,))


def test_how_a_broker_flushed_is_what_its_last_admission_knew() -> None:
    """A process that says otherwise now was not the one that lost the records."""
    cluster, leader, second = down_to_one({})
    for start in ({"flushes_before_ack": False}, {"flushes_before_ack": True}):
        cluster.end_session(second)
        upkeep(cluster)
        cluster.join(second, f"another {start}", **start)
        upkeep(cluster)
        assert cluster.image.brokers[second].is_admitted
    assert members(cluster.state()) == ((leader,), (), leader)


def test_the_setting_of_one_broker_says_how_it_flushed() -> None:
    cluster, leader, second = down_to_one({})
    overrides = {"log.flush.policy": "os"}
    cluster.commit(alter_broker_config(cluster.image, second, overrides))
    cluster.end_session(second)
    cluster.join(second, "second")
    upkeep(cluster)
    assert members(cluster.state()) == ((leader,), (), leader)


def test_starting_twice_does_not_hide_a_lost_disk() -> None:
    """The first start with the new disk ended before it was admitted."""
    cluster, leader, second = down_to_one({})
    cluster.end_session(second)
    cluster.join(second, "second", **OTHER_DISK)
    cluster.end_session(second)
    cluster.join(second, "third", **OTHER_DISK)
    upkeep(cluster)
    assert members(cluster.state()) == ((leader,), (), leader)


def test_starting_twice_does_not_hide_an_older_copy() -> None:
    """Nor does the start that nobody saw: what it wrote to the copy is not what the copy lacks."""
    cluster, leader, second = down_to_one({})
    ids: tuple[str, ...] = ("one",)
    cluster.end_session(second)
    cluster.join(second, "second", start_ids=(*ids, "two"))
    upkeep(cluster)
    assert cluster.state().elr == (second,), "nobody can know of an older copy yet"
    for start in ("three", "four"):
        ids = (*ids, start)
        cluster.end_session(second)
        cluster.join(second, start, start_ids=ids)
    upkeep(cluster)
    assert cluster.image.brokers[second].start_id == "four"
    assert members(cluster.state()) == ((leader,), (), leader)


def test_one_folder_that_is_gone_does_not_make_the_others_cut_theirs() -> None:
    """All were in sync and are gone; the first to come back has nothing, and does not lead."""
    cluster = cluster_of(1, 2, 3, 4)
    cluster.create("t")
    first, second, third = cluster.state().isr
    for broker_id in (first, second, third, 1000):
        cluster.end_session(broker_id)
    free = next(iter({1, 2, 3, 4} - {first, second, third}))
    cluster.commit(become_controller(cluster.image, free, SESSION))
    cluster.join(first, "second", **FOLDER_GONE)
    upkeep(cluster)
    assert members(cluster.state()) == ((second, third), (), -1)
    cluster.join(second, "second")
    upkeep(cluster)
    assert cluster.state().leader == second


def test_the_last_in_sync_that_lost_records_makes_way_for_who_has_them() -> None:
    """The last replica standing (KIP-966)."""
    cluster, leader, second = down_to_one({"flush.policy": "os"})
    clean_epoch = cluster.image.brokers[second].admitted_epoch
    cluster.end_session(second)
    cluster.end_session(leader)
    if leader == 1:
        cluster.end_session(1000)
        cluster.commit(become_controller(cluster.image, 4, SESSION))
    upkeep(cluster)
    cluster.join(leader, "second")
    upkeep(cluster)
    assert members(cluster.state()) == ((), (second,), -1), "it lost what was acknowledged"
    cluster.join(second, "second", clean_epoch=clean_epoch)
    upkeep(cluster)
    assert members(cluster.state()) == ((second,), (), second)


def test_a_broker_whose_restart_went_unnoticed_leaves_the_in_sync_replicas() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.create("t")
    follower = cluster.state().isr[2]
    cluster.end_session(follower)
    cluster.join(follower, "second")
    broker = cluster.image.brokers[follower]
    assert any(prepare_admission(cluster.image, broker, found) for found in every_partition(cluster.image))
    upkeep(cluster)
    assert follower not in cluster.state().isr
    assert cluster.image.brokers[follower].is_admitted


def test_what_one_process_lacks_is_not_held_against_the_next_that_has_it() -> None:
    """The last in sync came with an empty disk; its own is put back before the store hears of it."""
    cluster = cluster_of(1, 2)
    cluster.create("t", factor=1)
    last = cluster.state().leader
    other = next(iter({1, 2} - {last}))
    cluster.end_session(last)
    if last == 1:
        cluster.end_session(1000)
        cluster.commit(become_controller(cluster.image, other, SESSION))
    upkeep(cluster)
    cluster.join(last, "second", **OTHER_DISK)
    partition = (cluster.image.topics["t"], cluster.state())
    late = prepare_admission(cluster.image, cluster.image.brokers[last], partition)
    assert late is not None
    cluster.end_session(last)
    cluster.join(last, "third")
    assert not cluster.attempt(late)
    upkeep(cluster)
    assert members(cluster.state()) == ((last,), (), last)


def test_an_admission_is_of_one_epoch() -> None:
    cluster = cluster_of(1)
    cluster.join(2)
    decision = admit(cluster.image, cluster.image.brokers[2])
    cluster.end_session(2)
    cluster.join(2, "second")
    assert not cluster.attempt(decision)
    assert not cluster.image.brokers[2].is_admitted


def test_fencing_ends_the_epoch_that_was_meant_and_no_other() -> None:
    cluster = cluster_of(1, 2)
    epoch = cluster.image.brokers[2].broker_epoch
    twice = [fence(cluster.image, 2, epoch), fence(cluster.image, 2, epoch)]
    assert [cluster.attempt(decision) for decision in twice] == [True, False]
    assert not cluster.image.brokers[2].is_alive
    assert refusal(lambda: fence(cluster.image, 2, epoch)).code == ErrorCode.STALE_BROKER_EPOCH
    cluster.join(2, "second")
    assert refusal(lambda: fence(cluster.image, 2, epoch)).code == ErrorCode.STALE_BROKER_EPOCH
    assert refusal(lambda: fence(cluster.image, 9, 1)).code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_controller_that_is_gone_is_deposed_by_anybody() -> None:
    cluster = cluster_of(1, 2)
    epoch = cluster.image.brokers[1].broker_epoch
    assert refusal(
        lambda: depose_controller(cluster.image, 2, cluster.image.brokers[2].broker_epoch)
    ).code == (ErrorCode.NOT_CONTROLLER)
    twice = [depose_controller(cluster.image, 1, epoch), depose_controller(cluster.image, 1, epoch)]
    assert [cluster.attempt(decision) for decision in twice] == [True, False]
    assert cluster.image.controller is None
    assert not cluster.image.brokers[1].is_alive


def test_a_drained_broker_leads_nothing_that_another_could() -> None:
    cluster = cluster_of(1, 2)
    cluster.create("t", partitions=4, factor=2)
    cluster.create("alone", partitions=2, factor=1)
    assert not is_drained(cluster.image, 2)
    cluster.commit(drain(cluster.image, 2))
    assert not drain(cluster.image, 2).changes
    upkeep(cluster)
    assert is_drained(cluster.image, 2)
    assert {state.leader for state in cluster.image.topics["t"].partitions} == {1}
    assert {state.leader for state in cluster.image.topics["alone"].partitions} == {1, 2}
    assert all(state.isr == state.replicas for state in cluster.image.topics["t"].partitions)
    cluster.end_session(2)
    cluster.join(2, "second")
    assert not cluster.image.brokers[2].is_draining, "a new process begins undrained"


def test_who_is_not_there_is_not_drained() -> None:
    cluster = cluster_of(1, 2)
    cluster.end_session(2)
    assert refusal(lambda: drain(cluster.image, 2)).code == ErrorCode.INVALID_REQUEST
    assert refusal(lambda: drain(cluster.image, 9)).code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_broker_is_forgotten_when_it_is_gone_and_holds_nothing() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.create("t", factor=2)
    free = next(iter({1, 2, 3} - set(cluster.state().replicas)))
    held = cluster.state().replicas[1]
    assert refusal(lambda: unregister(cluster.image, free)).code == ErrorCode.INVALID_REQUEST
    assert refusal(lambda: unregister(cluster.image, 9)).code == ErrorCode.BROKER_ID_NOT_REGISTERED
    for broker_id in (free, held):
        cluster.end_session(broker_id)
    assert refusal(lambda: unregister(cluster.image, held)).code == ErrorCode.INVALID_REQUEST
    late = unregister(cluster.image, free)
    cluster.join(free, "second")
    assert not cluster.attempt(late), "it came back"
    cluster.end_session(free)
    cluster.commit(unregister(cluster.image, free))
    assert free not in cluster.image.brokers


def test_an_embedded_broker_becomes_a_member_with_its_records() -> None:
    cluster = StoredCluster()
    cluster.commit(register_standalone(EMPTY, 1, rack=None, endpoints=LISTENERS))
    cluster.create("t", partitions=2, factor=1)
    cluster.commit(adopt(cluster.image, 1, incarnation="embedded", directory_id="disk of 1"))
    assert not cluster.image.brokers[1].is_alive
    error = refusal(lambda: adopt(cluster.image, 1, incarnation="again", directory_id="d"))
    assert error.code == ErrorCode.INVALID_REQUEST
    cluster.join(1)
    cluster.commit(become_controller(cluster.image, 1, SESSION))
    upkeep(cluster)
    assert [members(state) for state in cluster.image.topics["t"].partitions] == [((1,), (), 1)] * 2


def test_a_cluster_takes_as_many_brokers_as_one_transaction_can_compare() -> None:
    full = cluster_of(*range(1, BROKERS_MAX + 1))
    full.create("wide", BROKERS_MAX, 3)
    assert len(full.image.topics["wide"].partitions) == BROKERS_MAX
    said = refusal(lambda: full.join(BROKERS_MAX + 1, "one too many"))
    assert "unregister those that are gone for good" in said.detail
    full.end_session(7)
    full.join(7, "it has its place")
