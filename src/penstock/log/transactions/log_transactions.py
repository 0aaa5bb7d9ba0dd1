"""Transactions of one log: up to where their outcome is known, and which were aborted.

    open       the log has batches of the transaction and no marker
    ended      the marker is in the log, at the high watermark or above it: a new leader may lack the marker
    settled    the marker is below the high watermark

The first unstable offset is the smallest first offset of all transactions that are open or ended. The last
stable offset is the smaller of it and the high watermark (`Partition.last_stable_offset`): below it every
transaction is settled.

Rule 1: a transaction begins at the end of the log, so first offsets are added in ascending order, and the
        smallest is always the oldest. A snapshot of producers lists them in another order; they are sorted.
Rule 2: the last stable offset moves only together with the high watermark or the log start: a transaction
        begins at or above the high watermark, and is settled when the high watermark passes its marker.
        Prepared replies to fetches rely on that (broker/data/fetch_reader.py).
Rule 3: what this class knows follows from the batches of the log alone. Every replica, and every start, comes
        to the same.
"""

from collections import OrderedDict
from typing import Final

from penstock.errors import ApiError, ErrorCode
from penstock.limits import TRANSACTIONS_ABORTED_PER_PARTITION_MAX
from penstock.log.producer_state import Producers
from penstock.log.transactions.aborted_index import AbortedEntry, AbortedIndex
from penstock.protocol.batches import BatchHeader
from penstock.protocol.control_batches import EndTransactionMarker
from penstock.types import NO_OFFSET, Offset

_NO_OFFSETS: Final[OrderedDict[Offset, None]] = OrderedDict()
"""Never changed. Most logs have no transaction, and should not pay for empty dictionaries."""


class LogTransactions:
    """Transactions of one log that are not settled, and its aborted ones."""

    __slots__ = ("_aborted_max", "_open", "_unstable", "aborted", "ended", "first_unstable_offset")

    def __init__(self, aborted_max: int = TRANSACTIONS_ABORTED_PER_PARTITION_MAX) -> None:
        self._aborted_max = aborted_max
        # By first offset; ordered dictionaries, because their first key is found at once after many removals.
        self._open = self._unstable = _NO_OFFSETS
        self.ended: dict[Offset, Offset] = {}
        """First offset of each ended transaction, by its marker. Read by callers, because a check is cheaper
        than a call. Only this class changes it."""
        self.first_unstable_offset: Offset | None = None
        """None: every transaction is settled."""
        self.aborted = AbortedIndex()

    def restore(self, producers: Producers) -> None:
        """Continue with the open transactions of a snapshot."""
        for first in sorted(each.transaction.first_offset for _, each in producers.items()):
            if first >= 0:
                self._begin(first)

    def replay(
        self,
        producers: Producers,
        header: BatchHeader,
        base_offset: Offset,
        marker: EndTransactionMarker | None,
        segment_base: Offset,
    ) -> None:
        """Apply a transactional batch or a control batch that is in the log, in this segment."""
        if marker is not None:
            first = producers.replay_marker(marker, header.max_timestamp)
            if first != NO_OFFSET:
                last = Offset(base_offset + header.last_offset_delta)
                self._end(marker, first, last, segment_base)
        elif not header.is_control and producers.replay_transactional(header, base_offset):
            self._begin(base_offset)

    def _begin(self, first_offset: Offset) -> None:
        if self._open is _NO_OFFSETS:
            self._open, self._unstable = OrderedDict(), OrderedDict()
        self._open[first_offset] = self._unstable[first_offset] = None
        if self.first_unstable_offset is None:
            self.first_unstable_offset = first_offset

    def _end(self, marker: EndTransactionMarker, first: Offset, last: Offset, segment_base: Offset) -> None:
        del self._open[first]
        self.ended[last] = first
        if not marker.is_commit:
            stable = next(iter(self._open), Offset(last + 1))
            self.aborted.add(AbortedEntry(marker.producer_id, first, last, stable), segment_base)

    def settle(self, high_watermark: Offset) -> None:
        """Forget the ended transactions whose markers are below the high watermark."""
        ended = self.ended
        while ended and (marker := next(iter(ended))) < high_watermark:
            del self._unstable[ended.pop(marker)]
        self.first_unstable_offset = next(iter(self._unstable), None)

    def keep_ended(self, before: "LogTransactions", log_end_offset: Offset) -> None:
        """Continue after a truncation: what ended below the new end of the log is as unsettled as before."""
        if not before.ended:
            return
        kept = {marker: first for marker, first in before.ended.items() if marker < log_end_offset}
        self.ended = dict(sorted((self.ended | kept).items()))
        unstable = {*self._open, *self.ended.values()}
        self._open, self._unstable = OrderedDict(self._open), OrderedDict.fromkeys(sorted(unstable))
        self.first_unstable_offset = next(iter(self._unstable), None)

    def require_room(self) -> None:
        """Raise ApiError if the log has too many aborted transactions to begin another transaction."""
        if len(self.aborted) >= self._aborted_max:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"{len(self.aborted)} aborted transactions are in the log of this partition, and it takes no "
                "more; shorten the retention of its topic",
            )

    def __repr__(self) -> str:
        first = self.first_unstable_offset
        return f"<LogTransactions open={len(self._open)} first_unstable={first} aborted={len(self.aborted)}>"
