"""What no batch holds, a disk that is full, and clients that cannot be answered: each is its own affair."""

from dataclasses import dataclass

import pytest

from penstock.config.topic import CleanupPolicy
from penstock.coordinator.outcome import CommandOutcome, Now, Reply, StateRecord, WaitingRequest
from penstock.coordinator.shard import Phase, Shard
from penstock.errors import ApiError, ErrorCode, StorageFull
from penstock.limits import (
    MIB,
    RECORDS_CHECKED_MAX,
    STATE_BYTES_PER_FLUSH,
    STATE_RECORDS_PER_FLUSH,
)
from penstock.log.reading.cold_reading import BatchesRead
from penstock.protocol.batches import HEADER_BYTES, split_batches
from penstock.protocol.records import Record, iterate_records
from penstock.replication.partition import Partition
from penstock.types import Offset
from tests.unit.coordinator.test_shard import Client, Counters, TestShardHost, active, look, put
from tests.unit.log.log_support import new_disk
from tests.unit.replication.test_partition import partition_on, sync

LIMIT_BYTES = 100_000


def small_partition() -> Partition:
    return partition_on(new_disk(), max_message_bytes=LIMIT_BYTES)


def give(shard: Shard[Counters], outcome: CommandOutcome, client: Client) -> None:
    replies = (*outcome.replies, Reply(client.pending, "done"))
    shard.execute(lambda state, now: outcome._replace(replies=replies), client.pending)


def many(count: int, value_bytes: int = 100) -> list[StateRecord]:
    return [StateRecord(b"%06d" % number, bytes(value_bytes)) for number in range(count)]


def batches_in(partition: Partition) -> list[bytes]:
    batches, offset = [], Offset(0)
    while offset < partition.high_watermark:
        found = partition.read(offset, 10_000_000, at_least_one=True)
        assert isinstance(found, BatchesRead)
        data = bytes(found.data)
        batches += [data[start : start + header.size] for start, header in split_batches(data)]
        offset = found.next_offset
    return batches


def batch_sizes(partition: Partition) -> list[int]:
    return [len(batch) for batch in batches_in(partition)]


def records_in(partition: Partition) -> list[Record]:
    return [
        record for batch in batches_in(partition) for record in iterate_records(batch, limit_bytes=10_000_000)
    ]


def keys_in(partition: Partition) -> list[bytes]:
    return [record.key or b"" for record in records_in(partition)]


# Size


def test_a_command_too_large_for_a_batch_is_rejected_and_others_go_on() -> None:
    partition = small_partition()
    shard, host = active(partition)
    before, greedy, after, parked = Client(), Client(), Client(), Client()
    put(shard, b"a", b"1", before)
    shard.state.parked_clients.append(parked.pending)
    give(shard, CommandOutcome(many(1_000)), greedy)
    put(shard, b"b", b"2", after)
    sync(partition)
    sync(partition)
    assert greedy.replies == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert (before.replies, after.replies) == ([{}], [{b"a": b"1"}])
    assert (host.failures, parked.replies, shard.phase) == ([], [], Phase.ACTIVE)
    assert [size > LIMIT_BYTES for size in host.too_large_bytes] == [True]
    assert keys_in(partition) == [b"a", b"b"]


