"""Decision whether the files of a damaged replica are kept when the copy is replaced.

The broker replaces a damaged copy only when other brokers have everything, so its files are mostly a
convenience for the operator. They should not take the space that the broker's partitions need.

Rule: files are removed only where two other replicas are in sync, and the bytes are certainly damaged. A
      single other replica may be damaged in a part that has not been read yet: then the intact records here
      are the only ones. And a read or a write that failed proves nothing about the records.
"""

from typing import Final, NamedTuple

from penstock.errors import StorageFull
from penstock.limits import DISK_RESERVE_FREE_BYTES

OTHERS_IN_SYNC_MIN: Final = 2
"""Other in-sync replicas required before the files of a damaged one are removed."""


class CopySpaceNeeds(NamedTuple):
    """Known space needs of copies, apart from the size of the damaged one."""

    copy_bytes_min: int = 0
    """The new copy becomes at least this large: the damaged one may itself be an incomplete copy."""
    claimed_bytes: int = 0
    """Free space that copies of other partitions, already under way, will take."""
    others_in_sync: int = 0
    """Other live brokers that have everything."""


class DiscardedCopy(NamedTuple):
    """A damaged replica whose folder was freed."""

    size_bytes: int
    moved_to: str | None
    """None: its files were removed."""


class NoRoomForCopy(StorageFull):
    """The damaged files are kept, and a new copy does not fit beside them."""

    def __init__(self, folder: str, lacking_bytes: int) -> None:
        # No numbers in the text: they change between attempts, and the same reason is logged only once.
        super().__init__(f"a new copy does not fit beside the damaged files in {folder}")
        self.folder = folder
        self.lacking_bytes = lacking_bytes


def lacking_bytes(room: CopySpaceNeeds, *, size_bytes: int, usable_bytes: int) -> int:
    """Compute the space that a copy lacks beside a damaged one of `size_bytes`, with the broker's reserve
    kept free. 0 or less: the copy fits.
    """
    copy_bytes = max(size_bytes, room.copy_bytes_min)
    return room.claimed_bytes + copy_bytes + DISK_RESERVE_FREE_BYTES - usable_bytes
