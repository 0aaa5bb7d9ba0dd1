"""How the partitions of a broker follow leaders, replicas and in-sync sets."""

from collections.abc import Mapping

import msgspec
import pytest

from penstock.config.broker import BrokerConfig
from penstock.errors import ApiError, ErrorCode
from penstock.log.truncation import Truncation
from penstock.metadata.cluster_image import (
    BrokerRegistration,
    BrokerSession,
    ClusterImage,
    PartitionState,
    Topic,
)
from penstock.replication.leading import CommittedPartitionState, FollowerFetchState, LeaderRole
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.replication.roles import Admission, Leaderships, may_always_lead
from penstock.types import Offset, TopicId
from tests.unit.log.log_support import NOW_MS, batch_of, new_disk
from tests.unit.log.log_support import append as log_append
from tests.unit.replication.replica_support import sync
from tests.unit.replication.test_replica_manager import directory_on

ME, OTHER, THIRD = 1, 2, 3
ID = TopicId(b"orders----------")
CONFIG = BrokerConfig.of()
MINIMUM_OF_ONE = {"min.insync.replicas": "1"}


def image(*states: PartitionState, overrides: Mapping[str, str] | None = None) -> ClusterImage:
    topic = Topic("orders", ID, False, NOW_MS, overrides or {}, states, 1)
    return ClusterImage(cluster_id="c", topics={"orders": topic}, topics_by_id={ID: topic})


def state(
    leader: int, epoch: int = 1, isr: tuple[int, ...] = (ME, OTHER), version: int = 0
) -> PartitionState:
    return PartitionState((ME, OTHER, THIRD), leader, epoch, isr, version, index=0, revision=1)


class Followed:
    """Partitions that are told of one image after another."""

    def __init__(self, *states: PartitionState) -> None:
        self.partitions = ReplicaManager(directory_on(new_disk()), CONFIG, self._note)
        self.dirty: list[Partition] = []
        self.image = image(*states)
        assert list(self.partitions.open_all(self.image)) == []

    def _note(self, partition: Partition) -> None:
        self.dirty.append(partition)

    def see(self, after: ClusterImage) -> int:
        """How many partitions went away."""
        before, self.image = self.image, after
        return len(self.partitions.follow(before, after, CONFIG))

    @property
    def partition(self) -> Partition:
        found = self.partitions.find("orders", 0)
        assert found is not None
        return found


def write(partition: Partition) -> None:
    partition.append_now(memoryview(bytearray(batch_of([b"x"]))), NOW_MS)
    sync(partition)


def test_a_new_leader_epoch_makes_a_new_partition_over_the_same_log() -> None:
    followed = Followed(state(ME, isr=(ME,)))
    first = followed.partition
    assert first.leading is not None
    assert followed.see(image(state(OTHER, epoch=2, isr=(OTHER,)))) == 0
    second = followed.partition
    assert second is not first
    assert second.log is first.log
    assert first.offline_error is not None
    assert first.offline_error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert second.following is not None
    assert (second.following.leader_id, second.leader_epoch) == (OTHER, 2)


def test_what_was_shown_is_shown_after_a_change_of_leader() -> None:
    followed = Followed(msgspec.structs.replace(state(ME, isr=(ME,)), replicas=(ME, OTHER)))
    write(followed.partition)
    assert followed.partition.high_watermark == 1
    after = msgspec.structs.replace(state(OTHER, epoch=2, isr=(OTHER,)), replicas=(ME, OTHER))
    followed.see(image(after))
    assert followed.partition.high_watermark == 1


def test_another_in_sync_set_is_told_to_the_leader() -> None:
    followed = Followed(state(ME))
    partition = followed.partition
    write(partition)
    assert partition.high_watermark == 0
    followed.see(image(state(ME, isr=(ME,), version=1), overrides={"min.insync.replicas": "1"}))
    assert followed.partition is partition
    assert partition.high_watermark == 1


def test_another_minimum_is_told_to_the_leader() -> None:
    followed = Followed(state(ME, isr=(ME,)))
    write(followed.partition)
    assert followed.partition.min_isr_error is not None, "three replicas ask for two in sync"
    same = followed.image.topics["orders"].partitions
    followed.see(image(*same, overrides={"min.insync.replicas": "1"}))
    assert followed.partition.min_isr_error is None
    assert followed.partition.high_watermark == 1


