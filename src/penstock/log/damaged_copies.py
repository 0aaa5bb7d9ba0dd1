"""Whether the files of a damaged copy are kept when the partition is copied anew.

The broker gives a damaged copy up only when others have everything, so its files are a convenience for
people. They must not cost the broker the room that its partitions need.
"""

from typing import NamedTuple

from penstock.limits import DISK_RESERVE_FREE_BYTES


class CopySpaceNeeds(NamedTuple):
    """What copies are known to need, beside the size of the damaged one."""

    copy_bytes_min: int = 0
    """The new copy becomes at least this large: the damaged one may itself have been copied in part only."""
    claimed_bytes: int = 0
    """Copies of other partitions that are under way will take this much of what is free now."""


class DiscardedCopy(NamedTuple):
    size_bytes: int
    moved_to: str | None
    """None: its files were removed."""


def fits_beside(room: CopySpaceNeeds, *, size_bytes: int, usable_bytes: int) -> bool:
    """Whether a copy fits beside a damaged one of `size_bytes`, and leaves room for the broker's reserve."""
    copy_bytes = max(size_bytes, room.copy_bytes_min)
    return usable_bytes - room.claimed_bytes - copy_bytes >= DISK_RESERVE_FREE_BYTES
