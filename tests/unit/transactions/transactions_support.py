"""One shard of the transaction coordinator, a log that takes what it decides, and clients that ask it."""

from collections.abc import Callable, Iterable, Sequence

from penstock.coordinator.outcome import CommandOutcome, Now, StateRecord, WaitingRequest
from penstock.errors import ApiError, ErrorCode
from penstock.limits import MINUTE_MS
from penstock.transactions.ending import EndTransactionRequest
from penstock.transactions.initialise import InitProducerRequest
from penstock.transactions.markers import TransactionMarkers
from penstock.transactions.partitions import PartitionsRequest
from penstock.transactions.transaction import (
    NEW_EPOCH_VERSION,
    SAME_EPOCH_VERSION,
    ProducerIdentity,
    ReservedProducerId,
    Transaction,
    TransactionStatus,
)
from penstock.transactions.transaction_context import (
    TRANSACTION_LIMITS,
    TransactionConfig,
    TransactionContext,
    TransactionLimits,
)
from penstock.transactions.transaction_state_machine import TransactionStateMachine
from penstock.types import ProducerId, TopicPartition

START = Now(1_700_000_000_000, 1_000.0)
TIMEOUT_MS = 1 * MINUTE_MS
ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
OFFSETS_7 = TopicPartition("__consumer_offsets", 7)
FIRST_ID = 1_000
TV1, TV2 = SAME_EPOCH_VERSION, NEW_EPOCH_VERSION

Command = Callable[[TransactionStateMachine, WaitingRequest, Now], CommandOutcome]


def identity(producer_id: int, epoch: int) -> ProducerIdentity:
    return ProducerIdentity(ProducerId(producer_id), epoch)


