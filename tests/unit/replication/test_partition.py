"""What a partition shows, acknowledges and refuses."""

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.topic import FlushPolicy, TimestampType
from penstock.errors import ApiError, ErrorCode, StorageFull
from penstock.log.partition_log import PartitionLog
from penstock.log.reading.cold_reading import BatchesRead
from penstock.protocol.batches import parse_header
from penstock.replication.partition import Appended, Partition, log_settings
from penstock.replication.produce_waits import ProduceWait
from penstock.sim.disk import Mount
from penstock.types import LeaderEpoch, Offset, TopicId, TopicPartition
from tests.unit.log.log_support import FOLDER, NOW_MS, batch_of, new_disk

DEFAULTS = BrokerConfig.of().topic_defaults


def partition_on(disk: Mount, **changes: object) -> Partition:
    config = DEFAULTS._replace(**changes)  # type: ignore[arg-type]
    log = PartitionLog(disk, FOLDER, log_settings(config))
    return Partition(
        TopicPartition("orders", 0), TopicId(bytes(16)), LeaderEpoch(3), log, config, lambda partition: None
    )


def append(partition: Partition, *values: bytes, **options: object) -> Appended:
    return partition.append_now(memoryview(bytearray(batch_of(values or (b"x",), (), **options))), NOW_MS)


def sync(partition: Partition) -> None:
    plan = partition.log.begin_flush()
    partition.log.disk.sync(plan.files, plan.folders)
    partition.flushed(plan)


def read(partition: Partition, offset: int) -> BatchesRead:
    found = partition.read(Offset(offset), 10_000, at_least_one=True)
    assert isinstance(found, BatchesRead)
    return found


def refusal(call: object, *arguments: object) -> ErrorCode:
    with pytest.raises(ApiError) as raised:
        call(*arguments)  # type: ignore[operator]
    return raised.value.code


def test_an_unflushed_record_is_neither_shown_nor_acknowledged() -> None:
    partition = partition_on(new_disk())
    answers: list[ProduceWait] = []
    appended = append(partition, b"a", b"b")
    partition.high_watermark_waits.add(appended.end_offset, ProduceWait(1.0, answers.append), 0)
    assert (partition.high_watermark, bytes(read(partition, 0).data), answers) == (0, b"", [])
    sync(partition)
    assert partition.high_watermark == 2
    assert len(answers) == 1
    assert read(partition, 0).next_offset == 2


@pytest.mark.parametrize("policy", [FlushPolicy.OS, FlushPolicy.INTERVAL])
def test_other_policies_show_a_record_at_once(policy: FlushPolicy) -> None:
    partition = partition_on(new_disk(), flush_policy=policy)
    append(partition)
    assert partition.high_watermark == 1


def test_a_stricter_policy_does_not_move_the_high_watermark_back() -> None:
    partition = partition_on(new_disk(), flush_policy=FlushPolicy.OS)
    append(partition)
    partition.reconfigure(DEFAULTS)
    partition.advance()
    assert partition.high_watermark == 1
    append(partition)
    assert partition.high_watermark == 1


@pytest.mark.parametrize("policy", [FlushPolicy.OS, FlushPolicy.INTERVAL])
def test_with_a_stricter_policy_what_was_acknowledged_is_flushed_at_once(policy: FlushPolicy) -> None:
    dirty: list[Partition] = []
    log = PartitionLog(new_disk(), FOLDER, log_settings(DEFAULTS))
    config = DEFAULTS._replace(flush_policy=policy)
    name = TopicPartition("orders", 0)
    partition = Partition(name, TopicId(bytes(16)), LeaderEpoch(3), log, config, dirty.append)
    append(partition)
    dirty.clear()
    partition.reconfigure(config._replace(segment_bytes=5_000))
    assert dirty == []
    partition.reconfigure(DEFAULTS)
    assert dirty == [partition]
    sync(partition)
    partition.reconfigure(config)
    partition.reconfigure(DEFAULTS)
    assert dirty == [partition], "there is nothing to flush"


