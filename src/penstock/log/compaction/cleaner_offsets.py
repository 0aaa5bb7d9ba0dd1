"""How far a compacted log is clean: `cleaner-offset-checkpoint` in the folder of its partition.

0        version
1        number of rows
1200     the first dirty offset: everything below was cleaned

The file lies beside the segments that it speaks of and goes where they go: with a folder that is set
aside as damaged, removed with its replica, or restored from a backup. Kafka keeps the offsets of all
logs in one file. There an offset can outlive the log it was about, and then a cleaning takes records for
clean that never were: it removes a tombstone after its time and keeps what the tombstone deletes.

Rule 1: the file is removed when a log is opened, at a start or after a truncation, that ends before its
        offset, and before all records go (log/truncation.py). What is written then was never cleaned.
Rule 2: losing the file costs time, not data: a log without it is cleaned from its start. So a file that
        makes no sense is removed, and not complained of.
"""

from penstock.errors import CorruptData
from penstock.host.disk import Disk, SmallFile
from penstock.log.checkpoint_file import parse_rows, render_rows
from penstock.types import Offset

FILE_NAME = "cleaner-offset-checkpoint"


def cleaner_offset_file(folder: str, clean_to: Offset) -> SmallFile:
    return SmallFile(f"{folder}/{FILE_NAME}", render_rows([str(clean_to)]))


def load_clean_to(disk: Disk, folder: str, log_end_offset: Offset) -> Offset | None:
    """The first dirty offset of a log that was just opened; None: nothing is known to be clean. Blocks."""
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
    """For good, before anything else is changed. Blocks."""
    path = f"{folder}/{FILE_NAME}"
    if disk.exists(path):
        disk.remove(path)
        disk.sync((), [folder])
