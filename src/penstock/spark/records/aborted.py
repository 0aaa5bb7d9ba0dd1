"""Which batches belong to transactions that were aborted.

A broker names, with every fetch, the aborted transactions that overlap what it sends: producer and first
offset. A transaction ends at the producer's next marker, which is a control batch in the log. So a
batch is left out if its producer has such a transaction that began at or before it and has not ended.

Rule 1: what is known carries over from one chunk to the next as long as they follow each other. A chunk
        that goes back starts afresh, with what the broker says about it.
Rule 2: a transaction that has ended stays ended, even if it is named again with a later chunk.
"""

from bisect import bisect_right
from collections.abc import Iterable

from penstock.types import Offset, ProducerId

Aborted = tuple[ProducerId, Offset]


class AbortedTransactions:
    def __init__(self) -> None:
        self._open: dict[ProducerId, list[Offset]] = {}
        """First offsets in order."""
        self._ended: set[Aborted] = set()
        self._position = Offset(0)

    def begin_chunk(self, aborted: Iterable[Aborted], *, start: Offset, end: Offset) -> None:
        """What the broker said about the batches from `start` to `end`."""
        if start < self._position:
            self._open.clear()
            self._ended.clear()
        self._position = end
        named = set(aborted)
        self._ended &= named  # nobody will name the others any more
        known = {(producer, first) for producer, firsts in self._open.items() for first in firsts}
        self._open = {}
        for producer, first in sorted(known | named - self._ended):
            self._open.setdefault(producer, []).append(first)

    def is_aborted(self, producer: ProducerId, last_offset: Offset) -> bool:
        """Whether a transactional batch of this producer was aborted."""
        firsts = self._open.get(producer, [])
        return bool(firsts) and firsts[0] <= last_offset

    def end_transaction(self, producer: ProducerId, offset: Offset) -> None:
        """The producer's transaction ended here, one way or the other."""
        firsts = self._open.get(producer, [])
        ended = bisect_right(firsts, offset)
        self._ended.update((producer, first) for first in firsts[:ended])
        del firsts[:ended]
