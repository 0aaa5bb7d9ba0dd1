"""How a follower's log becomes its leader's."""

import pytest

from penstock.errors import CorruptData, ErrorCode
from penstock.log.partition_log import PartitionLog
from penstock.log.recovery import open_log
from penstock.log.truncation import FullTruncation, Truncation
from penstock.protocol.messages.fetch import EpochEndOffset, PartitionData
from penstock.replication.following import Applied, Ignored, RetryLater, divergence_offset
from penstock.types import Offset
from tests.unit.log.log_support import append, batches, flush
from tests.unit.replication.replica_support import (
    answer_to,
    catch_up,
    exchange,
    follower_on,
    leader_on,
    new_log,
    produce,
    store_start,
    sync,
)


def reopened(log: PartitionLog) -> PartitionLog:
    """As a process finds it that is started after this one was killed."""
    return open_log(log.disk, log.folder, log.settings).log


def log_of(*epochs: int) -> PartitionLog:
    """One record for each epoch given; those of one epoch are the same in every log."""
    log = new_log()
    for number, epoch in enumerate(epochs):
        append(log, [b"%d of %d" % (number, epoch)], epoch=epoch)
    flush(log)
    return log


def test_a_follower_acknowledges_only_what_is_on_its_disk() -> None:
    leader, follower = leader_on(new_log()), follower_on(new_log())
    produce(leader, b"a")
    sync(leader)
    fetch_position = follower.fetch_position()
    assert fetch_position is not None
    assert follower.handle_fetch_response(fetch_position, answer_to(leader, fetch_position)) == Applied(1)
    assert follower.fetch_position() is None, "not before it is flushed"
    assert leader.high_watermark == 0
    sync(follower)
    exchange(leader, follower)
    assert leader.high_watermark == 1
    assert follower.high_watermark == 1


def test_a_code_that_is_not_known_here_is_asked_about_again() -> None:
    follower = follower_on(new_log())
    fetch_position = follower.fetch_position()
    assert fetch_position is not None
    unknown = PartitionData(0, 9_999, -1, -1, -1)
    assert follower.handle_fetch_response(fetch_position, unknown) == RetryLater(
        ErrorCode.UNKNOWN_SERVER_ERROR
    )


def test_what_the_leader_shows_is_shown_as_far_as_it_is_here() -> None:
    leader, follower = leader_on(new_log(), isr=(1,)), follower_on(new_log())
    for _ in range(3):
        produce(leader)
    sync(leader)
    fetch_position = follower.fetch_position()
    assert fetch_position is not None
    answer = answer_to(leader, fetch_position)
    assert answer.high_watermark == 3
    follower.handle_fetch_response(fetch_position, answer)
    assert follower.high_watermark == 0, "an unflushed record is never shown"
    sync(follower)
    assert follower.high_watermark == 3


def test_records_above_the_high_watermark_survive_a_change_of_leader() -> None:
    """KAFKA-1211: cutting to the high watermark lost what had been acknowledged."""
    old, follower = leader_on(new_log()), follower_on(new_log())
    produce(old, b"a")
    produce(old, b"b")
    sync(old)
    exchange(old, follower)
    fetched = follower.fetch_position()
    assert fetched is not None
    answer_to(old, fetched)  # acknowledges both, and the answer is lost
    assert (old.high_watermark, follower.high_watermark) == (2, 0)
    leader = leader_on(follower.log, epoch=2, high=follower.high_watermark)
    returned = follower_on(old.log, epoch=2, high_watermark_before=old.high_watermark)
    assert catch_up(leader, returned) == ["Applied"]
    assert leader.log.log_end_offset == returned.log.log_end_offset == 2
    assert leader.high_watermark == 2


def test_what_only_the_old_leader_had_gives_way_to_what_the_new_one_wrote() -> None:
    old = follower_on(log_of(1, 1, 1, 1), epoch=2)
    leader = leader_on(log_of(1, 1), epoch=2)
    produce(leader, b"new")
    assert "Truncation" in catch_up(leader, old)
    assert batches(old.log) == batches(leader.log)


