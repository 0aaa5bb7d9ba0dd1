"""One partition of an internal topic and the state machine that lives on it.

A command reads the state and returns an outcome: records and replies. The records are replayed into
the state at once, so that the next command builds on them; the replies wait until the records are
below the high watermark. A command without records waits too, for everything before it: whatever
a client is told stays true after a crash.

Rule 1: nothing is awaited here. Appending is a call, and the partition calls back when it is safe.
Rule 2: while an append is on its way to the disk, outcomes gather; they become the next append. So
        a thousand commands during one flush cost one batch. Of very many, some wait for the flush after
        it: encoding all of them would keep everybody else waiting.
Rule 3: there is no way back. If an append fails, everybody who waits is refused and the state is
        thrown away; the shell loads it again from the log, which is the truth.
Rule 4: so whatever cannot be appended is found out before it is replayed. More than a batch holds is
        refused to those whom it concerns. While the disk is full, or fewer replicas are in sync than
        min.insync.replicas, commands see a state that refuses whatever would have to be written, and time
        stands still: such an append would not become safe, and no client would be answered.
Rule 5: clients do not depend on each other. One that cannot be answered is told so, or given up; the
        others get their answers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
        """Apply one record, its own or one from the log. Never fails: what it cannot read it notes."""
        ...

    def unreadable(self) -> Sequence[str]:
        """What it could not read, so that people can find it."""
        ...

    def read_only_view(self) -> Self:
        """The same state, for commands while nothing can be written: no outcome has records."""
        ...

    def on_loaded(self, now: Now) -> Iterable[CommandOutcome]:
        """Everything in the log has been replayed: timers may begin."""
        ...

    def next_deadline(self) -> float | None:
        """The monotonic time at which `expire` has something to do; None if there is none."""
        ...

    def expire(self, now: Now) -> Iterable[CommandOutcome]:
        """What time brings, in pieces that do not depend on each other."""
        ...

    def parked(self) -> Iterable[WaitingRequest]:
        """Clients whose answer depends on something that has not happened yet."""
        ...


State = TypeVar("State", bound=StateMachine)
Command = Callable[[State, Now], CommandOutcome]


class Phase(Enum):
    LOADING = auto()
    ACTIVE = auto()
    BROKEN = auto()
    """The state was thrown away and must be loaded again."""
    ENDED = auto()
    """This broker does not coordinate this partition any more."""


TOO_LARGE = ErrorCode.UNKNOWN_SERVER_ERROR
"""As Kafka answers a coordinator's write that fits no batch."""
REJECTION_CODES = {
    Phase.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    Phase.BROKEN: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    Phase.ENDED: ErrorCode.NOT_COORDINATOR,
}


class ShardHost(Protocol):
    """What a shard needs from whoever runs it."""

    def now(self) -> Now: ...

    def deadline_changed(self, next_deadline: float | None) -> None:
        """Call `tick` at this time, and not at the one said before."""
        ...

    def append_failed(self, reason: Exception) -> None:
        """The state is gone; load it again. If there was no room, say `resume_writes` when there is."""
        ...

    def too_large(self, size_bytes: int, records: int, limit_bytes: int) -> None:
        """A decision was refused because no batch holds it, for its size or for its many records."""
        ...

    def unanswered(self, reason: Exception) -> None:
        """A client could not be given its answer."""
        ...


