"""Chunked commands: large commands of one group, executed over several iterations of the event loop.

A commit of ten thousand partitions, or the deletion of a group with as many offsets, would block the event
loop if it ran at once. Such a command runs in chunks, and each chunk is a command of its own.

Rule 1: while a chunked command runs, all other commands of that group wait, in order of arrival. So no client
        sees a half-executed command, except after a crash.
Rule 2: the chunks of all groups share each iteration of the event loop: together they make at most about
        STATE_RECORDS_PER_CHUNK records per iteration.
Rule 3: a chunk begins when the records of the previous chunk are committed. The first rejected chunk ends the
        command.
Rule 4: a chunked command runs to its end even if its client has disconnected.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from penstock.coordinator.outcome import CommandOutcome, Now, Reply, StateRecord, WaitingRequest
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.limits import STATE_RECORDS_PER_CHUNK

GroupCommand = Callable[[GroupStateMachine, WaitingRequest, Now], CommandOutcome]
MakeRejection = Callable[[ErrorCode, str], Any]
Submit = Callable[[str, GroupCommand, WaitingRequest], None]

MORE_CHUNKS: Final = object()
"""Used as the reply of a chunk that is not the last one."""


class CommandChunk(NamedTuple):
    records: Sequence[StateRecord]
    reply: Any = MORE_CHUNKS


MakeChunk = Callable[[GroupStateMachine, Now], CommandChunk]
"""Makes the next chunk from the current state. ApiError ends the command."""


class GroupCommandQueue:
    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        """Waiting commands by group id. A group has an entry while a chunked command of it runs."""
        self._steps: deque[Callable[[], int]] = deque()
        """Chunks that are ready to run. Each returns its number of records, plus one."""
        self._is_scheduled = False
        """A callback of `_run_steps` is scheduled."""

    def submit(self, group_id: str, command: GroupCommand, pending: WaitingRequest) -> None:
        """Execute a command now, or after the group's running chunked command."""
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
        """Execute a command in chunks, now or after the group's running chunked command.

        `rejection` makes the reply if a chunk is rejected. `on_durable` is called after each committed chunk
        except the last.
        """

        def begin() -> None:
            self._waiting[group_id] = deque()
            self._schedule_step(step)

        def step() -> int:
            records = 0

            def command(state: GroupStateMachine, chunk_pending: WaitingRequest, now: Now) -> CommandOutcome:
                nonlocal records
                chunk = make(state, now)
                records = len(chunk.records)
                return CommandOutcome(chunk.records, (Reply(chunk_pending, chunk.reply),))

            self._submit(group_id, command, WaitingRequest(chunk_done, rejection, cancel))
            return 1 + records  # at least 1, so that chunks without records cannot run without limit

        def chunk_done(reply: Any) -> None:
            if reply is MORE_CHUNKS:
                on_durable()
                self._schedule_step(step)
                return
            # The last chunk, or a rejection: only these carry a reply for the client.
            pending.complete(reply)
            self._unblock_soon(group_id)

        def cancel() -> None:
            pending.cancel()
            self._unblock_soon(group_id)

        waiting = self._waiting.get(group_id)
        if waiting is None:
            begin()
        else:
            waiting.append(begin)

    def _unblock_soon(self, group_id: str) -> None:
        """Run the waiting commands in a later callback, because the caller is still executing a command."""
        asyncio.get_running_loop().call_soon(self._unblock_group, group_id)

    def _unblock_group(self, group_id: str) -> None:
        waiting = self._waiting.pop(group_id)
        while waiting and group_id not in self._waiting:
            waiting.popleft()()
        # One of these commands was chunked and blocked the group again: the rest keeps its order behind it.
        if waiting:
            self._waiting[group_id].extend(waiting)

    def _schedule_step(self, step: Callable[[], int]) -> None:
        self._steps.append(step)
        self._schedule()

    def _schedule(self) -> None:
        if self._steps and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_steps)

    def _run_steps(self) -> None:
        self._is_scheduled = False
        records = 0
        while self._steps and records < STATE_RECORDS_PER_CHUNK:
            records += self._steps.popleft()()
        self._schedule()
