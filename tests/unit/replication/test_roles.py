"""A partition with several replicas, as producers and readers meet it."""

import pytest

from penstock.config.topic import FlushPolicy
from penstock.errors import ApiError, ErrorCode
from penstock.replication.following import RetryLater
from penstock.replication.leading import CommittedPartitionState
from penstock.replication.partition import Partition
from penstock.replication.produce_waits import ProduceWait
from penstock.types import Offset
from tests.unit.replication.replica_support import (
    catch_up,
    exchange,
    follower_on,
    leader_on,
    made,
    new_log,
    produce,
    sync,
)


def waiting(partition: Partition, end: Offset, answers: list[dict[int, ErrorCode]]) -> None:
    wait = ProduceWait(1.0, lambda wait: answers.append(dict(wait.errors)))
    partition.high_watermark_waits.add(end, wait, 0)


def refusal(call: object, *arguments: object) -> ErrorCode:
    with pytest.raises(ApiError) as raised:
        call(*arguments)  # type: ignore[operator]
    return raised.value.code


def test_a_producer_is_answered_when_all_in_sync_replicas_have_its_records() -> None:
    leader, follower = leader_on(new_log()), follower_on(new_log())
    answers: list[dict[int, ErrorCode]] = []
    waiting(leader, produce(leader), answers)
    exchange(leader, follower)  # takes what is not flushed yet
    exchange(leader, follower)  # acknowledges it
    assert answers == []
    sync(leader)
    assert answers == [{}]


def test_one_who_waits_for_the_leader_alone_is_answered_when_it_has_the_records() -> None:
    leader = leader_on(new_log())
    answers: list[int] = []
    leader.own_end_waits.add(produce(leader), ProduceWait(1.0, lambda wait: answers.append(1)), 0)
    sync(leader)
    assert answers == [1]
    assert leader.high_watermark == 0


def test_with_too_few_in_sync_producers_are_refused_and_those_who_wait_are_told() -> None:
    leader = leader_on(new_log(), min_isr=2)
    answers: list[dict[int, ErrorCode]] = []
    waiting(leader, produce(leader), answers)
    assert leader.min_isr_error is None
    leader.committed_state_changed(CommittedPartitionState((1, 2), (1,), 1, 2), now=1.0)
    assert answers == [{0: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}]
    assert leader.min_isr_error is not None
    assert leader.min_isr_error.code is ErrorCode.NOT_ENOUGH_REPLICAS
    sync(leader)
    assert leader.high_watermark == 0
    leader.committed_state_changed(CommittedPartitionState((1, 2), (1,), 1, 1), now=1.0)
    assert (leader.min_isr_error, leader.high_watermark) == (None, 1)


def test_a_follower_joins_and_is_then_waited_for() -> None:
    leader, follower = leader_on(new_log(), isr=(1,)), follower_on(new_log())
    assert leader.leading is not None
    produce(leader)
    sync(leader)
    catch_up(leader, follower)
    proposal = leader.leading.proposal
    assert proposal is not None
    leader.proposal_committed(proposal, 1)
    produce(leader)
    sync(leader)
    assert leader.high_watermark == 1
    catch_up(leader, follower)
    assert leader.high_watermark == 2


def test_a_refused_proposal_lets_go_of_who_was_to_join() -> None:
    leader, follower = leader_on(new_log(), isr=(1,)), follower_on(new_log())
    assert leader.leading is not None
    exchange(leader, follower)
    produce(leader)
    sync(leader)
    assert leader.high_watermark == 0
    assert leader.leading.proposal is not None
    leader.proposal_rejected(leader.leading.proposal)
    assert leader.high_watermark == 1


def test_the_end_is_not_known_before_followers_confirm_what_was_there() -> None:
    before = leader_on(new_log(), isr=(1,))
    produce(before)
    sync(before)
    leader, follower = leader_on(before.log, epoch=2), follower_on(new_log(), epoch=2)
    assert refusal(leader.require_end_known) is ErrorCode.OFFSET_NOT_AVAILABLE
    catch_up(leader, follower)
    leader.require_end_known()


def test_a_follower_takes_nothing_from_producers_and_shows_what_is_safe() -> None:
    leader, follower = leader_on(new_log()), follower_on(new_log())
    produce(leader)
    sync(leader)
    catch_up(leader, follower)
    assert refusal(produce, follower) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refusal(follower.require_leader) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert follower.read(Offset(0), 1_000, at_least_one=True) is not None
    assert follower.high_watermark == 1


def test_who_waits_for_a_leadership_that_is_over_is_told() -> None:
    leader = leader_on(new_log())
    answers: list[dict[int, ErrorCode]] = []
    local: list[dict[int, ErrorCode]] = []
    woken: list[int] = []
    end = produce(leader)
    waiting(leader, end, answers)
    leader.own_end_waits.add(end, ProduceWait(1.0, lambda wait: local.append(dict(wait.errors))), 0)
    leader.fetch_waits[woken.append] = 3
    leader.resign()
    assert answers == local == [{0: ErrorCode.NOT_LEADER_OR_FOLLOWER}]
    assert woken == [3]
    assert refusal(produce, leader) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_flush_that_the_last_leader_began_counts_for_the_next() -> None:
    old = leader_on(new_log())
    produce(old)
    plan = old.log.begin_flush()
    old.resign()
    leader = leader_on(old.log, epoch=2, isr=(1,))
    old.log.disk.sync(plan.files, plan.folders)
    old.flushed(plan)
    assert leader.high_watermark == 0
    sync(leader)
    assert leader.high_watermark == 1


def test_without_flushes_before_acks_the_end_of_the_log_counts() -> None:
    leader = leader_on(new_log(), flush_policy=FlushPolicy.OS)
    follower = follower_on(new_log(), flush_policy=FlushPolicy.OS)
    produce(leader)
    assert leader.high_watermark == 0
    catch_up(leader, follower)
    assert leader.high_watermark == 1


def test_a_follower_without_an_epoch_is_refused_and_a_lone_replica_has_none() -> None:
    leader, lone = leader_on(new_log(), epoch=0), made(new_log(), 0, None)
    assert exchange(leader, follower_on(new_log(), epoch=-1)) == RetryLater(ErrorCode.FENCED_LEADER_EPOCH)
    assert exchange(lone, follower_on(new_log(), epoch=0)) == RetryLater(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_fetches_are_told_how_many_bytes_became_safe() -> None:
    leader, follower = leader_on(new_log()), follower_on(new_log())
    produce(leader)
    sync(leader)
    assert leader.committed_bytes == 0
    catch_up(leader, follower)
    assert leader.committed_bytes == leader.log.appended_bytes


def test_waits_that_are_over_are_found_wherever_they_wait() -> None:
    leader = leader_on(new_log())
    answers: list[dict[int, ErrorCode]] = []
    waiting(leader, produce(leader), answers)
    assert leader.expire_waits(0.5)
    assert not leader.expire_waits(2.0)
    assert answers == [{0: ErrorCode.REQUEST_TIMED_OUT}]
