"""What is asked of a cleaning and what it answers: values that go to another process and come back."""

import msgspec

from penstock.errors import ConfigError, CorruptData, StorageFailed, StorageFull
from penstock.log.compaction.cleanable import SegmentGroupLimits, SegmentToClean
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from penstock.types import Offset

CLEANED_SUFFIX = ".cleaned"
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)


class CleaningJob(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    segments: list[SegmentToClean]
    """From the start of the log to the last that may be cleaned."""
    first_dirty_offset: Offset
    sequences_at: list[Offset]
    """The last offset of each producer that may write again."""
    now_ms: int
    trusted_ms: int
    """The time that ends the life of a tombstone (log/trusted_time.py)."""
    delete_retention_ms: int
    memory_bytes: int
    limits: SegmentGroupLimits
    bytes_per_second_max: float = float("inf")


class Replacement(msgspec.Struct, frozen=True):
    """A cleaned segment and the range of those it stands for."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int


class CleaningResult(msgspec.Struct, frozen=True, kw_only=True):
    end_offset: Offset
    """Everything below is clean."""
    keys: int
    bytes_before: int
    bytes_after: int
    records_removed: int
    keyless_removed: int
    unopened: int = 0
    """Batches that could not be opened and stay whole, and where the first of them begins."""
    first_unopened: Offset | None = None


class CleanerFailed(Exception):
    """Something that nobody expected: a mistake in the code, or too little memory."""


FAILURES: dict[str, type[Exception]] = {
    failure.__name__: failure
    for failure in (CorruptData, StorageFailed, StorageFull, ConfigError, CleanerFailed)
}
"""What a cleaning may meet."""


CleaningStep = Replacement | CleaningResult
"""A cleaning in pieces: a segment that is ready to be taken over, or at last that all is done."""


class CleaningRequest(msgspec.Struct, frozen=True):
    """A job begins it; None asks for the next step of the one that was begun."""

    job: CleaningJob | None


class CleaningReply(msgspec.Struct, frozen=True):
    """One of the three is there."""

    replacement: Replacement | None = None
    cleaned: CleaningResult | None = None
    failure: tuple[str, str] | None = None
    """The kind, one of FAILURES, and a sentence."""