def test_a_process_leads_nothing_before_it_is_admitted_and_after_another_was() -> None:
    admission = Admission(ME)
    partitions = ReplicaManager(directory_on(new_disk()), CONFIG, lambda partition: None)
    partitions.may_lead = admission.may_lead
    lone = PartitionState((ME,), ME, 4, (ME,), 0, index=0, revision=1)
    before = image(lone)
    assert list(partitions.open_all(before)) == []
    found = partitions.find("orders", 0)
    assert found is not None
    with pytest.raises(ApiError, match="NOT_LEADER_OR_FOLLOWER"):
        write(found)
    admission.incarnation = "this process"
    for incarnation, epoch, leads in (
        ("the one before", 5, False),
        ("this process", 6, True),
        ("one that has our id, because we slept", 7, False),
        ("this process", 8, True),
    ):
        live = BrokerSession(incarnation, "disk", epoch=epoch)
        me = BrokerRegistration(None, {}, incarnation, admitted_epoch=epoch, id=ME, revision=1, live=live)
        led = msgspec.structs.replace(lone, leader_epoch=epoch, partition_epoch=epoch)
        after = msgspec.structs.replace(image(led), brokers={ME: me})
        partitions.follow(before, after, CONFIG)
        found, before = partitions.find("orders", 0), after
        assert found is not None
        assert found.is_leader == leads
    write(found)


def proposing_leader() -> tuple[Followed, LeaderRole]:
    """A leader that is alone in sync and has proposed another replica; the outcome is not known."""
    followed = Followed(state(ME, isr=(ME,)))
    followed.see(image(state(ME, isr=(ME,)), overrides=MINIMUM_OF_ONE))
    write(followed.partition)
    leading = followed.partition.leading
    assert leading is not None
    assert leading.fetched(FollowerFetchState(OTHER, 7, Offset(1), 7), Offset(1), now=0.0) is not None
    return followed, leading


def depose(followed: Followed) -> None:
    followed.partitions.may_lead = lambda image: False
    followed.partitions.recheck_leadership()
    assert followed.partition.following is not None


def test_a_leader_reinstated_by_its_broker_keeps_what_it_proposed() -> None:
    followed, leading = proposing_leader()
    depose(followed)
    followed.partitions.may_lead = may_always_lead
    followed.partitions.recheck_leadership()
    assert followed.partition.leading is leading
    assert leading.maximal_isr == {ME, OTHER}
    write(followed.partition)
    assert followed.partition.high_watermark == 1, "the other may be in sync, and has not got it"


def test_a_leader_reinstated_by_an_image_keeps_what_it_proposed() -> None:
    followed, leading = proposing_leader()
    depose(followed)
    followed.partitions.may_lead = may_always_lead
    followed.see(image(state(ME, isr=(ME,)), overrides={**MINIMUM_OF_ONE, "retention.ms": "1"}))
    assert followed.partition.leading is leading
    assert leading.proposal is not None


def test_a_deposed_leader_hears_of_the_in_sync_set() -> None:
    followed, leading = proposing_leader()
    depose(followed)
    followed.see(image(state(ME, isr=(ME, OTHER), version=1), overrides=MINIMUM_OF_ONE))
    assert followed.partition.following is not None
    assert leading.proposal is None
    assert leading.isr == (ME, OTHER)


def test_a_follower_is_not_late_because_its_leader_was_deposed() -> None:
    leading = LeaderRole(
        ME, CommittedPartitionState((ME, OTHER), (ME, OTHER), 0, 1), Offset(0), Offset(0), now=0.0
    )
    leading.resumed(CommittedPartitionState((ME, OTHER), (ME, OTHER), 0, 1), now=60.0)
    assert leading.propose_shrink(Offset(1), now=61.0, lag_ms_max=30_000) is None
    assert leading.propose_shrink(Offset(1), now=91.0, lag_ms_max=30_000) is not None


def test_another_leader_epoch_begins_with_no_proposal() -> None:
    followed, leading = proposing_leader()
    followed.see(image(state(ME, epoch=2, isr=(ME,), version=1), overrides=MINIMUM_OF_ONE))
    assert followed.partition.leading is not None
    assert followed.partition.leading is not leading
    assert followed.partition.leading.proposal is None


def test_one_leader_epoch_has_one_leadership() -> None:
    followed, leading = proposing_leader()
    leaderships, log = Leaderships(), followed.partition.log
    leaderships.begin(log, 1, leading)
    with pytest.raises(AssertionError, match="is led in leader epoch 1 already"):
        leaderships.begin(log, 1, leading)


