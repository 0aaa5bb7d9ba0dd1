"""When a command's reply leaves, and what becomes of it when the disk does not cooperate."""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Self

from penstock.config.topic import FlushPolicy
from penstock.coordinator.outcome import CommandOutcome, Now, Reply, StateRecord, WaitingRequest
from penstock.coordinator.shard import Phase, Shard
from penstock.errors import ApiError, ErrorCode
from penstock.protocol.records import iterate_records
from penstock.replication.partition import Partition
from penstock.types import Offset
from tests.unit.log.log_support import new_disk
from tests.unit.replication.test_partition import partition_on, read, sync


class Counters:
    """A state machine to test with: numbers by name."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.parked_clients: list[WaitingRequest] = []
        self.alarm: float | None = None
        self.takes_writes = True

    def read_only_view(self) -> Self:
        view = copy(self)
        view.takes_writes = False
        return view

    def unreadable(self) -> Sequence[str]:
        return ()

    def replay(self, record: StateRecord, timestamp_ms: int) -> None:
        if record.value is None:
            self.values.pop(record.key, None)
        else:
            self.values[record.key] = record.value

    def on_loaded(self, now: Now) -> Iterable[CommandOutcome]:
        return ()

    def next_deadline(self) -> float | None:
        return self.alarm

    def expire(self, now: Now) -> Iterable[CommandOutcome]:
        self.alarm = None
        return [CommandOutcome([StateRecord(b"expired", b"1")])]

    def parked(self) -> Iterable[WaitingRequest]:
        return self.parked_clients


class TestShardHost:
    __test__ = False

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.unanswered_because: list[Exception] = []
        self.too_large_bytes: list[int] = []
        self.dues: list[float | None] = []

    def now(self) -> Now:
        return Now(1_700_000_000_000, 5.0)

    def deadline_changed(self, next_deadline: float | None) -> None:
        self.dues.append(next_deadline)

    def append_failed(self, reason: Exception) -> None:
        self.failures.append(reason)

    def too_large(self, size_bytes: int, records: int, limit_bytes: int) -> None:
        self.too_large_bytes.append(size_bytes)

    def unanswered(self, reason: Exception) -> None:
        self.unanswered_because.append(reason)


class Client:
    def __init__(self) -> None:
        self.replies: list[object] = []
        self.pending = WaitingRequest(self.replies.append, lambda code, detail: code)


def active(partition: Partition) -> tuple[Shard[Counters], TestShardHost]:
    host = TestShardHost()
    shard = Shard(partition, Counters, host)
    shard.begin_loading()
    shard.end_loading()
    return shard, host


def put(shard: Shard[Counters], key: bytes, value: bytes, client: Client) -> None:
    def command(state: Counters, now: Now) -> CommandOutcome:
        if not state.takes_writes:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        seen = dict(state.values)
        return CommandOutcome([StateRecord(key, value)], [Reply(client.pending, seen)])

    shard.execute(command, client.pending)


def look(shard: Shard[Counters], client: Client) -> None:
    shard.execute(
        lambda state, now: CommandOutcome(replies=[Reply(client.pending, dict(state.values))]), client.pending
    )


def test_a_reply_waits_until_its_records_are_on_disk() -> None:
    partition = partition_on(new_disk())
    shard, _ = active(partition)
    client = Client()
    put(shard, b"a", b"1", client)
    assert client.replies == []
    sync(partition)
    assert client.replies == [{}]


def test_the_next_command_builds_on_records_that_are_not_yet_safe() -> None:
    partition = partition_on(new_disk())
    shard, _ = active(partition)
    first, second = Client(), Client()
    put(shard, b"a", b"1", first)
    put(shard, b"b", b"2", second)
    sync(partition)
    assert (first.replies, second.replies) == ([{}], [])
    sync(partition)
    assert second.replies == [{b"a": b"1"}]


def test_commands_that_arrive_during_a_flush_become_one_batch() -> None:
    partition = partition_on(new_disk())
    shard, _ = active(partition)
    clients = [Client() for _ in range(10)]
    for number, client in enumerate(clients):
        put(shard, b"%d" % number, b"x", client)
    sync(partition)
    sync(partition)
    assert all(client.replies for client in clients)
    second_batch = bytes(read(partition, 1).data)
    assert len(list(iterate_records(second_batch, limit_bytes=10_000))) == 9


def test_a_read_does_not_reveal_what_is_not_safe() -> None:
    partition = partition_on(new_disk())
    shard, _ = active(partition)
    writer, reader = Client(), Client()
    put(shard, b"a", b"1", writer)
    look(shard, reader)
    assert reader.replies == []
    sync(partition)
    assert reader.replies == [{b"a": b"1"}]


def test_a_read_of_what_is_safe_is_answered_at_once() -> None:
    partition = partition_on(new_disk())
    shard, _ = active(partition)
    reader = Client()
    look(shard, reader)
    assert reader.replies == [{}]


def test_a_refusal_waits_like_any_reply_for_what_it_is_based_on() -> None:
    partition = partition_on(new_disk())
    shard, _ = active(partition)
    writer, refused = Client(), Client()

    def reject(state: Counters, now: Now) -> CommandOutcome:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)

    put(shard, b"a", b"1", writer)
    shard.execute(reject, refused.pending)
    assert refused.replies == []
    sync(partition)
    assert refused.replies == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_while_it_loads_a_client_is_told_so() -> None:
    host = TestShardHost()
    shard = Shard(partition_on(new_disk()), Counters, host)
    client = Client()
    look(shard, client)
    assert client.replies == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]


def test_a_failed_append_refuses_everybody_and_throws_the_state_away() -> None:
    disk = new_disk()
    partition = partition_on(disk)
    shard, host = active(partition)
    written, gathered, parked, later = Client(), Client(), Client(), Client()
    put(shard, b"a", b"1", written)
    put(shard, b"b", b"1", gathered)

    def park(state: Counters, now: Now) -> CommandOutcome:
        state.parked_clients.append(parked.pending)
        return CommandOutcome()

    shard.execute(park, parked.pending)
    partition.stop_writes("the disk lied")
    assert [client.replies for client in (written, gathered, parked)] == [
        [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    ] * 3
    assert len(host.failures) == 1
    assert shard.phase is Phase.BROKEN
    look(shard, later)
    assert later.replies == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]


def test_after_a_failure_the_state_is_what_the_log_says() -> None:
    partition = partition_on(new_disk())
    shard, _ = active(partition)
    kept, lost = Client(), Client()
    put(shard, b"a", b"1", kept)
    sync(partition)
    partition.read_only_error = ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
    put(shard, b"b", b"2", lost)
    assert lost.replies == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    partition.read_only_error = None
    state = shard.begin_loading()
    for record in iterate_records(bytes(read(partition, 0).data), limit_bytes=10_000):
        state.replay(StateRecord(record.key or b"", record.value), record.timestamp)
    shard.end_loading()
    reader = Client()
    look(shard, reader)
    assert reader.replies == [{b"a": b"1"}]


def test_an_old_wait_does_not_answer_for_a_new_state() -> None:
    partition = partition_on(new_disk())
    shard, _ = active(partition)
    old, new = Client(), Client()
    put(shard, b"a", b"1", old)
    shard._discard(Phase.BROKEN, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    shard.begin_loading()
    shard.end_loading()
    put(shard, b"b", b"2", new)
    partition.high_watermark_waits.release(Offset(1))
    assert new.replies == []
    sync(partition)
    assert new.replies == [{}]


def test_an_ended_shard_sends_clients_elsewhere() -> None:
    partition = partition_on(new_disk())
    shard, _ = active(partition)
    waiting, later = Client(), Client()
    put(shard, b"a", b"1", waiting)
    shard.end()
    look(shard, later)
    assert (waiting.replies, later.replies) == ([ErrorCode.NOT_COORDINATOR], [ErrorCode.NOT_COORDINATOR])


def test_time_brings_records_like_a_command_does() -> None:
    partition = partition_on(new_disk())
    shard, host = active(partition)
    client = Client()

    def set_alarm(state: Counters, now: Now) -> CommandOutcome:
        state.alarm = 9.0
        return CommandOutcome(replies=[Reply(client.pending, None)])

    shard.execute(set_alarm, client.pending)
    assert host.dues == [9.0]
    shard.tick()
    sync(partition)
    assert partition.high_watermark == 1
    assert host.dues == [9.0]


def test_with_no_flush_before_the_reply_it_leaves_at_once() -> None:
    partition = partition_on(new_disk(), flush_policy=FlushPolicy.OS)
    shard, _ = active(partition)
    client = Client()
    put(shard, b"a", b"1", client)
    assert client.replies == [{}]
