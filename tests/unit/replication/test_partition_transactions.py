"""Markers and the last stable offset of a replica, as leader, as follower and over leader epochs."""

from typing import Any

import pytest

from penstock.config.topic import FlushPolicy
from penstock.errors import ApiError, ErrorCode, StorageFull
from penstock.log.reading.cold_reading import BatchesRead
from penstock.protocol.control_batches import EndTransactionMarker
from penstock.replication.partition import Appended, Partition
from penstock.replication.produce_waits import ProduceWait
from penstock.types import LeaderEpoch, Offset, ProducerId
from tests.unit.log.log_support import NOW_MS, batch_of, checkpoint, new_disk
from tests.unit.log.transactions.transaction_support import delivered
from tests.unit.replication.replica_support import catch_up, follower_on, leader_on, made, new_log, sync
from tests.unit.replication.test_partition import append, partition_on

PRODUCER = ProducerId(7)


def write(
    partition: Partition, sequence: int, *values: bytes, producer: int = PRODUCER, epoch: int = 0
) -> Appended:
    options: dict[str, Any] = {
        "producer_id": producer,
        "producer_epoch": epoch,
        "base_sequence": sequence,
    }
    batch = memoryview(bytearray(batch_of(values or (b"x",), (), transactional=True, **options)))
    found = partition.try_append(batch, NOW_MS, allows_transactions=True)
    assert isinstance(found, Appended)
    return found


def end(
    partition: Partition,
    *,
    commit: bool = True,
    producer: int = PRODUCER,
    epoch: int = 0,
    coordinator: int = 0,
    must_be_newer: bool = False,
) -> Appended:
    marker = EndTransactionMarker(ProducerId(producer), epoch, commit, coordinator)
    return partition.append_marker(marker, NOW_MS, must_be_newer=must_be_newer)


def rejection(call: object, *arguments: object, **options: object) -> ErrorCode:
    with pytest.raises(ApiError) as raised:
        call(*arguments, **options)  # type: ignore[operator]
    return raised.value.code


def at_once() -> Partition:
    return partition_on(new_disk(), flush_policy=FlushPolicy.OS)


# The door


