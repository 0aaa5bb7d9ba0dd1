"""Transactions in one cleaning: which batches were aborted, and which markers are still needed.

The records of an aborted transaction are removed, whatever their keys: no reader of committed records ever
got them, so they replace no earlier record of a key.

A marker is needed while a batch of its transaction is in the log: without it a start from the batches alone
would find the transaction open, and a reader would take an aborted producer for aborted for ever. When the
last batch is gone, the marker gets a delete horizon, as a tombstone does, so that every consumer and follower
that keeps up reads it. After the horizon it is removed, with its row in the index of aborted transactions.

Rule 1: a cleaning reads the log from its start, and ends below the last stable offset. So when it comes to a
        marker, it has seen every batch of the transaction.
Rule 2: the marker that has the current epoch of a producer without batches is kept: it fences the batches of
        older epochs.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from crc32c import crc32c

from penstock.log.compaction.cleaning_job import CleanedRows
from penstock.log.transactions.aborted_index import AbortedEntry
from penstock.protocol.batches import BatchHeader
from penstock.types import Offset

_Span = tuple[Offset, Offset]
"""First offset of an aborted transaction, and the offset of its marker."""


class CleanedTransactions:
    """Transactions of one log while it is cleaned."""

    def __init__(self, aborted: Sequence[AbortedEntry], epochs_at: Iterable[tuple[int, int]]) -> None:
        """`epochs_at`: producers without batches, each with its epoch."""
        self._entries = aborted
        self._aborted: dict[int, list[_Span]] = {}
        for entry in sorted(aborted, key=lambda entry: entry.first_offset):
            self._aborted.setdefault(entry.producer_id, []).append((entry.first_offset, entry.last_offset))
        self._epochs_at = frozenset(epochs_at)
        self._with_batches: set[int] = set()
        """Producers of which a batch was kept since their last marker."""
        self._removed: set[Offset] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the batch belongs to an aborted transaction."""
        if not header.is_transactional or header.is_control:
            return False
        spans = self._aborted.get(header.producer_id, ())
        before = bisect_right(spans, header.base_offset, key=lambda span: span[0]) - 1
        return before >= 0 and header.base_offset < spans[before][1]

    def kept(self, header: BatchHeader) -> None:
        """Record that a batch stays in the log, with records or without."""
        if header.is_transactional and not header.is_control:
            self._with_batches.add(header.producer_id)

    def ends_without_batches(self, marker: BatchHeader) -> bool:
        """Whether no batch is left of the transaction that this marker ends. Called once for each marker."""
        has_batches = marker.producer_id in self._with_batches
        self._with_batches.discard(marker.producer_id)
        return not has_batches

    def fences(self, marker: BatchHeader) -> bool:
        """Whether the marker has the current epoch of a producer (rule 2)."""
        return (marker.producer_id, marker.producer_epoch) in self._epochs_at

    def removed(self, marker: BatchHeader) -> None:
        """Record that a marker is removed."""
        self._removed.add(marker.last_offset)

    def rows_between(self, start: Offset, end: Offset) -> tuple[CleanedRows, bytes] | None:
        """Rows of a cleaned segment and their bytes; None: no marker of an aborted transaction is there."""
        entries = [entry for entry in self._entries if start <= entry.last_offset < end]
        if not entries:
            return None
        entries.sort(key=lambda entry: entry.last_offset)
        kept = [entry for entry in entries if entry.last_offset not in self._removed]
        rows = b"".join([entry.to_bytes() for entry in kept])
        gone = [entry.last_offset for entry in entries if entry.last_offset in self._removed]
        return CleanedRows(len(kept), crc32c(rows), gone), rows
