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

from penstock.coordinator.outcome import Now, Outcome, Pending, Reply, StateRecord
from penstock.errors import ErrorCode
from penstock.groups.groups import Groups
from penstock.limits import STATE_RECORDS_PER_TURN

Command = Callable[[Groups, Pending, Now], Outcome]
Refusal = Callable[[ErrorCode, str], Any]
Submit = Callable[[str, Command, Pending], None]

MORE: Final = object()
"""In the place of a reply: another piece follows."""


class Piece(NamedTuple):
    records: Sequence[StateRecord]
    reply: Any = MORE


MakePiece = Callable[[Groups, Now], Piece]
"""The next piece, from the state as it is then; or ApiError, which ends the command."""


class GroupTurns:
    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        """Who waits, by the groups about which a command is under way."""
        self._steps: deque[Callable[[], int]] = deque()
        self._is_coming = False
        """There will be a turn for the steps."""

    def submit(self, group_id: str, command: Command, pending: Pending) -> None:
        """A command that is done at once, when it is its turn."""
        waiting = self._waiting.get(group_id)
        if waiting is None:
            self._submit(group_id, command, pending)
        else:
            waiting.append(lambda: self._submit(group_id, command, pending))

    def submit_in_pieces(
        self,
        group_id: str,
        make: MakePiece,
        refusal: Refusal,
        pending: Pending,
        on_safe: Callable[[], None] = lambda: None,
    ) -> None:
        """`refusal` makes the reply, should a piece be refused. `on_safe` is told of all but the last."""
        command = _InPieces(self, group_id, make, refusal, pending, on_safe)
        waiting = self._waiting.get(group_id)
        if waiting is None:
            command.begin()
        else:
            waiting.append(command.begin)

    # For commands in pieces

    def hold(self, group_id: str) -> None:
        self._waiting[group_id] = deque()

    def run(self, group_id: str, command: Command, pending: Pending) -> None:
        self._submit(group_id, command, pending)

    def add(self, step: Callable[[], int]) -> None:
        """It says how many records it made."""
        self._steps.append(step)
        self._come()

    def leave(self, group_id: str) -> None:
        """Not at once: whoever says so may be in the middle of something else."""
        asyncio.get_running_loop().call_soon(self._leave, group_id)

    def _leave(self, group_id: str) -> None:
        waiting = self._waiting.pop(group_id)
        while waiting and group_id not in self._waiting:
            waiting.popleft()()
        if waiting:
            self._waiting[group_id].extend(waiting)

    def _come(self) -> None:
        if self._steps and not self._is_coming:
            self._is_coming = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._is_coming = False
        records = 0
        while self._steps and records < STATE_RECORDS_PER_TURN:
            records += self._steps.popleft()()
        self._come()


class _InPieces:
    """One command."""

    def __init__(
        self,
        turns: GroupTurns,
        group_id: str,
        make: MakePiece,
        refusal: Refusal,
        client: Pending,
        on_safe: Callable[[], None],
    ) -> None:
        self._turns = turns
        self._group_id = group_id
        self._make = make
        self._refusal = refusal
        self._client = client
        self._on_safe = on_safe
        self._records = 0

    def begin(self) -> None:
        self._turns.hold(self._group_id)
        self._turns.add(self._step)

    def _step(self) -> int:
        self._records = 0
        self._turns.run(self._group_id, self._command, Pending(self._take, self._refusal, self._give_up))
        return 1 + self._records

    def _command(self, state: Groups, pending: Pending, now: Now) -> Outcome:
        piece = self._make(state, now)
        self._records = len(piece.records)
        return Outcome(piece.records, (Reply(pending, piece.reply),))

    def _take(self, reply: Any) -> None:
        if reply is MORE:
            self._on_safe()
            self._turns.add(self._step)
            return
        self._client.answer(reply)
        self._turns.leave(self._group_id)

    def _give_up(self) -> None:
        self._client.give_up()
        self._turns.leave(self._group_id)
