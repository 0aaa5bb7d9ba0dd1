"""A commit as it is asked for, and how large it may be."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.errors import ApiError, ErrorCode
from penstock.groups.offsets.committed_offsets import PartitionCommit
from penstock.limits import COMMIT_BYTES_MAX

_RECORD_BYTES = 100
"""What a committed offset takes beside its names and its note."""


NO_GENERATION = -1
"""Of a commit that comes from nobody in the group."""


class CommitRequest(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    """Or the epoch of a member of the new protocol."""
    version: int
    commits: Sequence[PartitionCommit]


def with_min_timestamp(
    commits: Sequence[PartitionCommit], timestamp_ms_min: int
) -> Sequence[PartitionCommit]:
    """The same, as if made no earlier than this. All partitions of a commit have one time."""
    if not commits or commits[0].committed.commit_timestamp_ms >= timestamp_ms_min:
        return commits
    return [
        PartitionCommit(partition, msgspec.structs.replace(committed, commit_timestamp_ms=timestamp_ms_min))
        for partition, committed in commits
    ]


def check_commit_size(request: CommitRequest) -> None:
    """All of a commit becomes one batch: more than that is refused before anything is made of it."""
    name_bytes = len(request.group_id.encode()) + _RECORD_BYTES
    size = sum(
        name_bytes + len(partition.topic) + len(committed.metadata.encode())
        for partition, committed in request.commits
    )
    if size > COMMIT_BYTES_MAX:
        detail = f"the commit takes {size} bytes; {COMMIT_BYTES_MAX} are allowed: commit in several requests"
        raise ApiError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, detail)
