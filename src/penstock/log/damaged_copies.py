"""Whether the files of a damaged copy are kept when the partition is copied anew.

The broker gives a damaged copy up only when others have everything, so its files are mostly a convenience for
people. They should not cost the broker the room that its partitions need.

Rule: files are removed only where two others are in sync, and the bytes are damaged for certain. A single
      other copy may be damaged elsewhere, which nobody has read yet: then the records that are whole here are
      the only ones. And a read or a write that failed says nothing of the records.
"""

from typing import Final, NamedTuple

from penstock.errors import StorageFull
from penstock.limits import DISK_RESERVE_FREE_BYTES

OTHERS_IN_SYNC_MIN: Final = 2
"""Before the files of a damaged copy are removed."""


class CopySpaceNeeds(NamedTuple):
    """What copies are known to need, beside the size of the damaged one."""

    copy_bytes_min: int = 0
    """The new copy becomes at least this large: the damaged one may itself have been copied in part only."""
    claimed_bytes: int = 0
    """Copies of other partitions that are under way will take this much of what is free now."""
    others_in_sync: int = 0
    """Brokers that are there, and have everything."""


class DiscardedCopy(NamedTuple):
    size_bytes: int
    moved_to: str | None
    """None: its files were removed."""


class NoRoomForCopy(StorageFull):
    """The damaged files are kept, and a new copy does not fit beside them."""

    def __init__(self, folder: str, lacking_bytes: int) -> None:
        # Nothing that changes from one attempt to the next: the reason is logged once.
        super().__init__(f"a new copy does not fit beside the damaged files in {folder}")
        self.folder = folder
        self.lacking_bytes = lacking_bytes


def lacking_bytes(room: CopySpaceNeeds, *, size_bytes: int, usable_bytes: int) -> int:
    """What a copy lacks to fit beside a damaged one of `size_bytes`, and to leave room for the broker's
    reserve. Not above 0: it fits."""
    copy_bytes = max(size_bytes, room.copy_bytes_min)
    return room.claimed_bytes + copy_bytes + DISK_RESERVE_FREE_BYTES - usable_bytes