def test_a_repeated_batch_gets_its_first_offset_and_is_stored_once() -> None:
    partition = partition_on(new_disk())
    numbered = {"producer_id": 9, "producer_epoch": 0}
    append(partition, b"a", b"b", **numbered, base_sequence=0)
    first = append(partition, b"c", **numbered, base_sequence=2)
    again = append(partition, b"c", **numbered, base_sequence=2)
    assert (again.base_offset, again.end_offset) == (first.base_offset, first.end_offset) == (2, 3)
    assert partition.log.log_end_offset == 3


def test_a_full_disk_changes_nothing_and_is_over_when_there_is_room() -> None:
    disk = new_disk()
    partition = partition_on(disk)
    numbered = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    disk.disk.room_bytes = 10
    with pytest.raises(StorageFull):
        append(partition, **numbered)
    assert (partition.log.log_end_offset, len(partition.log.producers)) == (0, 0)
    disk.disk.room_bytes = 10_000
    assert append(partition, **numbered).base_offset == 0


def test_after_a_failed_sync_nothing_is_written_and_what_was_safe_is_read() -> None:
    partition = partition_on(new_disk())
    append(partition, b"safe")
    sync(partition)
    answers: list[ProduceWait] = []
    appended = append(partition, b"unsure")
    partition.high_watermark_waits.add(appended.end_offset, ProduceWait(1.0, answers.append), 0)
    partition.stop_writes("the disk broke")
    sync(partition)  # one that was under way
    assert partition.high_watermark == 1
    assert answers[0].errors == {0: ErrorCode.KAFKA_STORAGE_ERROR}
    assert refusal(append, partition) is ErrorCode.KAFKA_STORAGE_ERROR
    assert read(partition, 0).next_offset == 1


def test_a_damaged_partition_refuses_everything_and_wakes_who_waits() -> None:
    partition = partition_on(new_disk())
    woken: list[int] = []
    partition.fetch_waits[woken.append] = 7
    partition.go_offline("damaged")
    assert woken == [7]
    assert refusal(append, partition) is ErrorCode.KAFKA_STORAGE_ERROR
    assert refusal(read, partition, 0) is ErrorCode.KAFKA_STORAGE_ERROR


def test_offsets_outside_the_log_are_out_of_range() -> None:
    partition = partition_on(new_disk())
    append(partition, b"a", b"b", b"c")
    sync(partition)
    partition.delete_before(Offset(1))
    for offset in (-1, 0, 4):
        assert refusal(read, partition, offset) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert bytes(read(partition, 3).data) == b""
    assert refusal(partition.delete_before, Offset(4)) is ErrorCode.OFFSET_OUT_OF_RANGE
    partition.delete_before(Offset(0))
    assert partition.log.log_start_offset == 1


@pytest.mark.parametrize(
    ("epoch", "code"), [(2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_a_client_with_another_leader_epoch_is_fenced(epoch: int, code: ErrorCode) -> None:
    partition = partition_on(new_disk())
    assert refusal(partition.check_epoch, epoch) is code
    partition.check_epoch(3)
    partition.check_epoch(-1)


def test_the_current_epoch_ends_where_the_log_does() -> None:
    partition = partition_on(new_disk())
    append(partition)
    assert partition.end_of_epoch(LeaderEpoch(3)) == (3, 1)
    assert partition.end_of_epoch(LeaderEpoch(1)) == (-1, -1)


def test_the_brokers_time_replaces_the_records_own() -> None:
    partition = partition_on(
        new_disk(), timestamp_type=TimestampType.LOG_APPEND_TIME, flush_policy=FlushPolicy.OS
    )
    appended = partition.append_now(memoryview(bytearray(batch_of([b"x"], [5]))), NOW_MS)
    header = parse_header(read(partition, 0).data)
    assert (appended.log_append_time_ms, header.max_timestamp) == (NOW_MS, NOW_MS)
    assert header.has_log_append_time


@pytest.mark.parametrize(("given", "obeyed"), [(0, 0), (4_096, 4_096), (65_536, 65_536), (2**31 - 1, 65_536)])
def test_no_setting_makes_an_index_so_sparse_that_a_read_walks_far(given: int, obeyed: int) -> None:
    assert log_settings(DEFAULTS._replace(index_interval_bytes=given)).index_interval_bytes == obeyed
