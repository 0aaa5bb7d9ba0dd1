"""Chunked offset commit, for commits of too many partitions for one iteration of the event loop.

Rule 1: a committed chunk stays committed. If a chunk is rejected, its partitions and all later partitions get
        the error. So the response has the true outcome of every partition.
"""

from collections.abc import Sequence

from penstock.broker.groups.chunked_commands import CommandChunk
from penstock.coordinator.outcome import Now
from penstock.errors import ErrorCode
from penstock.groups.group_state_machine import GroupStateMachine
from penstock.groups.offsets.commit import CommitRequest, check_commit_size
from penstock.limits import COMMITS_AT_ONCE
from penstock.protocol.messages.offset_commit import OffsetCommitResponse, OffsetCommitResponsePartition


class ChunkedCommit:
    def __init__(
        self,
        request: CommitRequest,
        partitions: Sequence[OffsetCommitResponsePartition],
        response: OffsetCommitResponse,
    ) -> None:
        """`partitions`: the entries of `response` for the request's commits, in the same order."""
        self._request = request
        self._partitions = partitions
        self._response = response
        self._durable_count = 0
        """Number of partitions in committed chunks."""
        self._processed_count = 0

    def next_chunk(self, state: GroupStateMachine, now: Now) -> CommandChunk:
        if not self._processed_count:  # the size limit applies to the whole request, before any chunk commits
            check_commit_size(self._request)
        some = self._request.commits[self._processed_count : self._processed_count + COMMITS_AT_ONCE]
        records = state.commit(self._request._replace(commits=some), now)
        self._processed_count += len(some)
        is_done = self._processed_count == len(self._partitions)
        return CommandChunk(records, self._response) if is_done else CommandChunk(records)

    def chunk_is_durable(self) -> None:
        self._durable_count = self._processed_count

    def rejected(self, code: ErrorCode, detail: str) -> OffsetCommitResponse:
        # Not from `_processed_count`: the chunk in flight was rejected, although the state had processed it.
        for partition in self._partitions[self._durable_count :]:
            partition.error_code = code
        return self._response