class Shard(Generic[State]):
    def __init__(self, partition: Partition, new_state: Callable[[], State], host: ShardHost) -> None:
        self.partition = partition
        self.phase = Phase.LOADING
        self.is_full = False
        """There was no room for the last append, and none has been seen since."""
        self.needed_bytes = 0
        """What there was no room for, the last time."""
        self._new_state = new_state
        self._host = host
        self._state = new_state()
        self._next_deadline: float | None = None
        self._unappended: list[CommandOutcome] = []
        """Replayed, and not yet appended."""
        self._unconfirmed: list[Reply] = []
        """Of commands whose records are in the log and not yet safe."""
        self._wait: ProduceWait | None = None
        """For them; None while nothing is on its way to the disk."""

    @property
    def state(self) -> State:
        """To look at, by whoever only counts."""
        return self._state

    # Loading

    def begin_loading(self) -> State:
        """An empty state to replay the log into; nobody sees it before `end_loading`."""
        assert self.phase is not Phase.ENDED, "a shard that ended is not loaded"
        self.phase = Phase.LOADING
        self._state = self._new_state()
        return self._state

    def end_loading(self) -> None:
        self.phase = Phase.ACTIVE
        self._apply_all(self._state.on_loaded(self._host.now()))

    def end(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """The partition is gone, or another's."""
        self._discard(Phase.ENDED, code)

    # Commands

    def execute(self, command: Command[State], pending: WaitingRequest) -> None:
        """Decide now; `pending` is answered when the decision is safe, or later if it says so."""
        if self.phase is not Phase.ACTIVE:
            pending.reject(REJECTION_CODES[self.phase])
            return
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
        """The time that `deadline_changed` named has come."""
        if self.phase is not Phase.ACTIVE or self.is_full:
            return
        if self.partition.min_isr_error is None:
            self._next_deadline = None
            self._apply_all(self._state.expire(self._host.now()))
        else:
            self._next_deadline = self._host.now().monotonic + TOO_FEW_PAUSE_MS / 1000
            self._host.deadline_changed(self._next_deadline)

    def resume_writes(self) -> None:
        """The disk is not full any more. What became due meanwhile is done now."""
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
        for record in outcome.records:
            self._state.replay(record, now_ms)
        self._unappended.append(outcome)
        if self._wait is None:
            self._write()
        if self.phase is Phase.ACTIVE:
            self._update_deadline()

    def _reject_if_too_large(self, outcome: CommandOutcome) -> CommandOutcome:
        """The same, or its refusal if the log would not take it: that must not be found out later."""
        limit_bytes, size_bytes, records = (
            self.partition.config.batch_bytes_max,
            outcome.batch_bytes_min,
            outcome.batch_records_min,
        )
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
        """Append what has gathered, and wait for the disk; answer at once what needs no disk."""
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
                self.partition.produce_waits.add(end, self._wait, 0)
            else:
                self._send_replies()

    def _take_unappended(self) -> list[CommandOutcome]:
        """As much of what has gathered as is written for one flush; at least one outcome."""
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
        return self.partition.append(memoryview(bytearray(batch)), now_ms).end_offset

    def _append_confirmed(self, wait: ProduceWait) -> None:
        if wait is not self._wait:
            return  # that state was thrown away meanwhile
        if wait.errors:
            self._fail(ApiError(next(iter(wait.errors.values()))))
            return
        self._wait = None
        self._send_replies()
        self._write()

    def _send_replies(self) -> None:
        written, self._unconfirmed = self._unconfirmed, []
        for pending, content in written:
            self._deliver(pending, partial(pending.complete, content))

    def _deliver(self, pending: WaitingRequest, complete: Callable[[], None]) -> None:
        """What happens to an answer on its way to the client is that client's affair alone."""
        try:
            complete()
        except Exception as failure:
            self._host.unanswered(failure)
            self._report_undelivered(pending)

    def _report_undelivered(self, pending: WaitingRequest) -> None:
        try:
            pending.reject(ErrorCode.UNKNOWN_SERVER_ERROR, "there is an answer that cannot be told")
        except Exception as failure:
            self._host.unanswered(failure)
            pending.cancel()

    # Failing

    def _fail(self, failure: ApiError | StorageFull | StorageFailed) -> None:
        self.is_full = isinstance(failure, StorageFull)
        self._discard(Phase.BROKEN, _rejection_code(failure))
        self._host.append_failed(failure)

    def _discard(self, phase: Phase, code: ErrorCode) -> None:
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
    """The records of these outcomes; those of one together, unless it is divisible."""
    room = min(STATE_BATCH_BYTES_MAX, limit_bytes) - HEADER_BYTES
    batch: list[StateRecord] = []
    size = 0
    for piece in _indivisible_parts(outcomes):
        added = sum(record.size_bytes for record in piece)
        is_full = size + added > room or len(batch) + len(piece) > STATE_RECORDS_PER_FLUSH
        if batch and is_full:
            yield batch
            batch, size = [], 0
        batch.extend(piece)
        size += added
    if batch:
        yield batch


def _indivisible_parts(outcomes: Iterable[CommandOutcome]) -> Iterator[Sequence[StateRecord]]:
    """What must not be torn apart."""
    for outcome in outcomes:
        if outcome.is_divisible:
            yield from ([record] for record in outcome.records)
        elif outcome.records:
            yield outcome.records


def _rejection_code(failure: ApiError | StorageFull | StorageFailed) -> ErrorCode:
    """What clients of a coordinator understand: to look for it again."""
    if isinstance(failure, ApiError) and failure.code is ErrorCode.MESSAGE_TOO_LARGE:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if isinstance(failure, StorageFailed):
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
