"""The state machine of the transaction coordinator: all transactional ids of one shard.

It finds the state of a request's id, lets the pure functions of `initialise.py`, `partitions.py` and
`ending.py` decide the next state, and turns that into records, replies, markers and timers.

Rule 1: everything that can reject a request comes before the first change of this object.
Rule 2: a reply depends on the records of its command, as the shard guarantees. So no client learns of an
        epoch, a partition or a result that a new coordinator would not find in the log.
Rule 3: what is not in the log is only what may be lost: timers, and which markers were acknowledged.
        `on_loaded` makes both anew.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from typing import Self

from penstock.coordinator.outcome import (
    EMPTY_OUTCOME,
    CommandOutcome,
    Now,
    Reply,
    StateRecord,
    WaitingRequest,
    not_writable,
)
from penstock.errors import ApiError, ErrorCode
from penstock.limits import TIMERS_PER_CHUNK
from penstock.protocol.messages import describe_transactions, list_transactions
from penstock.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from penstock.protocol.messages.end_txn import EndTxnResponse
from penstock.protocol.messages.init_producer_id import InitProducerIdResponse
from penstock.transactions.ending import EndTransactionRequest, complete, end, fence
from penstock.transactions.initialise import InitProducerRequest, check_timeout, initialise
from penstock.transactions.listing import TransactionFilters, described, listed, not_described
from penstock.transactions.markers import MissingMarkers, TransactionMarkers, markers_reply
from penstock.transactions.partitions import (
    PartitionsRequest,
    add_partitions,
    partition_results,
    verify_partitions,
)
from penstock.transactions.records import record_of, tombstone
from penstock.transactions.transaction import (
    NEW_EPOCH_VERSION,
    NO_IDENTITY,
    ONGOING,
    PREDECESSORS,
    PREPARED,
    ReservedProducerId,
    Transaction,
    shown,
    still_ending,
)
from penstock.transactions.transaction_context import TransactionContext
from penstock.transactions.transaction_store import TransactionStore
from penstock.types import TopicPartition


class TransactionStateMachine:
    def __init__(self, context: TransactionContext) -> None:
        self._context = context
        self._is_read_only = False
        self._missing: dict[str, MissingMarkers] = {}
        """The markers of prepared transactions, by transactional id."""
        self.store = TransactionStore()

    def unreadable(self) -> Sequence[str]:
        return tuple(self.store.unreadable())

    def read_only_view(self) -> Self:
        """A view for while the log is not writable: it serves reads and requests that change nothing."""
        view = copy(self)
        view._is_read_only = True
        return view

    def _require_writable(self) -> None:
        if self._is_read_only:
            raise not_writable()

    # The log

    def replay(self, record: StateRecord, timestamp_ms: int) -> None:
        self.store.replay(record)

    def on_loaded(self, now: Now) -> Iterable[CommandOutcome]:
        """Start timers, and send all markers of the prepared transactions with this coordinator's epoch."""
        outcomes = []
        for transaction in self.store.transactions.values():
            if transaction.status is ONGOING:
                # By the wall clock, which may have jumped: a transaction never gets more than its timeout.
                remaining_ms = transaction.started_ms + transaction.timeout_ms - now.wall_ms
                self._set_timer(transaction, min(max(remaining_ms, 0), transaction.timeout_ms), now)
            elif transaction.status in PREPARED and transaction.partitions:
                outcomes.append(CommandOutcome(replies=[self._markers_of(transaction)]))
            elif transaction.status in PREPARED:
                self._set_timer(transaction, 0, now)
            else:
                remaining_ms = self._unused_ms_left(transaction, now)
                self._set_timer(transaction, max(remaining_ms, self._context.limits.expiry_pause_ms), now)
        return outcomes

    # Time

    def next_deadline(self) -> float | None:
        return self._context.timers.next_deadline()

    def expire(self, now: Now) -> Iterable[CommandOutcome]:
        """Handle due timers, one outcome per transactional id. The rest of many stay due."""
        for transactional_id in self._context.timers.pop_expired(now.monotonic, TIMERS_PER_CHUNK):
            transaction = self.store.transactions.get(transactional_id)
            if transaction is not None:
                yield self._expire(transaction, now)

    def _expire(self, transaction: Transaction, now: Now) -> CommandOutcome:
        if transaction.status is ONGOING:
            # Again later if this abort is rejected, because no batch of the log holds its record.
            self._set_timer(transaction, transaction.timeout_ms, now)
            return self._prepare(transaction, fence(transaction, NO_IDENTITY, now.wall_ms), now)
        if transaction.status in PREPARED:
            return self._complete_if_marked(transaction, now)
        remaining_ms = self._unused_ms_left(transaction, now)
        if remaining_ms > 0:
            # The wall clock was set back: the id was used less long ago than it seemed.
            self._set_timer(transaction, remaining_ms, now)
            return EMPTY_OUTCOME
        return CommandOutcome([tombstone(transaction.transactional_id)])

    def _unused_ms_left(self, transaction: Transaction, now: Now) -> int:
        """Time until the id expires. Never more than the whole expiration time, whatever the wall clock."""
        expiration_ms = self._context.config().id_expiration_ms
        return min(transaction.updated_ms + expiration_ms - now.wall_ms, expiration_ms)

    def _set_timer(self, transaction: Transaction, delay_ms: int, now: Now) -> None:
        self._context.timers.set(transaction.transactional_id, now.monotonic + delay_ms / 1000)

    def parked(self) -> Iterable[WaitingRequest]:
        """None: a request that has to wait for markers is rejected, and its client retries."""
        return ()

    # Producers

    def init_producer(
        self, request: InitProducerRequest, new_id: ReservedProducerId, pending: WaitingRequest, now: Now
    ) -> CommandOutcome:
        """Reply with InitProducerIdResponse: the identity of a producer that has just been started."""
        self._check_request(request)
        before = self.store.find(request.transactional_id)
        if before is None:
            self._require_writable()
            self._check_room_for_id(request.transactional_id)
        after = initialise(before, request, new_id, now.wall_ms)
        if after.status in PREPARED:
            assert before is not None, "a new id has no transaction"
            rejection = still_ending(after)
            return self._prepare(before, after, now, pending.rejection(rejection.code, rejection.detail))
        response = InitProducerIdResponse(
            producer_id=after.producer.producer_id, producer_epoch=after.producer.epoch
        )
        return self._update(before, after, now, Reply(pending, response))

    def _check_request(self, request: InitProducerRequest) -> None:
        size_bytes, limits = len(request.transactional_id.encode()), self._context.limits
        if not 0 < size_bytes <= limits.id_bytes_max:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"transactional id {shown(request.transactional_id)} has {size_bytes} bytes; 1 to "
                f"{limits.id_bytes_max} are allowed: choose another transactional.id for the producer",
            )
        if request.expected is not None and min(request.expected) < 0:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"transactional id {shown(request.transactional_id)} comes with {request.expected}; a "
                "producer has both or sends neither",
            )
        check_timeout(request, self._context.config().timeout_ms_max)

    def _check_room_for_id(self, transactional_id: str) -> None:
        if len(self.store) >= self._context.limits.ids_max:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"there is no room for transactional id {shown(transactional_id)}: the coordinator has "
                f"{len(self.store)} ids of this partition; use ids again instead of new ones, or lower "
                "transactional.id.expiration.ms",
            )

    # Building a transaction

    def add_partitions(self, request: PartitionsRequest, pending: WaitingRequest, now: Now) -> CommandOutcome:
        """Reply with AddPartitionsToTxnResult. The partitions exist, as the caller has checked."""
        results = partition_results(request, [ErrorCode.NONE] * len(request.partitions))
        return self._add(request, Reply(pending, results), now)

    def add_offsets(self, request: PartitionsRequest, pending: WaitingRequest, now: Now) -> CommandOutcome:
        """Reply with AddOffsetsToTxnResponse. The request has the partition of the group's offsets."""
        return self._add(request, Reply(pending, AddOffsetsToTxnResponse()), now)

    def _add(self, request: PartitionsRequest, reply: Reply, now: Now) -> CommandOutcome:
        before = self.store.find_of(request.transactional_id, request.producer)
        limits = self._context.limits
        after = add_partitions(before, request, now.wall_ms, limits.partitions_max)
        count = self.store.open_partitions + len(after.partitions) - len(before.partitions)
        if after is not before and count > limits.shard_partitions_max:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"transactional id {shown(request.transactional_id)} adds to {self.store.open_partitions} "
                f"partitions of open transactions; {limits.shard_partitions_max} are allowed: commit more "
                "often, or have fewer transactions open at once",
            )
        return self._update(before, after, now, reply)

    def verify_partitions(self, request: PartitionsRequest, pending: WaitingRequest) -> CommandOutcome:
        """Reply with AddPartitionsToTxnResult, for a partition leader before it appends."""
        transaction = self.store.find_of(request.transactional_id, request.producer)
        return CommandOutcome(replies=[Reply(pending, verify_partitions(transaction, request))])

    # Ending a transaction

    def end_transaction(
        self, request: EndTransactionRequest, new_id: ReservedProducerId, pending: WaitingRequest, now: Now
    ) -> CommandOutcome:
        """Reply with EndTxnResponse as soon as the result is durable; the markers follow."""
        before = self.store.find_of(request.transactional_id, request.producer)
        after = end(before, request, new_id, now.wall_ms)
        response = EndTxnResponse()
        if request.client_version >= NEW_EPOCH_VERSION:
            response.producer_id, response.producer_epoch = after.next_producer
        reply = Reply(pending, response)
        if after is before:
            return CommandOutcome(replies=[reply])
        return self._prepare(before, after, now, reply)

    def markers_written(
        self, markers: TransactionMarkers, partitions: Collection[TopicPartition], now: Now
    ) -> CommandOutcome:
        """Note the partitions that have their marker, or need none any more. The last one completes.

        This also works while the log is not writable: the completion then follows when it is again.
        """
        missing = self._missing.get(markers.transactional_id)
        transaction = self.store.transactions.get(markers.transactional_id)
        if missing is None or transaction is None or transaction.status not in PREPARED:
            return EMPTY_OUTCOME
        missing.acknowledge(markers, partitions)
        if self._is_read_only:
            if not missing.partitions:
                self._set_timer(transaction, 0, now)
            return EMPTY_OUTCOME
        return self._complete_if_marked(transaction, now)

    def _complete_if_marked(self, prepared: Transaction, now: Now) -> CommandOutcome:
        missing = self._missing.get(prepared.transactional_id)
        if missing is not None and missing.partitions:
            return EMPTY_OUTCOME
        self._missing.pop(prepared.transactional_id, None)
        return self._update(prepared, complete(prepared, now.wall_ms), now)

    def _markers_of(self, prepared: Transaction) -> Reply:
        markers = TransactionMarkers.of(prepared, self._context.coordinator_epoch)
        self._missing[prepared.transactional_id] = MissingMarkers(markers)
        return markers_reply(self._context.send_markers, markers)

    # Changes

    def _prepare(
        self, before: Transaction, prepared: Transaction, now: Now, *replies: Reply
    ) -> CommandOutcome:
        self._require_writable()
        _check_transition(before, prepared)
        record = record_of(prepared)
        if not prepared.partitions:
            # No partition needs a marker: both states are one batch, which the log keeps as a whole.
            completed = self._update(prepared, complete(prepared, now.wall_ms), now)
            return CommandOutcome([record, *completed.records], replies)
        return CommandOutcome([record], [*replies, self._markers_of(prepared)])

    def _update(
        self, before: Transaction | None, after: Transaction, now: Now, *replies: Reply
    ) -> CommandOutcome:
        """Write a state that needs no markers. Nothing is written if it is `before` itself."""
        if after is before:
            return CommandOutcome(replies=replies)
        self._require_writable()
        _check_transition(before, after)
        if after.status is not ONGOING:
            self._set_timer(after, self._context.config().id_expiration_ms, now)
        elif before is None or before.status is not ONGOING:
            # Not again for further partitions: the timeout is that of the whole transaction.
            self._set_timer(after, after.timeout_ms, now)
        return CommandOutcome([record_of(after)], replies)

    # Administration

    def transactional_ids(self) -> Sequence[str]:
        """All ids, so that the caller can list them in chunks."""
        return tuple(self.store.transactions)

    def list(
        self, filters: TransactionFilters, transactional_ids: Iterable[str], now: Now
    ) -> Sequence[list_transactions.TransactionState]:
        return listed(self._existing(transactional_ids), filters, now)

    def _existing(self, transactional_ids: Iterable[str]) -> Iterator[Transaction]:
        for transactional_id in transactional_ids:
            transaction = self.store.transactions.get(transactional_id)
            if transaction is not None:
                yield transaction

    def describe(self, transactional_id: str) -> describe_transactions.TransactionState:
        if not transactional_id:
            return not_described(transactional_id, ErrorCode.INVALID_REQUEST)
        try:
            transaction = self.store.find(transactional_id)
        except ApiError as problem:
            return not_described(transactional_id, problem.code)
        if transaction is None:
            return not_described(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return described(transaction)


def _check_transition(before: Transaction | None, after: Transaction) -> None:
    """Every change keeps the order of states, and never lowers an epoch of the same producer id."""
    if before is None:
        return
    assert before.status in PREDECESSORS[after.status], (
        f"{before.status.kafka_name} does not become {after.status.kafka_name}"
    )
    is_same_id = before.producer.producer_id == after.producer.producer_id
    assert not is_same_id or before.producer.epoch <= after.producer.epoch, "an epoch never goes back"
