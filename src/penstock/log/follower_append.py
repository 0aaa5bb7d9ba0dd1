"""Append of fetched batches, exactly as the leader stored them.

A follower's log has the same batches at the same offsets under the same leader epochs, so that every replica
can lead next: the append stamps offset and epoch, but with the values that the batch already has. Everything
is validated: an error that is copied to every replica cannot be undone.

Rule 1: each batch begins at the end of the log. A log has no holes: batches without records cover what
        compaction removed. Such a batch may be wider on the leader than the missing range here; then the
        follower appends only the part that it lacks.
Rule 2: a batch of a later leader epoch than that of the fetch was not appended by the leader that the
        follower fetched from. That batch and everything behind it is left out (KAFKA-18723): the follower
        fetches it again from the current leader.
Rule 3: the leader epoch never decreases from batch to batch.
"""

from penstock.errors import CorruptData, StorageFull
from penstock.log.compaction.batch_filter import gap_batch, gap_of, is_gap
from penstock.log.partition_log import PartitionLog
from penstock.log.reading.cold_reading import validate_stored_batch, wrong_offset_error
from penstock.protocol.batches import BatchHeader, parse_header, split_batches
from penstock.types import LeaderEpoch


def append_as_follower(log: PartitionLog, batches: memoryview, fetch_epoch: LeaderEpoch) -> int:
    """Append the whole batches of a fetch. Returns how many were new. Writes into `batches`.

    CorruptData: no leader can have stored this batch; the batches before it are appended. StorageFull: no
    space for the next batch, no part of which is left.
    """
    assert not log.is_truncating, "it would be written to a file that is being truncated"
    appended = 0
    for position, header in split_batches(batches):
        where = f"what was fetched for {log.folder} at {position}"
        validate_stored_batch(batches, header, position, where)
        # Before the append: a batch of a later epoch is not from the leader that was fetched from (rule 2).
        if header.leader_epoch > fetch_epoch:
            break
        if header.next_offset <= log.log_end_offset:
            continue  # known: a reply begins with the batch that holds the fetch offset
        if header.leader_epoch < log.epochs.latest:
            raise CorruptData(f"{where}: leader epoch {header.leader_epoch} behind epoch {log.epochs.latest}")
        batch = batches[position : position + header.size]
        if header.base_offset == log.log_end_offset:
            log.append(batch, header, header.leader_epoch)
        elif header.base_offset > log.log_end_offset:
            raise wrong_offset_error(where, header, log.log_end_offset)
        elif log.is_empty:
            _start_inside_batch(log, batch, header)
        elif is_gap(header):
            _append_rest_of_gap(log, header)
        else:
            raise wrong_offset_error(where, header, log.log_end_offset)
        appended += 1
    return appended


def _start_inside_batch(log: PartitionLog, batch: memoryview, header: BatchHeader) -> None:
    """Start an empty log with a batch that begins before its start, as the leader's log does."""
    start = log.log_end_offset
    log.rebase(header.base_offset)
    try:
        log.append(batch, header, header.leader_epoch)
    except StorageFull:
        log.rebase(start)
        raise
    log.epochs.truncate_start(start)


def _append_rest_of_gap(log: PartitionLog, header: BatchHeader) -> None:
    """Append the part of a batch without records that this log lacks."""
    rest = bytearray(gap_batch(gap_of(header)._replace(base_offset=log.log_end_offset)))
    log.append(rest, parse_header(rest), header.leader_epoch)