@pytest.mark.parametrize(
    ("leaders", "ours"),
    [
        ((1, 1, 3, 5), (1, 1, 2, 2, 2)),
        ((1, 3, 3, 5), (1, 2, 4, 4)),
        ((2, 2, 6), (1, 1, 3, 3, 5)),
        ((1, 1, 1), (1, 1, 1, 4, 4, 4)),
        ((1, 1, 1, 2, 3), (1, 1, 4)),
        ((1, 4), (1, 1, 1, 2, 3)),
        ((), (1, 2, 3)),
        ((6,), (1, 2, 3)),
        ((1, 2, 3), ()),
    ],
)
def test_histories_that_part_anywhere_become_one(leaders: tuple[int, ...], ours: tuple[int, ...]) -> None:
    """KAFKA-6361: where the leader knows nothing of the last epoch here, it takes more than one cut."""
    leader, follower = leader_on(log_of(*leaders), epoch=7), follower_on(log_of(*ours), epoch=7)
    catch_up(leader, follower)
    assert batches(follower.log) == batches(leader.log)
    assert follower.log.epochs.to_bytes() == leader.log.epochs.to_bytes()


def test_a_cut_does_not_reach_into_what_both_have() -> None:
    log = log_of(1, 1, 3, 3)
    assert divergence_offset(log, EpochEndOffset(2, 9)) == 2
    assert divergence_offset(log, EpochEndOffset(3, 3)) == 3
    assert divergence_offset(log, EpochEndOffset(1, 1)) == 1
    assert divergence_offset(log, EpochEndOffset(0, 1)) == 0


def test_an_answer_that_says_histories_part_does_not_move_the_high_watermark() -> None:
    """KAFKA-14704"""
    follower = follower_on(log_of(1, 1, 2, 2), epoch=3, high_watermark_before=1)
    fetch_position = follower.fetch_position()
    assert fetch_position is not None
    step = follower.handle_fetch_response(
        fetch_position, PartitionData(0, 0, 4, 4, 0, diverging_epoch=EpochEndOffset(1, 2))
    )
    follower.advance()
    assert follower.high_watermark == 1
    assert isinstance(step, Truncation)
    assert step.offset == 2


def test_a_follower_that_is_behind_the_leaders_start_begins_there() -> None:
    leader = leader_on(log_of(*[1] * 8), epoch=2, high=8, isr=(1,))
    leader.log.advance_start(Offset(5))
    follower = follower_on(log_of(1, 1), epoch=2)
    assert catch_up(leader, follower)[0] == "FullTruncation"
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (5, 8)
    assert batches(follower.log) == batches(leader.log)
    assert follower.high_watermark == 8


def test_an_empty_follower_past_the_leaders_end_begins_where_the_leader_does() -> None:
    leader, follower = leader_on(log_of(1, 1), epoch=2), follower_on(new_log(), epoch=2)
    follower.log.log_start_offset = follower.log.log_end_offset = Offset(50)
    follower.log.flushed_end_offset = Offset(50)
    catch_up(leader, follower)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (0, 2)


def test_a_start_is_reported_when_it_is_stored_and_not_before() -> None:
    leader, follower = leader_on(log_of(*[1] * 8), epoch=2), follower_on(new_log(), epoch=2)
    catch_up(leader, follower)
    leader.delete_before(Offset(5))
    catch_up(leader, follower)
    assert follower.log.log_start_offset == 5
    exchange(leader, follower)  # the first fetch that could report the new start
    assert not leader.is_deleted(Offset(5)), "after a crash the follower would begin at 0"
    assert reopened(follower.log).log_start_offset == 0
    store_start(follower)
    exchange(leader, follower)
    assert leader.is_deleted(Offset(5))
    assert reopened(follower.log).log_start_offset == 5


def test_the_start_follows_the_leaders_and_survives_a_checkpoint() -> None:
    leader, follower = leader_on(log_of(1, 1, 1), epoch=2, isr=(1,)), follower_on(new_log(), epoch=2)
    leader.delete_before(Offset(2))
    follower.log.log_start_offset = Offset(0)
    catch_up(leader, follower)
    leader.delete_before(Offset(3))
    catch_up(leader, follower)
    assert follower.log.log_start_offset == 3
    plan = follower.log.begin_checkpoint()
    assert any(stored.path.endswith("log-start-checkpoint") for stored in plan.small_files)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_a_refusal_changes_nothing(code: ErrorCode) -> None:
    follower = follower_on(log_of(1, 1), epoch=2)
    fetch_position = follower.fetch_position()
    assert fetch_position is not None
    assert follower.handle_fetch_response(fetch_position, PartitionData(0, code, -1, -1, -1)) == RetryLater(
        code
    )
    assert follower.log.log_end_offset == 2


