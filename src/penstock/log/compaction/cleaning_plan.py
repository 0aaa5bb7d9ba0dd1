"""Collection of the facts that decide about the cleaning of a log, and of the job that carries it out.

`segment_facts` may read from the device and runs in a worker; the other functions only read memory.
"""

from collections.abc import Sequence
from itertools import pairwise

from penstock.limits import CLEANER_GROUP_SEGMENTS_MAX, LONG_MAX
from penstock.log.compaction.batch_filter import DeleteHorizons
from penstock.log.compaction.cleanable import (
    CleaningPolicy,
    LogToClean,
    SegmentGroupLimits,
    SegmentToClean,
)
from penstock.log.compaction.cleaning_job import CleaningJob
from penstock.log.compaction.swap import is_settled
from penstock.log.partition_log import PartitionLog
from penstock.log.reading.cold_reading import header_at
from penstock.log.retention import SegmentFacts
from penstock.log.segment import Segment
from penstock.types import NO_TIMESTAMP, Offset


def segments_with_ends(segments: Sequence[Segment]) -> list[tuple[Segment, Offset]]:
    """All segments but the active one, each with its end offset."""
    return [(segment, after.base_offset) for segment, after in pairwise(segments)]


def safe_end(log: PartitionLog, stable_end: Offset) -> Offset:
    """Offset up to which segments may be rewritten: they are committed, and no write to them is pending.

    `stable_end` is the high watermark, or the last stable offset where that is lower.
    """
    end = min(stable_end, log.recovery_point)
    for segment, segment_end in segments_with_ends(log.segments):
        if not is_settled(log, segment, segment_end):
            return min(end, segment.base_offset)
    return end


def segment_facts(log: PartitionLog, policy: CleaningPolicy) -> list[SegmentFacts]:
    """Collect the facts of all segments, the active one last. May wait for the device."""
    segments = tuple(log.segments)  # a copy: this runs in a worker, and the log may roll meanwhile
    needs_first = policy.lag_ms_max != LONG_MAX
    sealed = [
        SegmentFacts(
            segment.base_offset,
            end,
            segment.size_bytes,
            segment.newest_timestamp,
            _first_timestamp(log, segment) if needs_first else NO_TIMESTAMP,
        )
        for segment, end in segments_with_ends(segments)
    ]
    active = segments[-1]
    return [*sealed, SegmentFacts(active.base_offset, log.log_end_offset, active.size_bytes, NO_TIMESTAMP)]


def _first_timestamp(log: PartitionLog, segment: Segment) -> int:
    if segment.first_timestamp is None:
        file = log.disk.open(segment.path())
        try:
            segment.first_timestamp = header_at(file, 0).max_timestamp
        finally:
            file.release()
    return segment.first_timestamp


def job_for(
    log: PartitionLog,
    log_to_clean: LogToClean,
    horizons: DeleteHorizons,
    *,
    memory_bytes: int,
    bytes_per_second_max: float = float("inf"),
) -> CleaningJob:
    return CleaningJob(
        folder=log.folder,
        segments=[
            SegmentToClean(segment.base_offset, end, segment.size_bytes)
            for segment, end in segments_with_ends(log.segments)
            if end <= log_to_clean.end_offset
        ],
        first_dirty_offset=log_to_clean.first_dirty_offset,
        sequences_at=[producer.last_offset for _, producer in log.producers.items() if producer.batches],
        aborted=log.transactions.aborted.overlapping(Offset(0), log_to_clean.end_offset),
        epochs_at=[(key, each.epoch) for key, each in log.producers.items() if not each.batches],
        horizons=horizons,
        memory_bytes=memory_bytes,
        limits=SegmentGroupLimits(
            segment_bytes=log.settings.segment_bytes,
            index_bytes_max=log.settings.index_bytes_max,
            index_interval_bytes=log.settings.index_interval_bytes,
            segments_max=CLEANER_GROUP_SEGMENTS_MAX,
        ),
        bytes_per_second_max=bytes_per_second_max,
    )


def are_current(log: PartitionLog, segments: Sequence[SegmentToClean]) -> bool:
    """False if segments were removed since: by retention, or with their topic."""
    present = {(segment.base_offset, segment.size_bytes) for segment in log.segments}
    return all((segment.base_offset, segment.size_bytes) in present for segment in segments)