@pytest.mark.parametrize("value_bytes", [0, 1, 63, 64, 127, 128, 8_191, 8_192, 16_384, 50_000])
def test_the_size_that_is_checked_is_never_below_that_of_the_batch(value_bytes: int) -> None:
    outcome = CommandOutcome(many(max(1, 60_000 // (value_bytes + 30)), value_bytes))
    partition = partition_on(new_disk(), max_message_bytes=outcome.batch_bytes)
    shard, host = active(partition)
    client = Client()
    give(shard, outcome, client)
    sync(partition)
    assert (client.replies, host.failures, host.too_large_bytes) == (["done"], [], [])
    (size,) = batch_sizes(partition)
    assert size <= outcome.batch_bytes


def test_gathered_commands_are_written_in_batches_that_the_topic_takes() -> None:
    partition = small_partition()
    shard, host = active(partition)
    clients = [Client() for _ in range(40)]
    for client in clients:
        give(shard, CommandOutcome(many(100)), client)
    for _ in range(3):
        sync(partition)
    assert all(client.replies == ["done"] for client in clients)
    assert host.failures == []
    assert max(batch_sizes(partition)) <= LIMIT_BYTES


def test_of_very_many_commands_some_wait_for_the_flush_after_the_next() -> None:
    partition = partition_on(new_disk())
    shard, _ = active(partition)
    clients = [Client() for _ in range(1 + 4 * STATE_RECORDS_PER_FLUSH // 100)]
    for client in clients:
        give(shard, CommandOutcome(many(100, 1)), client)
    answered: list[int] = []
    while sum(answered) < len(clients):
        sync(partition)
        answered.append(sum(client.replies == ["done"] for client in clients) - sum(answered))
    assert answered == [1, *[STATE_RECORDS_PER_FLUSH // 100] * 4]


def test_large_commands_are_written_a_few_at_a_time() -> None:
    partition = partition_on(new_disk())
    shard, _ = active(partition)
    for _ in range(12):
        give(shard, CommandOutcome(many(10, 100_000)), Client())
    sync(partition)
    before = partition.log.log_end_offset
    assert (before - 10) * 100_000 <= STATE_BYTES_PER_FLUSH + 1_000_000


# Many records


def compacted() -> Partition:
    """A log that opens every batch, and takes only so many records in one."""
    partition = partition_on(new_disk())
    config = partition.config
    partition.reconfigure(
        config._replace(
            cleanup_policy=frozenset({CleanupPolicy.COMPACT}),
            max_message_bytes=16 * MIB,
            segment_bytes=16 * MIB,
        )
    )
    return partition


def test_a_command_of_too_many_records_is_rejected_to_its_client_alone() -> None:
    partition = compacted()
    shard, host = active(partition)
    greedy, other = Client(), Client()
    give(shard, CommandOutcome(many(RECORDS_CHECKED_MAX + 1, 1)), greedy)
    put(shard, b"a", b"1", other)
    sync(partition)
    assert (greedy.replies, other.replies) == ([ErrorCode.UNKNOWN_SERVER_ERROR], [{}])
    assert (host.failures, len(host.too_large_bytes), shard.phase) == ([], 1, Phase.ACTIVE)


def test_the_size_of_an_outcome_counts_the_batch_around_it() -> None:
    assert CommandOutcome(many(1, 0)).batch_bytes > HEADER_BYTES + len(b"000000")


# A full disk


class FullPartition:
    """A partition on a disk that can be full."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.is_full = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._partition, name)

    def append_now(self, payload: memoryview, now_ms: int) -> object:
        if self.is_full:
            raise StorageFull("no space left")
        return self._partition.append_now(payload, now_ms)


@dataclass
class Setup:
    partition: Partition
    disk: FullPartition
    shard: Shard[Counters]
    host: TestShardHost

    def reload(self) -> None:
        state = self.shard.begin_loading()
        for record in records_in(self.partition):
            state.replay(StateRecord(record.key or b"", record.value), record.timestamp)
        self.shard.end_loading()


@pytest.fixture
def full() -> Setup:
    """A shard that found no room, and was loaded again."""
    partition = partition_on(new_disk())
    disk = FullPartition(partition)
    shard, host = active(disk)  # type: ignore[arg-type]
    put(shard, b"a", b"1", Client())
    sync(partition)
    disk.is_full = True
    refused = Client()
    put(shard, b"b", b"2", refused)
    assert refused.replies == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    setup = Setup(partition, disk, shard, host)
    setup.reload()
    return setup


def test_a_full_disk_costs_the_state_once_however_many_commands_come(full: Setup) -> None:
    clients = [Client() for _ in range(10)]
    for client in clients:
        put(full.shard, b"c", b"3", client)
    assert all(client.replies == [ErrorCode.COORDINATOR_NOT_AVAILABLE] for client in clients)
    assert (len(full.host.failures), full.shard.phase) == (1, Phase.ACTIVE)


def test_what_there_was_no_room_for_is_known() -> None:
    disk = FullPartition(partition_on(new_disk()))
    shard, _ = active(disk)  # type: ignore[arg-type]
    disk.is_full = True
    give(shard, CommandOutcome(many(10, 1_000)), Client())
    assert 10_000 < shard.needed_bytes < 11_000


def test_who_only_reads_is_answered_on_a_full_disk(full: Setup) -> None:
    reader = Client()
    look(full.shard, reader)
    assert reader.replies == [{b"a": b"1"}]


def test_time_stands_still_while_the_disk_is_full_and_goes_on_afterwards(full: Setup) -> None:
    full.shard.state.alarm = 1.0
    full.shard.tick()
    assert full.shard.state.alarm == 1.0
    full.disk.is_full = False
    full.shard.resume_writes()
    sync(full.partition)
    assert full.shard.state.alarm is None
    assert keys_in(full.partition) == [b"a", b"expired"]


def test_commands_are_taken_again_when_there_is_room(full: Setup) -> None:
    full.disk.is_full = False
    full.shard.resume_writes()
    client = Client()
    put(full.shard, b"d", b"4", client)
    sync(full.partition)
    sync(full.partition)
    assert client.replies == [{b"a": b"1", b"expired": b"1"}]


# Answers


def broken_client(times: int) -> tuple[Client, list[bool]]:
    """A client whose answer fails so many times; and whether it was given up."""
    client = Client()
    given_up: list[bool] = []
    left = [times]

    def finish(reply: object) -> None:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("this cannot be encoded")
        client.replies.append(reply)

    client.pending = WaitingRequest(finish, lambda code, detail: code, lambda: given_up.append(True))
    return client, given_up


def test_an_answer_that_cannot_be_given_keeps_nobody_else_from_theirs() -> None:
    partition = partition_on(new_disk())
    shard, host = active(partition)
    first, behind, later = Client(), Client(), Client()
    append_failed, given_up = broken_client(times=1)
    put(shard, b"0", b"0", first)
    look(shard, append_failed)
    put(shard, b"1", b"1", behind)
    sync(partition)
    sync(partition)
    put(shard, b"2", b"2", later)
    sync(partition)
    assert all(len(client.replies) == 1 for client in (first, behind, later))
    assert append_failed.replies == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert [str(reason) for reason in host.unanswered_because] == ["this cannot be encoded"]
    assert (given_up, shard.phase) == ([], Phase.ACTIVE)


def test_a_client_that_cannot_even_be_refused_is_given_up() -> None:
    partition = partition_on(new_disk())
    shard, host = active(partition)
    append_failed, given_up = broken_client(times=2)
    behind = Client()
    put(shard, b"0", b"0", append_failed)
    put(shard, b"1", b"1", behind)
    sync(partition)
    sync(partition)
    assert (append_failed.replies, given_up) == ([], [True])
    assert len(behind.replies) == 1
    assert len(host.unanswered_because) == 2


def test_when_all_are_refused_one_that_cannot_be_keeps_nobody_from_knowing() -> None:
    partition = partition_on(new_disk())
    shard, host = active(partition)
    append_failed, given_up = broken_client(times=2)
    other = Client()
    put(shard, b"0", b"0", append_failed)
    put(shard, b"1", b"1", other)
    partition.stop_writes("the disk lied")
    assert other.replies == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert (given_up, len(host.failures)) == ([True], 1)


def test_a_refusal_by_a_command_is_no_failure() -> None:
    shard, host = active(partition_on(new_disk()))
    client = Client()

    def reject(state: Counters, now: Now) -> CommandOutcome:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)

    shard.execute(reject, client.pending)
    assert (client.replies, host.unanswered_because) == ([ErrorCode.UNKNOWN_MEMBER_ID], [])


def test_while_too_few_replicas_are_in_sync_writers_are_refused_at_once() -> None:
    """The records would never be safe, and nobody would be answered."""
    partition = partition_on(new_disk())
    shard, host = active(partition)
    put(shard, b"a", b"1", Client())
    sync(partition)
    partition.min_isr_error = ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
    writer, reader = Client(), Client()
    put(shard, b"b", b"2", writer)
    look(shard, reader)
    assert writer.replies == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert reader.replies == [{b"a": b"1"}]
    shard.state.alarm = 1.0
    shard.tick()
    assert shard.state.alarm == 1.0, "time stands still"
    assert host.dues[-1] == host.now().monotonic + 1, "it looks again"
    partition.min_isr_error = None
    shard.tick()
    sync(partition)
    put(shard, b"c", b"3", writer)
    sync(partition)
    assert (host.failures, keys_in(partition)) == ([], [b"a", b"expired", b"c"])
