"""An offset commit request, and the limit on its size."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.errors import ApiError, ErrorCode
from penstock.groups.offsets.committed_offsets import PartitionCommit
from penstock.limits import COMMIT_BYTES_MAX

_RECORD_BYTES = 100
"""Record size of a committed offset beside its names and its metadata."""


NO_GENERATION = -1
"""Generation of a commit by a client that is not a member."""


class CommitRequest(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    """Generation, or the member epoch in the consumer protocol."""
    version: int
    commits: Sequence[PartitionCommit]


def with_min_timestamp(
    commits: Sequence[PartitionCommit], timestamp_ms_min: int
) -> Sequence[PartitionCommit]:
    """Raise the commit timestamps to at least this time. All partitions of a commit have one timestamp."""
    if not commits or commits[0].committed.commit_timestamp_ms >= timestamp_ms_min:
        return commits
    return [
        PartitionCommit(partition, msgspec.structs.replace(committed, commit_timestamp_ms=timestamp_ms_min))
        for partition, committed in commits
    ]


def check_commit_size(request: CommitRequest) -> None:
    """Raise ApiError if the commit is too large: it must fit one batch, and is checked before records are
    built."""
    name_bytes = len(request.group_id.encode()) + _RECORD_BYTES
    size = sum(
        name_bytes + len(partition.topic) + len(committed.metadata.encode())
        for partition, committed in request.commits
    )
    if size > COMMIT_BYTES_MAX:
        detail = f"the commit takes {size} bytes; {COMMIT_BYTES_MAX} are allowed: commit in several requests"
        raise ApiError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, detail)