class TransactionsHarness:
    def __init__(
        self, limits: TransactionLimits = TRANSACTION_LIMITS, config: TransactionConfig | None = None
    ) -> None:
        self.limits = limits
        self.config = config or TransactionConfig()
        self.log: list[StateRecord] = []
        self.sent: list[TransactionMarkers] = []
        """Markers, in the order in which the coordinator sent them."""
        self.now = START
        self.coordinator_epoch = 0
        self.next_id = FIRST_ID
        self.machine = self.load()

    # The coordinator

    def load(self, records: int | None = None) -> TransactionStateMachine:
        """A new coordinator takes over, with the whole log or with its first records."""
        del self.log[len(self.log) if records is None else records :]
        self.coordinator_epoch += 1
        context = TransactionContext(
            lambda: self.config, self.coordinator_epoch, self.sent.append, self.limits
        )
        self.machine = TransactionStateMachine(context)
        for record in self.log:
            self.machine.replay(record, self.now.wall_ms)
        self.take(self.machine.on_loaded(self.now))
        return self.machine

    def take(self, outcomes: Iterable[CommandOutcome]) -> None:
        for outcome in outcomes:
            for record in outcome.records:
                self.machine.replay(record, self.now.wall_ms)
                self.log.append(record)
            for pending, content in outcome.replies:
                pending.complete(content)

    def advance(self, ms: int, wall_jump_ms: int = 0) -> None:
        """Let time pass, and the timers that are then due expire."""
        self.now = Now(self.now.wall_ms + ms + wall_jump_ms, self.now.monotonic + ms / 1000)
        # A little later, because sums of seconds are not exact.
        self.take(self.machine.expire(self.now._replace(monotonic=self.now.monotonic + 1e-6)))

    def ask(self, command: Command, is_writable: bool = True) -> object:
        """The reply to a command: a message, or the error code of a rejection."""
        replies: list[object] = []
        pending = WaitingRequest(replies.append, lambda code, detail: code)
        machine = self.machine if is_writable else self.machine.read_only_view()
        try:
            outcome = command(machine, pending, self.now)
        except ApiError as rejection:
            return rejection.code
        assert is_writable or not outcome.records
        self.take([outcome])
        (reply,) = replies
        return reply

    def new_id(self) -> ReservedProducerId:
        self.next_id += 1
        return ReservedProducerId(ProducerId(self.next_id - 1))

    def state(self, transactional_id: str = "t") -> Transaction:
        return self.machine.store.transactions[transactional_id]

    def status(self, transactional_id: str = "t") -> TransactionStatus:
        return self.state(transactional_id).status

    # Clients

    def init(
        self,
        transactional_id: str = "t",
        expected: ProducerIdentity | None = None,
        timeout_ms: int = TIMEOUT_MS,
        is_writable: bool = True,
    ) -> ProducerIdentity | ErrorCode:
        request = InitProducerRequest(transactional_id, timeout_ms, expected)
        new_id = self.new_id()
        return answered(
            self.ask(
                lambda machine, pending, now: machine.init_producer(request, new_id, pending, now),
                is_writable,
            )
        )

    def new_producer(self, transactional_id: str = "t", timeout_ms: int = TIMEOUT_MS) -> ProducerIdentity:
        found = self.init(transactional_id, timeout_ms=timeout_ms)
        assert isinstance(found, ProducerIdentity)
        return found

    def add(
        self,
        producer: ProducerIdentity,
        *partitions: TopicPartition,
        version: int = TV1,
        transactional_id: str = "t",
        is_writable: bool = True,
    ) -> ErrorCode:
        request = PartitionsRequest(transactional_id, producer, partitions or (ORDERS_0,), version)
        reply = self.ask(
            lambda machine, pending, now: machine.add_partitions(request, pending, now), is_writable
        )
        return reply if isinstance(reply, ErrorCode) else ErrorCode.NONE

    def verify(self, producer: ProducerIdentity, *partitions: TopicPartition) -> object:
        """Codes by partition, or the code of a rejection."""
        request = PartitionsRequest("t", producer, partitions)
        reply = self.ask(lambda machine, pending, now: machine.verify_partitions(request, pending))
        if isinstance(reply, ErrorCode):
            return reply
        return {
            TopicPartition(of_topic.name, each.partition_index): ErrorCode(each.partition_error_code)
            for of_topic in reply.topic_results  # type: ignore[attr-defined]
            for each in of_topic.results_by_partition
        }

    def end(
        self,
        producer: ProducerIdentity,
        is_commit: bool = True,
        version: int = TV1,
        transactional_id: str = "t",
        is_writable: bool = True,
    ) -> ProducerIdentity | ErrorCode:
        """The identity for the next transaction, or the code of a rejection. With TV1: the same identity."""
        request = EndTransactionRequest(transactional_id, producer, is_commit, version)
        new_id = self.new_id()
        reply = self.ask(
            lambda machine, pending, now: machine.end_transaction(request, new_id, pending, now), is_writable
        )
        found = answered(reply)
        return producer if found == identity(-1, -1) else found

    def acknowledge(
        self,
        markers: TransactionMarkers,
        partitions: Sequence[TopicPartition] | None = None,
        is_writable: bool = True,
    ) -> None:
        machine = self.machine if is_writable else self.machine.read_only_view()
        written = markers.partitions if partitions is None else partitions
        outcome = machine.markers_written(markers, written, self.now)
        assert is_writable or not outcome.records
        self.take([outcome])

    def transact(
        self, producer: ProducerIdentity, is_commit: bool = True, version: int = TV1
    ) -> ProducerIdentity:
        """A whole transaction with one partition. Returns the identity for the next one."""
        assert self.add(producer, ORDERS_0, version=version) is ErrorCode.NONE
        after = self.end(producer, is_commit, version)
        assert isinstance(after, ProducerIdentity)
        self.acknowledge(self.sent[-1])
        return after


def answered(reply: object) -> ProducerIdentity | ErrorCode:
    if isinstance(reply, ErrorCode):
        return reply
    return identity(reply.producer_id, reply.producer_epoch)  # type: ignore[attr-defined]
