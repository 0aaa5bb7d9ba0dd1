"""A commit of so many partitions that it takes several turns of the loop.

Rule 1: a piece that is safe stays; those behind the first that is refused are refused with it. So every
        partition is told what became of it.
"""

from collections.abc import Sequence

from penstock.broker.groups.chunked_commands import Piece
from penstock.coordinator.outcome import Now
from penstock.errors import ErrorCode
from penstock.groups.groups import Groups
from penstock.groups.offsets.commit import CommitRequest, check_size
from penstock.limits import COMMITS_AT_ONCE
from penstock.protocol.messages.offset_commit import OffsetCommitResponse, OffsetCommitResponsePartition


class LongCommit:
    def __init__(
        self,
        asked: CommitRequest,
        answers: Sequence[OffsetCommitResponsePartition],
        response: OffsetCommitResponse,
    ) -> None:
        """`answers` are those within the response that belong to what is asked."""
        self._asked = asked
        self._answers = answers
        self._response = response
        self._safe = 0
        """So many partitions are on disk."""
        self._decided = 0

    def next_piece(self, state: Groups, now: Now) -> Piece:
        if not self._decided:
            check_size(self._asked)
        some = self._asked.commits[self._decided : self._decided + COMMITS_AT_ONCE]
        records = state.commit(self._asked._replace(commits=some), now)
        self._decided += len(some)
        is_over = self._decided == len(self._answers)
        return Piece(records, self._response) if is_over else Piece(records)

    def piece_is_safe(self) -> None:
        self._safe = self._decided

    def refused(self, code: ErrorCode, detail: str) -> OffsetCommitResponse:
        for answer in self._answers[self._safe :]:
            answer.error_code = code
        return self._response
