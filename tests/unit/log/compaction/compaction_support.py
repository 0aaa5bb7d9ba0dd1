"""A compacted log on a disk in memory, and what the broker's shell does to clean it, without waiting."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.limits import DECOMPRESSED_BYTES_MAX, LONG_MAX
from penstock.log.compaction.batch_filter import DeleteHorizons
from penstock.log.compaction.cleanable import CleaningPolicy, LogToClean, measure_log_to_clean
from penstock.log.compaction.cleaner import clean
from penstock.log.compaction.cleaning_job import CleaningJob, CleaningResult, Replacement
from penstock.log.compaction.cleaning_plan import job_for, safe_end, segment_facts
from penstock.log.compaction.swap import commit_swap, complete_swap, replaced_segments, swap_in
from penstock.log.partition_log import PartitionLog
from penstock.protocol import records
from penstock.protocol.batches import parse_header
from penstock.protocol.records import BatchOptions, Record, build_batch
from penstock.types import LeaderEpoch, Offset
from tests.unit.log.log_support import NOW_MS, batches

ALWAYS = CleaningPolicy(dirty_ratio_min=0.0, lag_ms_min=0, lag_ms_max=LONG_MAX)
PLENTY_BYTES = 1 << 20


class Put(NamedTuple):
    key: bytes | None
    value: bytes | None
    time_ms: int = NOW_MS


def put(log: PartitionLog, puts: Sequence[Put], **options: object) -> list[Record]:
    """Append one batch. Returns its records as a reader must see them."""
    settings: BatchOptions = options  # type: ignore[assignment]
    made = [Record(Offset(0), entry.time_ms, entry.key, entry.value) for entry in puts]
    batch = bytearray(build_batch(made, **settings))
    base = log.append(batch, parse_header(batch), LeaderEpoch(1))
    return [record._replace(offset=Offset(base + index)) for index, record in enumerate(made)]


def records_of(log: PartitionLog) -> list[Record]:
    """Every record of the log, through the same reads that a fetch makes."""
    return [record for batch in batches(log) for record in read_records(batch)]


def read_records(batch: bytes) -> list[Record]:
    return list(records.iterate_records(batch, limit_bytes=DECOMPRESSED_BYTES_MAX))


def dirt_of(log: PartitionLog, clean_to: int | None = None, stable_end: int | None = None) -> LogToClean:
    """`stable_end`: the last stable offset; None: every transaction is settled."""
    checkpoint = None if clean_to is None else Offset(clean_to)
    facts = segment_facts(log, ALWAYS)
    stable = log.log_end_offset if stable_end is None else Offset(stable_end)
    return measure_log_to_clean(facts, checkpoint, safe_end(log, stable), ALWAYS, NOW_MS)


def job_of(
    log: PartitionLog,
    clean_to: int | None = None,
    *,
    now_ms: int = NOW_MS,
    trusted_ms: int | None = None,
    delete_retention_ms: int = 0,
    memory_bytes: int = PLENTY_BYTES,
    stable_end: int | None = None,
) -> CleaningJob:
    trusted = now_ms if trusted_ms is None else trusted_ms
    horizons = DeleteHorizons(now_ms, trusted, delete_retention_ms)
    return job_for(log, dirt_of(log, clean_to, stable_end), horizons, memory_bytes=memory_bytes)


def compact(log: PartitionLog, job: CleaningJob) -> CleaningResult:
    """One cleaning and all of its swaps."""
    for step in clean(log.disk, job):
        if isinstance(step, CleaningResult):
            return step
        swap(log, step)
    raise AssertionError("a cleaning says when it is done")


def swap(log: PartitionLog, replacement: Replacement) -> None:
    assert replaced_segments(log, replacement)
    commit_swap(log.disk, log.folder, replacement)
    complete_swap(log.disk, swap_in(log, replacement))
