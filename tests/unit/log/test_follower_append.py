"""A follower's log holds what its leader's does, byte for byte, or nothing of it."""

import pytest

from penstock.errors import CorruptData, StorageFull
from penstock.log.compaction.batch_filter import Gap, gap_batch
from penstock.log.follower_append import append_as_follower
from penstock.log.partition_log import PartitionLog
from penstock.protocol.batches import parse_header, seal_in_place
from penstock.types import LeaderEpoch, Offset
from tests.unit.log.log_support import (
    append,
    batches,
    checkpoint,
    flush,
    log_folder,
    new_disk,
    new_log,
    reopened,
    truncate_fully_and_start_at,
)

EPOCH = LeaderEpoch(9)


def led(count: int = 6) -> PartitionLog:
    log = new_log(new_disk())
    for number in range(count):
        append(
            log,
            [b"%d" % number] * 2,
            epoch=1 + number // 2,
            producer_id=4,
            producer_epoch=0,
            base_sequence=2 * number,
        )
    return log


def take(log: PartitionLog, *given: bytes, epoch: LeaderEpoch = EPOCH) -> int:
    return append_as_follower(log, memoryview(bytearray(b"".join(given))), epoch)


def test_a_follower_stores_what_the_leader_stored() -> None:
    leader, follower = led(), new_log(new_disk())
    assert take(follower, *batches(leader)) == 6
    assert batches(follower) == batches(leader)
    assert follower.epochs.to_bytes() == leader.epochs.to_bytes()
    assert follower.producers.to_bytes() == leader.producers.to_bytes()
    assert [len(segment.index) for segment in follower.segments] == [len(s.index) for s in leader.segments]


def test_what_is_there_already_is_passed_over() -> None:
    leader, follower = led(), new_log(new_disk())
    given = batches(leader)
    take(follower, *given[:4])
    assert take(follower, *given[2:]) == 2
    assert batches(follower) == given


def test_a_batch_of_a_later_epoch_than_was_asked_for_is_left_out() -> None:
    """KAFKA-18723"""
    follower = new_log(new_disk())
    assert take(follower, *batches(led()), epoch=LeaderEpoch(2)) == 4
    assert (follower.log_end_offset, follower.epochs.latest) == (8, 2)


def test_what_is_cut_off_at_the_end_is_left_out() -> None:
    follower = new_log(new_disk())
    assert take(follower, b"".join(batches(led()))[:-1]) == 5


def test_a_hole_is_refused() -> None:
    given = batches(led())
    follower = new_log(new_disk())
    with pytest.raises(CorruptData, match="offset 4 where 2 belongs"):
        take(follower, given[0], given[2])
    assert follower.log_end_offset == 2


def test_a_flipped_bit_is_refused() -> None:
    given = bytearray(batches(led())[0])
    given[70] ^= 1
    with pytest.raises(CorruptData, match="checksum"):
        take(new_log(new_disk()), bytes(given))


def test_an_epoch_that_falls_is_refused() -> None:
    leader, other = led(), led()
    follower = new_log(new_disk())
    take(follower, *batches(leader)[:4])
    stale = bytearray(batches(other)[4])
    stale[12:16] = (1).to_bytes(4, "big")
    with pytest.raises(CorruptData, match="leader epoch 1 behind epoch 2"):
        take(follower, bytes(stale))


def test_a_batch_that_overlaps_what_is_there_is_refused() -> None:
    follower = new_log(new_disk())
    take(follower, *batches(led())[:2])
    wide = bytearray(batches(led())[0])
    wide[23:27] = (7).to_bytes(4, "big")  # last offset delta
    seal_in_place(wide)
    with pytest.raises(CorruptData, match="offset 0 where 4 belongs"):
        take(follower, bytes(wide))


def test_of_a_gap_that_is_wider_than_ours_the_rest_is_taken() -> None:
    """Compaction joins neighbours that it empties."""
    follower = new_log(new_disk())
    take(follower, *batches(led())[:2])
    gap = gap_batch(Gap(Offset(2), Offset(9), LeaderEpoch(3), 0))
    assert take(follower, gap) == 1
    last = parse_header(batches(follower)[-1])
    assert (last.base_offset, last.last_offset, last.leader_epoch) == (4, 9, 3)
    assert follower.epochs.epoch_at(Offset(4)) == 3
    flush(follower)


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_log_that_starts_within_a_batch_is_copied_so(is_checkpointed: bool) -> None:
    """A client deleted records up to the middle of a batch, and this follower begins there."""
    disk, given = new_disk(), batches(led())
    follower = new_log(disk)
    truncate_fully_and_start_at(follower, Offset(5))
    if is_checkpointed:
        checkpoint(follower)
    take(follower, *given[2:])
    assert (follower.log_start_offset, follower.log_end_offset) == (5, 12)
    assert batches(follower) == given[2:]
    assert follower.epochs.epoch_at(Offset(5)) == 2
    flush(follower)
    disk.disk.lose_power()
    left = reopened(disk.disk.mount()).log
    assert (left.log_start_offset, left.log_end_offset) == (5, 12)
    assert left.producers.to_bytes() == follower.producers.to_bytes()


def test_power_that_fails_before_such_a_batch_is_safe_leaves_an_empty_log() -> None:
    for seed in range(20):
        disk = new_disk(seed)
        follower = new_log(disk)
        truncate_fully_and_start_at(follower, Offset(5))
        checkpoint(follower)
        take(follower, *batches(led())[2:])
        disk.disk.lose_power()
        left = reopened(disk.disk.mount()).log
        assert left.log_start_offset == 5
        assert left.log_end_offset in (5, 6, 8, 10, 12)


def test_such_a_log_opens_whichever_names_reached_the_disk() -> None:
    """The snapshot that the batch made void may be left, and the batch may not."""
    for kept in range(32):
        disk = new_disk(kept)
        follower = new_log(disk)
        truncate_fully_and_start_at(follower, Offset(5))
        checkpoint(follower)
        take(follower, *batches(led())[2:])
        folder = log_folder(disk.disk)
        assert folder.changes_unsynced <= 5
        folder.keep_changes(kept)
        disk.disk.lose_power()
        left = reopened(disk.disk.mount()).log
        assert left.log_start_offset == 5
        assert left.log_end_offset in (5, 6, 8, 10, 12)


def test_a_full_disk_leaves_nothing_of_a_batch_and_it_comes_again() -> None:
    disk, given = new_disk(), batches(led())
    follower = new_log(disk)
    truncate_fully_and_start_at(follower, Offset(5))
    disk.disk.room_bytes = 10
    with pytest.raises(StorageFull):
        take(follower, *given[2:])
    assert (follower.log_start_offset, follower.log_end_offset) == (5, 5)
    disk.disk.room_bytes = 10_000
    take(follower, *given[2:])
    assert batches(follower) == given[2:]