def test_a_transactional_batch_is_rejected_unless_it_is_allowed() -> None:
    partition = at_once()
    batch = batch_of([b"x"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    code = rejection(partition.try_append, memoryview(bytearray(batch)), NOW_MS)
    assert code is ErrorCode.INVALID_TXN_STATE
    assert write(partition, 0).end_offset == 1


@pytest.mark.parametrize("allows_transactions", [True, False])
def test_a_control_batch_of_a_client_is_always_rejected(allows_transactions: bool) -> None:
    options: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    batch = memoryview(bytearray(batch_of([b"x"], control=True, transactional=True, **options)))
    call = at_once().try_append
    code = rejection(call, batch, NOW_MS, allows_transactions=allows_transactions)
    assert code is ErrorCode.INVALID_RECORD


def test_a_transactional_batch_needs_a_producer_id() -> None:
    batch = memoryview(bytearray(batch_of([b"x"], transactional=True)))
    code = rejection(at_once().try_append, batch, NOW_MS, allows_transactions=True)
    assert code is ErrorCode.INVALID_RECORD


# Markers


def test_a_marker_is_one_offset_behind_its_transaction() -> None:
    partition = at_once()
    write(partition, 0, b"a", b"b")
    assert end(partition) == Appended(Offset(2), Offset(3), -1)
    assert partition.log.log_end_offset == 3


def test_a_repeated_marker_waits_for_the_first_one() -> None:
    partition = partition_on(new_disk())
    write(partition, 0)
    first = end(partition, epoch=1, must_be_newer=True)
    again = end(partition, epoch=1, must_be_newer=True)
    assert (again.end_offset, partition.log.log_end_offset) == (first.end_offset, 2)
    assert again.end_offset > partition.high_watermark
    sync(partition)
    assert partition.high_watermark == again.end_offset


def test_a_stale_marker_is_rejected_and_appends_nothing() -> None:
    partition = at_once()
    write(partition, 0, epoch=4)
    assert rejection(end, partition, epoch=3) is ErrorCode.INVALID_PRODUCER_EPOCH
    end(partition, epoch=4, coordinator=9)
    assert rejection(end, partition, epoch=5, coordinator=8) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert partition.log.log_end_offset == 2


def test_a_follower_and_an_offline_partition_take_no_marker() -> None:
    assert rejection(end, follower_on(new_log())) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition = at_once()
    partition.go_offline("the disk broke")
    assert rejection(end, partition) is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_marker_that_finds_no_space_leaves_the_transaction_open() -> None:
    disk = new_disk()
    partition = partition_on(disk, flush_policy=FlushPolicy.OS)
    write(partition, 0)
    disk.disk.room_bytes = 0
    with pytest.raises(StorageFull):
        end(partition)
    assert (partition.log.log_end_offset, partition.last_stable_offset) == (1, 0)
    disk.disk.room_bytes = 1_000_000
    end(partition)
    assert partition.last_stable_offset == 2


# The last stable offset


def test_the_last_stable_offset_follows_the_flush_of_the_marker() -> None:
    partition = partition_on(new_disk())
    append(partition)
    write(partition, 0)
    sync(partition)
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 1)
    end(partition)
    assert partition.last_stable_offset == 1
    sync(partition)
    assert partition.last_stable_offset == partition.high_watermark == 3


def test_a_marker_holds_the_offset_until_the_replicas_have_it() -> None:
    leader, follower = leader_on(new_log()), follower_on(new_log())
    write(leader, 0)
    sync(leader)
    catch_up(leader, follower)
    assert (leader.high_watermark, leader.last_stable_offset) == (1, 0)
    end(leader, commit=False)
    sync(leader)
    assert (leader.high_watermark, leader.last_stable_offset) == (1, 0)
    catch_up(leader, follower)
    assert leader.last_stable_offset == follower.last_stable_offset == 2


def test_the_next_leader_knows_the_open_transactions() -> None:
    leader, follower = leader_on(new_log()), follower_on(new_log())
    write(leader, 0)
    write(leader, 0, producer=8)
    end(leader, producer=8, commit=False)
    sync(leader)
    catch_up(leader, follower)
    follower.resign()
    heir = made(follower.log, 2, None)
    sync(heir)
    assert (heir.high_watermark, heir.last_stable_offset) == (3, 0)
    assert rejection(end, heir, epoch=-1) is ErrorCode.INVALID_PRODUCER_EPOCH
    end(heir, coordinator=3)
    sync(heir)
    assert heir.last_stable_offset == 4
    assert [entry.producer_id for entry in heir.log.transactions.aborted.entries()] == [8]


def test_a_truncated_marker_leaves_the_transaction_open() -> None:
    old, follower = leader_on(new_log()), follower_on(new_log())
    write(old, 0)
    sync(old)
    catch_up(old, follower)
    end(old, commit=False)  # never replicated
    sync(old)
    checkpoint(old.log)
    follower.resign()
    leader = leader_on(follower.log, 2, high=1)
    end(leader, coordinator=2)
    sync(leader)
    old.resign()
    returned = follower_on(old.log, 2)
    catch_up(leader, returned)
    assert returned.log.log_end_offset == 2
    assert list(returned.log.transactions.aborted.entries()) == []
    assert returned.log.producers.to_bytes() == leader.log.producers.to_bytes()
    assert returned.last_stable_offset == returned.high_watermark == 2


def test_deleted_records_hold_nothing_below_the_log_start() -> None:
    partition = at_once()
    write(partition, 0, b"a", b"b")
    append(partition, b"c")
    partition.delete_before(Offset(2))
    assert partition.last_stable_offset == 2
    end(partition, commit=False)
    assert partition.last_stable_offset == 4


# Reading


def test_a_reader_of_committed_records_stops_at_the_open_transaction() -> None:
    partition = at_once()
    append(partition, b"a")
    write(partition, 0, b"b")
    append(partition, b"c")
    found = partition.read(Offset(0), 10_000, at_least_one=True, end=partition.last_stable_offset)
    assert isinstance(found, BatchesRead)
    assert found.next_offset == 1
    end(partition, commit=False)
    found = partition.read(Offset(0), 10_000, at_least_one=True, end=partition.last_stable_offset)
    assert isinstance(found, BatchesRead)
    aborted = partition.log.transactions.aborted.overlapping(Offset(0), found.next_offset)
    named = [(entry.producer_id, entry.first_offset) for entry in aborted]
    assert [record.value for record in delivered(bytes(found.data), list(named))] == [b"a", b"c"]


def test_a_lookup_of_committed_records_ends_at_the_last_stable_offset() -> None:
    partition = at_once()
    append(partition)
    write(partition, 0)
    assert partition.time_lookup().end_offset == 2
    assert partition.time_lookup(is_committed=True).end_offset == 1


def test_waiting_requests_are_answered_when_the_marker_is_committed() -> None:
    partition = partition_on(new_disk())
    write(partition, 0)
    answers: list[ProduceWait] = []
    woken: list[int] = []
    partition.fetch_waits[woken.append] = 5
    partition.high_watermark_waits.add(end(partition).end_offset, ProduceWait(1.0, answers.append), 0)
    assert (answers, woken) == ([], [])
    sync(partition)
    assert (len(answers), woken) == (1, [5])


def test_the_leader_epoch_is_in_the_marker() -> None:
    partition = at_once()
    write(partition, 0)
    end(partition)
    assert partition.log.epochs.epoch_at(Offset(1)) == LeaderEpoch(3)
