"""Appending what a leader stored, as it stored it.

A follower's log holds the same batches at the same offsets under the same leader epochs, so that any
of them can lead next. Nothing is stamped here; everything is checked, for a mistake that is copied to
every replica cannot be undone.

Rule 1: each batch begins where the log ends. A log has no holes: what compaction removed is covered by
        batches without records. Those may be wider on the leader than what we have, and then we take
        the part that we miss.
Rule 2: a batch of a later leader epoch than the one we fetched under was not appended by the leader we
        asked. It and what follows is left out (KAFKA-18723): whoever leads now will give it to us.
Rule 3: an epoch never falls from batch to batch.
"""

from penstock.errors import CorruptData, StorageFull
from penstock.log.compaction.batch_filter import gap_batch, gap_of, is_gap
from penstock.log.partition_log import PartitionLog
from penstock.log.reading.cold_reading import validate_stored_batch, wrong_offset_error
from penstock.protocol.batches import BatchHeader, parse_header, split_batches
from penstock.types import LeaderEpoch


def append_as_follower(log: PartitionLog, batches: memoryview, fetch_epoch: LeaderEpoch) -> int:
    """Append the whole batches of a fetch. Returns how many were new. Writes into `batches`.

    CorruptData: something in it is not what a leader can have stored; what came before that is
    appended. StorageFull: no room for the next batch, nothing of it is left.
    """
    assert not log.is_truncating, "it would be written to a file that is being cut"
    appended = 0
    for position, header in split_batches(batches):
        where = f"what was fetched for {log.folder} at {position}"
        validate_stored_batch(batches, header, position, where)
        if header.leader_epoch > fetch_epoch:
            break
        if header.next_offset <= log.log_end_offset:
            continue  # a fetch begins with the batch that holds the offset
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
    """The leader's log starts inside of this batch, and so does ours."""
    start = log.log_end_offset
    log.rebase(header.base_offset)
    try:
        log.append(batch, header, header.leader_epoch)
    except StorageFull:
        log.rebase(start)
        raise
    log.epochs.truncate_start(start)


def _append_rest_of_gap(log: PartitionLog, header: BatchHeader) -> None:
    rest = bytearray(gap_batch(gap_of(header)._replace(base_offset=log.log_end_offset)))
    log.append(rest, parse_header(rest), header.leader_epoch)
