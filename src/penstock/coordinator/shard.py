"""A shard: one partition of an internal topic and the state machine that the partition stores.

A command reads the state and returns an outcome: records and replies. The shard replays the records into
the state at once, so that the next command builds on them. The replies wait until the records are below the
high watermark. A command without records also waits for all records before it: every reply that a client
received stays true after a crash.

Rule 1: the shard never awaits. It appends with a plain call, and the partition calls back when the records
        are below the high watermark.
Rule 2: while an append is being flushed and replicated, outcomes accumulate and become the next append. So
        a thousand commands during one flush cost one batch. If very many accumulate, some wait for the
        flush after it: encoding all of them at once would block the event loop.
Rule 3: a replayed record cannot be undone. If an append fails, the shard rejects every waiting request and
        discards the state; the shard's host reloads the state from the log, which is authoritative.
Rule 4: therefore the shard detects what it cannot append before it replays it. An outcome larger than a
        batch is rejected to the clients that wait for it. While the disk is full, or fewer replicas are in
        sync than min.insync.replicas, commands run on a read-only view that rejects every write, and timers
        do not expire: such an append would not be committed, and no client would get a reply.
Rule 5: clients do not depend on each other. A client whose reply cannot be sent gets an error reply or is
        cancelled; the other clients still get their replies.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Generic, Protocol, Self, TypeVar

from penstock.coordinator.outcome import CommandOutcome, Now, Reply, StateRecord, WaitingRequest
from penstock.errors import ApiError, ErrorCode, StorageFailed, StorageFull
from penstock.limits import (
    RECORDS_CHECKED_MAX,
    STATE_BATCH_BYTES_MAX,
    STATE_BYTES_PER_FLUSH,
    STATE_RECORDS_PER_FLUSH,
    TOO_FEW_PAUSE_MS,
)
from penstock.protocol.batches import HEADER_BYTES
from penstock.protocol.records import Record, build_batch
from penstock.replication.partition import Partition
from penstock.replication.produce_waits import ProduceWait
from penstock.types import NO_OFFSET, Offset


class StateMachine(Protocol):
    def replay(self, record: StateRecord, timestamp_ms: int) -> None:
        """Apply one record, new or from the log. Never fails: the state machine notes what it cannot read."""
        ...

    def unreadable(self) -> Sequence[str]:
        """Descriptions of the records that it could not read, for the operator."""
        ...

    def read_only_view(self) -> Self:
        """A view of the same state for commands while the log is not writable: their outcomes have no
        records."""
        ...

    def on_loaded(self, now: Now) -> Iterable[CommandOutcome]:
        """Start timers. The host calls this when the whole log has been replayed."""
        ...

    def next_deadline(self) -> float | None:
        """Monotonic time at which `expire` has work to do; None if it has none."""
        ...

    def expire(self, now: Now) -> Iterable[CommandOutcome]:
        """Handle the timers that expired, as outcomes that do not depend on each other."""
        ...

    def parked(self) -> Iterable[WaitingRequest]:
        """Requests whose reply depends on an event that has not happened yet."""
        ...


State = TypeVar("State", bound=StateMachine)
Command = Callable[[State, Now], CommandOutcome]


class Phase(Enum):
    LOADING = auto()
    ACTIVE = auto()
    BROKEN = auto()
    """The state was discarded and must be loaded again."""
    ENDED = auto()
    """This broker is not the coordinator of this partition any more."""


TOO_LARGE = ErrorCode.UNKNOWN_SERVER_ERROR
"""Kafka's error code for a coordinator write that fits no batch."""
REJECTION_CODES = {
    Phase.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    Phase.BROKEN: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    Phase.ENDED: ErrorCode.NOT_COORDINATOR,
}


class ShardHost(Protocol):
    """Interface that a shard needs from the code that runs it."""

    def now(self) -> Now: ...

    def deadline_changed(self, next_deadline: float | None) -> None:
        """Schedule `tick` for this time; it replaces the previous schedule."""
        ...

    def append_failed(self, reason: Exception) -> None:
        """Reload the state, which was discarded. After StorageFull, call `resume_writes` once there is
        space."""
        ...

    def too_large(self, size_bytes: int, records: int, limit_bytes: int) -> None:
        """Report an outcome that was rejected because no batch holds it: too many bytes or too many
        records."""
        ...

    def unanswered(self, reason: Exception) -> None:
        """Report that a reply could not be sent to a client."""
        ...


