"""What a commit must be to be accepted."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.groups.offsets import Commit

NO_GENERATION = -1


class CommitRequest(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    """Or the epoch of a member of the new protocol."""
    version: int
    commits: Sequence[Commit]

    @property
    def is_from_a_member(self) -> bool:
        return bool(self.member_id) or self.instance_id is not None or self.generation >= 0