def test_a_partition_of_others_is_not_here_until_it_is() -> None:
    elsewhere = PartitionState((OTHER,), OTHER, 1, (OTHER,), 0, index=0, revision=1)
    followed = Followed(elsewhere)
    assert followed.partitions.find("orders", 0) is None
    assert followed.partitions.missing_partition_error("", ID, 0).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (
        followed.partitions.missing_partition_error("orders", ID, 1).code
        is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert list(followed.partitions) == []
    followed.see(image(msgspec.structs.replace(elsewhere, replicas=(OTHER, ME), partition_epoch=1)))
    assert followed.partition.following is not None
    assert followed.see(image(msgspec.structs.replace(elsewhere, partition_epoch=2))) == 1
    assert followed.partitions.find("orders", 0) is None


def test_a_lone_replica_that_gets_others_leads_on() -> None:
    alone = PartitionState((ME,), ME, 1, (ME,), 0, index=0, revision=1)
    followed = Followed(alone)
    partition = followed.partition
    write(partition)
    assert partition.leading is None
    assert partition.high_watermark == 1
    followed.see(image(msgspec.structs.replace(alone, replicas=(ME, OTHER), partition_epoch=1)))
    assert followed.partition is partition
    assert partition.leading is not None
    write(partition)
    assert partition.high_watermark == 2, "nobody else is in sync yet"


def test_a_role_waits_for_a_cut_that_is_under_way() -> None:
    followed = Followed(state(ME))
    write(followed.partition)
    write(followed.partition)
    followed.see(image(state(OTHER, epoch=2)))
    follower = followed.partition
    cut = Truncation(follower.log, Offset(1))
    followed.see(image(state(THIRD, epoch=3)))
    followed.see(image(state(ME, epoch=4)))
    assert followed.partition is follower
    assert follower.offline_error is not None
    cut.run()
    cut.end()
    followed.partitions.truncation_ended(follower)
    leader = followed.partition
    assert (leader.leader_epoch, leader.log.log_end_offset) == (4, 1)
    assert leader.leading is not None
    assert leader.leading.epoch_start == 1


def test_a_truncation_that_ends_on_a_damaged_copy_changes_nothing() -> None:
    followed = Followed(state(ME))
    write(followed.partition)
    write(followed.partition)
    followed.see(image(state(OTHER, epoch=2)))
    follower = followed.partition
    cut = Truncation(follower.log, Offset(1))
    followed.see(image(state(THIRD, epoch=3)))
    damaged = followed.partitions.damage(follower, "bit rot")
    assert not followed.partitions._waiting, "no leader epoch waits for a copy that is out of use"
    woken: list[int] = []
    follower.fetch_waits[woken.append] = 0
    cut.run()
    cut.end()
    followed.partitions.truncation_ended(follower)
    assert (followed.partition is damaged, follower.is_damaged, woken) == (True, True, [])


def test_a_copy_damaged_during_a_truncation_has_the_leader_epoch_that_waited() -> None:
    """Its repair waits for the storage to have the leader epoch of the image: no other image need come."""
    followed = Followed(state(ME))
    write(followed.partition)
    write(followed.partition)
    followed.see(image(state(OTHER, epoch=2)))
    follower = followed.partition
    Truncation(follower.log, Offset(1))
    followed.see(image(state(THIRD, epoch=3)))
    damaged = followed.partitions.damage(follower, "bit rot")
    assert damaged is followed.partition
    assert damaged is not None
    assert (damaged.leader_epoch, damaged.is_damaged) == (3, True)
    assert damaged.offline_error is not None
    assert (damaged.offline_error.code, damaged.offline_error.detail) == (
        ErrorCode.KAFKA_STORAGE_ERROR,
        "bit rot",
    )


def test_an_empty_copy_does_not_lead() -> None:
    """Leadership may come to it while its folder is moved: others may be gone."""
    followed = Followed(state(ME))
    write(followed.partition)
    followed.see(image(state(OTHER, epoch=2, isr=(OTHER,))))
    followed.partitions.damage(followed.partition, "bit rot")
    empty = followed.partitions.release_damaged(followed.partition)
    followed.see(image(state(ME, epoch=3, isr=(ME,)), overrides=MINIMUM_OF_ONE))
    assert not followed.partitions.begin_replacement(empty)
    assert followed.partition.is_damaged
    with pytest.raises(ApiError, match="bit rot"):
        write(followed.partition)
    followed.see(image(state(OTHER, epoch=4, isr=(OTHER,)), overrides=MINIMUM_OF_ONE))
    assert followed.partitions.begin_replacement(empty)
    assert (followed.partition.offline_error, followed.partition.is_leader) == (None, False)


def test_a_setting_changed_during_a_truncation_holds_for_the_new_leader() -> None:
    followed = Followed(state(OTHER, isr=(ME, OTHER, THIRD)))
    follower = followed.partition
    log_append(follower.log, [b"a"])
    log_append(follower.log, [b"b"])
    sync(follower)
    cut = Truncation(follower.log, Offset(1))
    elected = state(ME, epoch=2, isr=(ME,), version=1)
    followed.see(image(elected, overrides={"min.insync.replicas": "1"}))
    followed.see(image(elected, overrides={"min.insync.replicas": "2"}))
    cut.run()
    cut.end()
    followed.partitions.truncation_ended(follower)
    leader = followed.partition
    assert leader.leading is not None
    assert leader.leading.min_isr == 2
    assert leader.min_isr_error is not None
    write(leader)
    assert leader.high_watermark == 0, "one replica in sync is not enough to acknowledge"


def test_what_the_last_leader_did_not_flush_is_flushed_for_the_next() -> None:
    followed = Followed(state(ME))
    followed.partition.append_now(memoryview(bytearray(batch_of([b"x"]))), NOW_MS)
    followed.see(image(state(OTHER, epoch=2)))
    assert followed.dirty[-1] is followed.partition
    assert followed.partition.fetch_position() is None
    sync(followed.partition)
    assert followed.partition.fetch_position() is not None
