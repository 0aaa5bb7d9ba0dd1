"""The batches that belong to aborted transactions.

Each fetch reply lists the aborted transactions that overlap its records: producer id and first offset. A
transaction ends at the producer's next marker, which is a control batch in the log. So a batch is left out
if its producer has an aborted transaction that began at or before the batch and has not ended.

Rule 1: State carries over from one fetch to the next while fetches follow each other. A fetch that goes back
        starts with empty state and the transactions in its own fetch reply.
Rule 2: A transaction that has ended stays ended, even if a later fetch reply lists it again.
"""

from bisect import bisect_right
from collections.abc import Iterable

from penstock.types import Offset, ProducerId

AbortedTransaction = tuple[ProducerId, Offset]


class AbortedTransactions:
    """Aborted transactions of one partition, followed from one fetch to the next."""

    def __init__(self) -> None:
        self._open: dict[ProducerId, list[Offset]] = {}
        """First offsets of open aborted transactions, in order."""
        self._ended: set[AbortedTransaction] = set()
        self._position = Offset(0)

    def take_reply(self, aborted: Iterable[AbortedTransaction], *, start: Offset, end: Offset) -> None:
        """Take the aborted transactions in the fetch reply for the batches from `start` to `end`."""
        if start < self._position:
            self._open.clear()
            self._ended.clear()
        self._position = end
        named = set(aborted)
        self._ended &= named  # later replies will not list the others again
        known = {(producer, first) for producer, firsts in self._open.items() for first in firsts}
        self._open = {}
        for producer, first in sorted(known | named - self._ended):
            self._open.setdefault(producer, []).append(first)

    def is_aborted(self, producer: ProducerId, last_offset: Offset) -> bool:
        """Whether a transactional batch of this producer was aborted."""
        firsts = self._open.get(producer, [])
        return bool(firsts) and firsts[0] <= last_offset

    def end_transaction(self, producer: ProducerId, offset: Offset) -> None:
        """Record that the producer's transaction ended here, by commit or abort."""
        firsts = self._open.get(producer, [])
        # A marker ends every transaction of the producer that began at or before it.
        ended = bisect_right(firsts, offset)
        self._ended.update((producer, first) for first in firsts[:ended])
        del firsts[:ended]