class Shard(Generic[State]):
    def __init__(self, partition: Partition, new_state: Callable[[], State], host: ShardHost) -> None:
        self.partition = partition
        self.phase = Phase.LOADING
        self.is_full = False
        """True: the last append found the disk full, and no free space was found since."""
        self.needed_bytes = 0
        """Bytes of the last append that found the disk full."""
        self._new_state = new_state
        self._host = host
        self._state = new_state()
        self._next_deadline: float | None = None
        self._unappended: list[CommandOutcome] = []
        """Outcomes that are replayed and not yet appended."""
        self._unconfirmed: list[Reply] = []
        """Replies of commands whose records are appended and not yet below the high watermark."""
        self._wait: ProduceWait | None = None
        """Wait for the high watermark to pass those records; None while no append is in flight."""

    @property
    def state(self) -> State:
        """The state, for callers that only read counters."""
        return self._state

    # Loading

    def begin_loading(self) -> State:
        """Return an empty state to replay the log into; commands do not reach it before `end_loading`."""
        assert self.phase is not Phase.ENDED, "a shard that ended is not loaded"
        self.phase = Phase.LOADING
        self._state = self._new_state()
        return self._state

    def end_loading(self) -> None:
        self.phase = Phase.ACTIVE
        self._apply_all(self._state.on_loaded(self._host.now()))

    def end(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Stop: the partition was deleted, or this broker no longer leads it."""
        self._discard(Phase.ENDED, code)

    # Commands

    def execute(self, command: Command[State], pending: WaitingRequest) -> None:
        """Run a command. `pending` gets its reply when the records are committed, or later if the command
        parks it."""
        if self.phase is not Phase.ACTIVE:
            pending.reject(REJECTION_CODES[self.phase])
            return
        # Read once: the command and the assertion below must use the same value.
        can_write = self._can_write
        try:
            outcome = command(self._state if can_write else self._state.read_only_view(), self._host.now())
        except ApiError as rejection:
            outcome = CommandOutcome(replies=(pending.rejection(rejection.code, rejection.detail),))
        assert can_write or not outcome.records, "nothing is decided that cannot be written"
        self._apply(outcome)

    @property
    def _can_write(self) -> bool:
        return not self.is_full and self.partition.min_isr_error is None

    def tick(self) -> None:
        """Expire timers. The host calls this at the time that `deadline_changed` passed."""
        if self.phase is not Phase.ACTIVE or self.is_full:
            return
        if self.partition.min_isr_error is None:
            self._next_deadline = None
            self._apply_all(self._state.expire(self._host.now()))
        else:
            # Below min.insync.replicas the timers stay due: their records would not be committed. Try again
            # later.
            self._next_deadline = self._host.now().monotonic + TOO_FEW_PAUSE_MS / 1000
            self._host.deadline_changed(self._next_deadline)

    def resume_writes(self) -> None:
        """Resume after a full disk. Timers that became due meanwhile expire now."""
        self.is_full = False
        self.tick()

    def _apply_all(self, outcomes: Iterable[CommandOutcome]) -> None:
        for outcome in outcomes:
            self._apply(outcome)
            if self.phase is not Phase.ACTIVE:
                return
        self._update_deadline()

    def _apply(self, outcome: CommandOutcome) -> None:
        if outcome.records:
            outcome = self._reject_if_too_large(outcome)
        now_ms = self._host.now().wall_ms if outcome.records else 0
        # Replayed before it is appended: the next command must see this one's changes.
        for record in outcome.records:
            self._state.replay(record, now_ms)
        self._unappended.append(outcome)
        if self._wait is None:
            self._write()
        if self.phase is Phase.ACTIVE:
            self._update_deadline()

    def _reject_if_too_large(self, outcome: CommandOutcome) -> CommandOutcome:
        """Return the outcome, or an error to its clients if the log would reject it: after replay it is too
        late."""
        limit_bytes = self.partition.config.batch_bytes_max
        size_bytes, records = outcome.batch_bytes, len(outcome.records)
        if size_bytes <= limit_bytes and records <= RECORDS_CHECKED_MAX:
            return outcome
        self._host.too_large(size_bytes, records, limit_bytes)
        detail = (
            f"this takes {size_bytes} bytes and {records} records of the log at once; "
            f"{limit_bytes} and {RECORDS_CHECKED_MAX} are allowed"
        )
        return CommandOutcome(
            replies=[pending.rejection(TOO_LARGE, detail) for pending, _ in outcome.replies]
        )

    def _update_deadline(self) -> None:
        next_deadline = self._state.next_deadline()
        if next_deadline != self._next_deadline:
            self._next_deadline = next_deadline
            self._host.deadline_changed(next_deadline)

    # Becoming safe

    def _write(self) -> None:
        """Append the accumulated outcomes and wait for the high watermark; reply at once if nothing was
        written."""
        while self._unappended and self._wait is None:
            gathered = self._take_unappended()
            self._unconfirmed = [reply for outcome in gathered for reply in outcome.replies]
            end = NO_OFFSET
            try:
                for records in _in_batches(gathered, self.partition.config.batch_bytes_max):
                    end = self._append(records)
            except (ApiError, StorageFull, StorageFailed) as failure:
                self.needed_bytes = sum(outcome.size_bytes for outcome in gathered)
                self._fail(failure)
                return
            if end > self.partition.high_watermark:
                self._wait = ProduceWait(float("inf"), self._append_confirmed)
                # This wait covers a single partition, so its number within the wait is 0.
                self.partition.high_watermark_waits.add(end, self._wait, 0)
            else:
                self._send_replies()

    def _take_unappended(self) -> list[CommandOutcome]:
        """Take the outcomes that one flush writes: bounded in records and bytes, and at least one outcome."""
        records = size_bytes = count = 0
        for outcome in self._unappended:
            count += 1
            if outcome.records:
                records += len(outcome.records)
                size_bytes += outcome.size_bytes
            if records >= STATE_RECORDS_PER_FLUSH or size_bytes >= STATE_BYTES_PER_FLUSH:
                break
        gathered, self._unappended = self._unappended[:count], self._unappended[count:]
        return gathered

    def _append(self, records: list[StateRecord]) -> Offset:
        now_ms = self._host.now().wall_ms
        batch = build_batch(Record(NO_OFFSET, now_ms, record.key, record.value) for record in records)
        return self.partition.append_now(memoryview(bytearray(batch)), now_ms).end_offset

    def _append_confirmed(self, wait: ProduceWait) -> None:
        if wait is not self._wait:
            return  # the wait of a state that was discarded meanwhile
        if wait.errors:
            self._fail(ApiError(next(iter(wait.errors.values()))))
            return
        # In this order: `_send_replies` clears `_unconfirmed` before `_write` fills it for the next append.
        self._wait = None
        self._send_replies()
        self._write()

    def _send_replies(self) -> None:
        written, self._unconfirmed = self._unconfirmed, []
        for pending, content in written:
            self._deliver(pending, partial(pending.complete, content))

    def _deliver(self, pending: WaitingRequest, complete: Callable[[], None]) -> None:
        """Send one reply. A failure concerns this client only, so it is reported and not raised."""
        try:
            complete()
        except Exception as failure:
            self._host.unanswered(failure)
            self._report_undelivered(pending)

    def _report_undelivered(self, pending: WaitingRequest) -> None:
        try:
            pending.reject(ErrorCode.UNKNOWN_SERVER_ERROR, "the reply cannot be encoded")
        except Exception as failure:
            self._host.unanswered(failure)
            pending.cancel()

    # Failing

    def _fail(self, failure: ApiError | StorageFull | StorageFailed) -> None:
        self.is_full = isinstance(failure, StorageFull)
        self._discard(Phase.BROKEN, _rejection_code(failure))
        self._host.append_failed(failure)

    def _discard(self, phase: Phase, code: ErrorCode) -> None:
        # Collected first: replacing the state below loses the requests that are parked in it.
        waiting = [reply.pending for reply in self._unconfirmed]
        waiting += [reply.pending for outcome in self._unappended for reply in outcome.replies]
        waiting += self._state.parked()
        self.phase = phase
        self._state = self._new_state()
        self._unconfirmed, self._unappended = [], []
        self._wait = None
        self._next_deadline = None
        self._host.deadline_changed(None)
        for pending in waiting:
            if not pending.is_completed:
                self._deliver(pending, partial(pending.reject, code))


def _in_batches(outcomes: Iterable[CommandOutcome], limit_bytes: int) -> Iterable[list[StateRecord]]:
    """Group the records of these outcomes into batches; one outcome stays in one batch."""
    room = min(STATE_BATCH_BYTES_MAX, limit_bytes) - HEADER_BYTES
    batch: list[StateRecord] = []
    size = 0
    for outcome in outcomes:
        added = outcome.size_bytes
        is_full = size + added > room or len(batch) + len(outcome.records) > STATE_RECORDS_PER_FLUSH
        if batch and is_full:
            yield batch
            batch, size = [], 0
        batch.extend(outcome.records)
        size += added
    if batch:
        yield batch


def _rejection_code(failure: ApiError | StorageFull | StorageFailed) -> ErrorCode:
    """Map a failure to an error code on which clients look up the coordinator again."""
    if isinstance(failure, ApiError) and failure.code is ErrorCode.MESSAGE_TOO_LARGE:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if isinstance(failure, StorageFailed):
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
