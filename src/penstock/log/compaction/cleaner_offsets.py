"""Cleaner checkpoint of a compacted log: `cleaner-offset-checkpoint` in the folder of its partition.

    0        version
    1        number of rows
    1200     the first dirty offset: everything below was cleaned

The file is beside the segments that it describes and is moved or removed with them. In Kafka, which keeps the
offsets of all logs in one file, an offset can outlive its log. A cleaning would then remove an expired
tombstone and keep the records that the tombstone deletes.

Rule 1: the file is removed when a log that ends before its offset is opened, and before a full truncation:
        records that are written there later were never cleaned.
Rule 2: losing the file costs time, not data: a log without it is cleaned from its start. So an invalid file
        is removed without an error.
"""

from penstock.errors import CorruptData
from penstock.host.disk import Disk, SmallFile
from penstock.log.checkpoint_file import parse_rows, render_rows
from penstock.types import Offset

FILE_NAME = "cleaner-offset-checkpoint"


def cleaner_offset_file(folder: str, clean_to: Offset) -> SmallFile:
    return SmallFile(f"{folder}/{FILE_NAME}", render_rows([str(clean_to)]))


def load_clean_to(disk: Disk, folder: str, log_end_offset: Offset) -> Offset | None:
    """Load the first dirty offset of a log that was just opened; None: none is known. Blocks."""
    path = f"{folder}/{FILE_NAME}"
    if not disk.exists(path):
        return None
    try:
        rows = list(parse_rows(disk.read_file(path), FILE_NAME, columns=1))
    except CorruptData:
        rows = []
    if len(rows) == 1 and 0 <= rows[0][0] <= log_end_offset:
        return Offset(rows[0][0])
    forget_clean_to(disk, folder)
    return None


def forget_clean_to(disk: Disk, folder: str) -> None:
    """Remove the file durably, before anything else is changed. Blocks."""
    path = f"{folder}/{FILE_NAME}"
    if disk.exists(path):
        disk.remove(path)
        disk.sync((), [folder])
