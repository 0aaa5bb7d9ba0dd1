"""A shard of the transaction coordinator on a simulated disk, with writes that wait, fail and are lost.

Nothing is durable before `sync`. `fail_over` gives the log to a new coordinator: what was durable, and on
request also what was written and not yet durable, as a follower may have it.
"""

from collections.abc import Callable, Iterator

from penstock.coordinator.outcome import CommandOutcome, Now, StateRecord, WaitingRequest
from penstock.coordinator.shard import Phase, Shard
from penstock.errors import ApiError, ErrorCode
from penstock.log.reading.cold_reading import BatchesRead
from penstock.protocol.batches import split_batches
from penstock.protocol.records import Record, build_batch, iterate_records
from penstock.replication.partition import Partition
from penstock.transactions.ending import EndTransactionRequest
from penstock.transactions.initialise import InitProducerRequest
from penstock.transactions.markers import TransactionMarkers
from penstock.transactions.partitions import PartitionsRequest
from penstock.transactions.transaction import ReservedProducerId
from penstock.transactions.transaction_context import TransactionConfig, TransactionContext
from penstock.transactions.transaction_state_machine import TransactionStateMachine
from penstock.types import NO_OFFSET, Offset, ProducerId, TopicPartition
from tests.unit.log.log_support import new_disk
from tests.unit.replication.test_partition import partition_on, sync
from tests.unit.transactions.transactions_support import FIRST_ID, START

Request = InitProducerRequest | PartitionsRequest | EndTransactionRequest
FIRST_OFFSET = Offset(0)
_BYTES_MAX = 10_000_000
_OFFSET_BYTES = 8


class ShardOfTransactions:
    def __init__(self, config: TransactionConfig | None = None) -> None:
        self.config = config or TransactionConfig()
        self.sent: list[TransactionMarkers] = []
        """Markers, in the order in which the coordinators sent them."""
        self.on_sent: Callable[[TransactionMarkers], None] = lambda markers: None
        self.next_id = FIRST_ID
        self.coordinator_epoch = 0
        self.clock = START
        self.partition: Partition
        self.shard: Shard[TransactionStateMachine]
        self._start(b"")

    # ShardHost

    def now(self) -> Now:
        return self.clock

    def deadline_changed(self, next_deadline: float | None) -> None:
        pass

    def append_failed(self, reason: Exception) -> None:
        pass

    def too_large(self, size_bytes: int, records: int, limit_bytes: int) -> None:
        raise AssertionError(f"{records} records with {size_bytes} bytes")

    def unanswered(self, reason: Exception) -> None:
        raise AssertionError("a reply was not delivered") from reason

    # The coordinator

    def _start(self, log: bytes) -> None:
        self.partition = partition_on(new_disk())
        for at, header in split_batches(log):
            self.partition.append_now(writable_view(log[at : at + header.size]), self.clock.wall_ms)
        if log:
            sync(self.partition)
        self.coordinator_epoch += 1
        self.shard = Shard(self.partition, self._new_state, self)
        self.load()

    def _new_state(self) -> TransactionStateMachine:
        context = TransactionContext(lambda: self.config, self.coordinator_epoch, self._send)
        return TransactionStateMachine(context)

    def _send(self, markers: TransactionMarkers) -> None:
        self.sent.append(markers)
        self.on_sent(markers)

    def load(self) -> None:
        state = self.shard.begin_loading()
        for record in self.durable():
            state.replay(record, self.clock.wall_ms)
        self.shard.end_loading()

    def fail_over(self, keeps_all: bool = False) -> None:
        """The coordinator dies. Requests that wait are rejected before the next one begins."""
        end = self.partition.log.log_end_offset if keeps_all else self.partition.high_watermark
        log = self._read(FIRST_OFFSET, end)
        self.shard.end()
        self._start(log)

    def sync(self) -> None:
        """Make everything durable, also what accumulated meanwhile, and so release all replies."""
        for _ in range(3):
            if self.partition.high_watermark < self.partition.log.log_end_offset:
                sync(self.partition)

    def advance(self, ms: int) -> None:
        self.clock = Now(self.clock.wall_ms + ms, self.clock.monotonic + ms / 1000)
        self.shard.tick()

    # The log

    def _read(self, start: Offset, end: Offset) -> bytes:
        data, offset = b"", start
        while offset < end:  # a read ends at the end of a segment
            found = self.partition.log.read(offset, end, _BYTES_MAX, at_least_one=True)
            assert isinstance(found, BatchesRead)
            data, offset = data + bytes(found.data), found.next_offset
        return data

    def durable(self, start: Offset = FIRST_OFFSET) -> Iterator[StateRecord]:
        data = self._read(start, self.partition.high_watermark)
        for at, header in split_batches(data):
            for record in iterate_records(data[at : at + header.size], limit_bytes=_BYTES_MAX):
                yield StateRecord(record.key or b"", record.value)

    def append(self, record: StateRecord) -> None:
        """Put a record into the log that the coordinator has not made. The next one finds it."""
        batch = build_batch([Record(NO_OFFSET, self.clock.wall_ms, record.key, record.value)])
        self.partition.append_now(writable_view(batch), self.clock.wall_ms)
        self.sync()

    # Failures

    def break_writes(self) -> None:
        """The next write fails, and nothing of it remains."""
        self.partition.read_only_error = ApiError(ErrorCode.KAFKA_STORAGE_ERROR)

    def repair(self) -> None:
        """Writes work again. A shard that broke meanwhile is loaded."""
        self.partition.read_only_error = None
        if self.shard.phase is Phase.BROKEN:
            self.load()

    def set_writable(self, is_writable: bool) -> None:
        error = ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        self.partition.min_isr_error = None if is_writable else error

    # Clients

    def new_id(self) -> ReservedProducerId:
        self.next_id += 1
        return ReservedProducerId(ProducerId(self.next_id - 1))

    def ask(self, request: Request, on_reply: Callable[[object], None]) -> None:
        """`on_reply` gets a message, or the error code of a rejection, when the reply is released."""
        pending = WaitingRequest(on_reply, lambda code, detail: code)
        new_id = self.new_id()

        def command(state: TransactionStateMachine, now: Now) -> CommandOutcome:
            if isinstance(request, InitProducerRequest):
                return state.init_producer(request, new_id, pending, now)
            if isinstance(request, PartitionsRequest):
                return state.add_partitions(request, pending, now)
            return state.end_transaction(request, new_id, pending, now)

        self.shard.execute(command, pending)

    def acknowledge(self, markers: TransactionMarkers, partitions: list[TopicPartition]) -> None:
        ignored = WaitingRequest(lambda reply: None, lambda code, detail: None)
        self.shard.execute(lambda state, now: state.markers_written(markers, partitions, now), ignored)


def writable_view(batch: bytes) -> memoryview:
    """The batch as a client sends it, without an offset, in memory that the append may write to."""
    return memoryview(bytearray(bytes(_OFFSET_BYTES) + batch[_OFFSET_BYTES:]))
