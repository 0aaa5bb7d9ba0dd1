"""Commands about one group that take several turns of the loop, and those who wait for them meanwhile.

A commit of ten thousand partitions, or the deletion of a group that has as many, would keep everybody
waiting if it were done at once. It is done in pieces, each a command of its own.

Rule 1: while pieces follow each other nobody else is served for that group: whoever asks for it waits, and
        is served in the order of asking. So nobody sees half of it but after a crash.
Rule 2: all pieces of all groups share the turns: together they take no more of one than a piece may.
Rule 3: a piece begins when the one before it is safe. The first that is refused is the last.
Rule 4: what was begun ends, whether or not its client is still there.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from penstock.coordinator.outcome import CommandOutcome, Now, Reply, StateRecord, WaitingRequest
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.limits import STATE_RECORDS_PER_TURN

GroupCommand = Callable[[GroupStateMachine, WaitingRequest, Now], CommandOutcome]
MakeRejection = Callable[[ErrorCode, str], Any]
Submit = Callable[[str, GroupCommand, WaitingRequest], None]

MORE_CHUNKS: Final = object()
"""In the place of a reply: another piece follows."""


class CommandChunk(NamedTuple):
    records: Sequence[StateRecord]
    reply: Any = MORE_CHUNKS


MakeChunk = Callable[[GroupStateMachine, Now], CommandChunk]
"""The next piece, from the state as it is then; or ApiError, which ends the command."""


class GroupCommandQueue:
    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        """Who waits, by the groups about which a command is under way."""
        self._steps: deque[Callable[[], int]] = deque()
        self._is_scheduled = False
        """There will be a turn for the steps."""

    def submit(self, group_id: str, command: GroupCommand, pending: WaitingRequest) -> None:
        """A command that is done at once, when it is its turn."""
        waiting = self._waiting.get(group_id)
        if waiting is None:
            self._submit(group_id, command, pending)
        else:
            waiting.append(lambda: self._submit(group_id, command, pending))

    def submit_chunked(
        self,
        group_id: str,
        make: MakeChunk,
        rejection: MakeRejection,
        pending: WaitingRequest,
        on_durable: Callable[[], None] = lambda: None,
    ) -> None:
        """`rejection` makes the reply, should a piece be refused. `on_durable` is told of all but the
        last.
        """
        command = _ChunkedCommand(self, group_id, make, rejection, pending, on_durable)
        waiting = self._waiting.get(group_id)
        if waiting is None:
            command.begin()
        else:
            waiting.append(command.begin)

    # For commands in pieces

    def block_group(self, group_id: str) -> None:
        self._waiting[group_id] = deque()

    def run(self, group_id: str, command: GroupCommand, pending: WaitingRequest) -> None:
        self._submit(group_id, command, pending)

    def add(self, step: Callable[[], int]) -> None:
        """It says how many records it made."""
        self._steps.append(step)
        self._schedule()

    def unblock_group(self, group_id: str) -> None:
        """Not at once: whoever says so may be in the middle of something else."""
        asyncio.get_running_loop().call_soon(self._unblock_group, group_id)

    def _unblock_group(self, group_id: str) -> None:
        waiting = self._waiting.pop(group_id)
        while waiting and group_id not in self._waiting:
            waiting.popleft()()
        if waiting:
            self._waiting[group_id].extend(waiting)

    def _schedule(self) -> None:
        if self._steps and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_steps)

    def _run_steps(self) -> None:
        self._is_scheduled = False
        records = 0
        while self._steps and records < STATE_RECORDS_PER_TURN:
            records += self._steps.popleft()()
        self._schedule()


class _ChunkedCommand:
    """One command."""

    def __init__(
        self,
        queue: GroupCommandQueue,
        group_id: str,
        make: MakeChunk,
        rejection: MakeRejection,
        client: WaitingRequest,
        on_durable: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._group_id = group_id
        self._make = make
        self._rejection = rejection
        self._client = client
        self._on_durable = on_durable
        self._records = 0

    def begin(self) -> None:
        self._queue.block_group(self._group_id)
        self._queue.add(self._step)

    def _step(self) -> int:
        self._records = 0
        self._queue.run(
            self._group_id, self._command, WaitingRequest(self._chunk_done, self._rejection, self._cancel)
        )
        return 1 + self._records

    def _command(self, state: GroupStateMachine, pending: WaitingRequest, now: Now) -> CommandOutcome:
        chunk = self._make(state, now)
        self._records = len(chunk.records)
        return CommandOutcome(chunk.records, (Reply(pending, chunk.reply),))

    def _chunk_done(self, reply: Any) -> None:
        if reply is MORE_CHUNKS:
            self._on_durable()
            self._queue.add(self._step)
            return
        self._client.complete(reply)
        self._queue.unblock_group(self._group_id)

    def _cancel(self) -> None:
        self._client.cancel()
        self._queue.unblock_group(self._group_id)
