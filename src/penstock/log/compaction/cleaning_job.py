"""Request and result of a cleaning: values that are sent to the cleaner process and back."""

import msgspec

from penstock.errors import ConfigError, CorruptData, StorageFailed, StorageFull
from penstock.log.compaction.batch_filter import DeleteHorizons
from penstock.log.compaction.cleanable import SegmentGroupLimits, SegmentToClean
from penstock.log.transactions.aborted_index import AbortedEntry
from penstock.types import Offset

CLEANED_SUFFIX = ".cleaned"


class CleaningJob(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the cleaner process needs to clean one log."""

    folder: str
    segments: list[SegmentToClean]
    """From the start of the log to the last one that may be cleaned."""
    first_dirty_offset: Offset
    sequences_at: list[Offset]
    """Last offset of each producer that may write again."""
    aborted: list[AbortedEntry] = []
    """Aborted transactions that begin in these segments."""
    epochs_at: list[tuple[int, int]] = []
    """Producers that may write again and have no batch, each with its epoch."""
    horizons: DeleteHorizons
    memory_bytes: int
    limits: SegmentGroupLimits
    bytes_per_second_max: float = float("inf")


class CleanedRows(msgspec.Struct, frozen=True):
    """Index of aborted transactions of a cleaned segment."""

    count: int
    checksum: int
    removed: list[Offset]
    """Markers of aborted transactions that are no longer in the log."""


class Replacement(msgspec.Struct, frozen=True):
    """A cleaned segment, and the range of segments that it replaces."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    aborted: CleanedRows | None = None
    """None: the segments have no such index."""


class CleaningResult(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a whole cleaning."""

    end_offset: Offset
    """Everything below is clean."""
    keys: int
    bytes_before: int
    bytes_after: int
    records_removed: int
    keyless_removed: int
    unopened: int = 0
    """Batches that could not be decompressed and stay whole; `first_unopened` is the offset of the first."""
    first_unopened: Offset | None = None


class CleanerFailed(Exception):
    """An unexpected failure: a bug, or too little memory."""


FAILURES: dict[str, type[Exception]] = {
    failure.__name__: failure
    for failure in (CorruptData, StorageFailed, StorageFull, ConfigError, CleanerFailed)
}
"""Failures that a cleaning can report."""


CleaningStep = Replacement | CleaningResult
"""One step of a cleaning: a segment that is ready to be swapped in, or the final result."""


class CleaningRequest(msgspec.Struct, frozen=True):
    """A job starts a cleaning; None requests the next step of the current one."""

    job: CleaningJob | None


class CleaningReply(msgspec.Struct, frozen=True):
    """Exactly one field is set."""

    replacement: Replacement | None = None
    cleaned: CleaningResult | None = None
    failure: tuple[str, str] | None = None
    """A key of FAILURES, and a message."""