def test_a_leader_of_another_epoch_refuses() -> None:
    follower = follower_on(new_log(), epoch=2)
    for epoch, code in ((3, ErrorCode.FENCED_LEADER_EPOCH), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        assert exchange(leader_on(log_of(1), epoch=epoch), follower) == RetryLater(code)


def test_an_answer_to_an_earlier_ask_is_passed_over() -> None:
    leader, follower = leader_on(log_of(1, 1), epoch=2), follower_on(new_log(), epoch=2)
    fetch_position = follower.fetch_position()
    assert fetch_position is not None
    answer = answer_to(leader, fetch_position)
    assert follower.handle_fetch_response(fetch_position, answer) == Applied(2)
    assert follower.handle_fetch_response(fetch_position, answer) is Ignored.STALE
    later = follower_on(follower.log, epoch=3)
    assert later.handle_fetch_response(fetch_position._replace(offset=Offset(2)), answer) is Ignored.STALE


def test_a_reply_from_before_a_truncation_is_ignored_although_the_end_matches() -> None:
    leader, follower = leader_on(log_of(1, 3), epoch=4), follower_on(log_of(1, 2), epoch=4)
    fetch_position = follower.fetch_position()
    assert fetch_position is not None
    parted = answer_to(leader, fetch_position)
    step = follower.handle_fetch_response(fetch_position, parted)
    assert isinstance(step, Truncation)
    assert follower.handle_fetch_response(fetch_position, parted) is Ignored.STALE, "it is being cut"
    step.run()
    step.end()
    follower.truncated()
    catch_up(leader, follower)
    assert follower.log.log_end_offset == fetch_position.offset
    assert follower.handle_fetch_response(fetch_position, parted) is Ignored.STALE


def test_nothing_is_cut_while_a_checkpoint_is_under_way() -> None:
    follower = follower_on(log_of(1, 1, 2), epoch=3)
    fetch_position = follower.fetch_position()
    assert fetch_position is not None
    parted = PartitionData(0, 0, 0, 0, 0, diverging_epoch=EpochEndOffset(1, 2))
    follower.log.begin_checkpoint()
    assert follower.handle_fetch_response(fetch_position, parted) == RetryLater(ErrorCode.NONE)
    follower.log.abandon_checkpoint()
    assert isinstance(follower.handle_fetch_response(fetch_position, parted), Truncation)
    assert follower.fetch_position() is None


def test_out_of_range_without_a_start_is_not_believed() -> None:
    follower = follower_on(log_of(1, 1), epoch=2)
    fetch_position = follower.fetch_position()
    assert fetch_position is not None
    refused = PartitionData(0, ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, -1)
    assert not isinstance(follower.handle_fetch_response(fetch_position, refused), FullTruncation)


def test_what_came_before_damage_is_kept_and_becomes_durable() -> None:
    leader, follower = leader_on(log_of(1, 1), epoch=2), follower_on(new_log(), epoch=2)
    fetch_position = follower.fetch_position()
    assert fetch_position is not None
    answer = answer_to(leader, fetch_position)
    assert isinstance(answer.records, bytes)
    answer.records = answer.records[:-1] + bytes([answer.records[-1] ^ 1])
    with pytest.raises(CorruptData):
        follower.handle_fetch_response(fetch_position, answer)
    assert follower.log.log_end_offset == 1
    sync(follower)
    catch_up(leader, follower)
    assert batches(follower.log) == batches(leader.log)


def test_how_far_a_follower_is_behind_is_known_when_the_leader_has_answered() -> None:
    leader, follower = leader_on(new_log(), isr=(1,)), follower_on(new_log())
    for _ in range(3):
        produce(leader)
    sync(leader)
    assert follower.following is not None
    assert follower.following.lag(Offset(0)) is None
    fetch_position = follower.fetch_position()
    assert fetch_position is not None
    follower.handle_fetch_response(fetch_position, answer_to(leader, fetch_position))
    assert follower.following.lag(Offset(1)) == 2
    assert follower.following.lag(follower.log.log_end_offset) == 0
