"""Timeline of a group from the reports of its members: assignments and pauses. Pure functions.

All times are seconds of the monotonic clock of the machine.

Stable: every partition has one holder, and every member holds its share, rounded down.
Pause: the gap between two records of a partition at the consumer, minus their gap at the producer. So a
       slow producer makes no pause. A record that is delivered twice counts once.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple


class Kind(Enum):
    JOINING = "joining"
    ASSIGNED = "assigned"
    REVOKED = "revoked"
    """Revoked or lost."""
    LEAVING = "leaving"
    LEFT = "left"


class Event(NamedTuple):
    """A report of a member. `partitions` are those assigned or revoked, not all that it holds."""

    at: float
    member: int
    kind: Kind
    partitions: tuple[int, ...] = ()


class Receipt(NamedTuple):
    """A record that a member received."""

    partition: int
    offset: int
    sent_at: float
    received_at: float


class Holdings:
    """Holders of partitions, from the reports so far."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._held: dict[int, set[int]] = defaultdict(set)
        self.changed_at = 0.0
        """Time of the latest assignment or revocation."""

    def note(self, event: Event) -> None:
        held = self._held[event.member]
        before = set(held)
        if event.kind is Kind.ASSIGNED:
            held.update(event.partitions)
        elif event.kind is Kind.REVOKED:
            held.difference_update(event.partitions)
        elif event.kind is Kind.LEFT:
            held.clear()
        if held != before:
            self.changed_at = event.at

    def is_stable(self, members: Collection[int]) -> bool:
        each_min = self._partitions // len(members)
        held = [partition for member in members for partition in self._held[member]]
        return sorted(held) == list(range(self._partitions)) and all(
            len(self._held[member]) >= each_min for member in members
        )

    def holders(self) -> dict[int, int]:
        """Holder by partition, once every partition has exactly one."""
        return {partition: member for member, held in self._held.items() for partition in held}


def kept(before: Mapping[int, int], after: Mapping[int, int]) -> set[int]:
    """Partitions with the same holder before and after."""
    return {partition for partition, member in before.items() if after.get(partition) == member}


def longest_pause(
    receipts: Iterable[Receipt], partitions: Collection[int], window: tuple[float, float], interval_s: float
) -> float:
    """The longest pause of these partitions that ended in the window, or had not ended at its end."""
    by_partition: dict[int, list[Receipt]] = {partition: [] for partition in partitions}
    for receipt in receipts:
        if receipt.partition in by_partition:
            by_partition[receipt.partition].append(receipt)
    return max((_longest(_once(each), window, interval_s) for each in by_partition.values()), default=0.0)


def _once(receipts: Sequence[Receipt]) -> Iterator[Receipt]:
    """The first delivery of each record, in their order."""
    last = -1
    for receipt in sorted(receipts, key=lambda each: each.received_at):
        if receipt.offset > last:
            last = receipt.offset
            yield receipt


def _longest(receipts: Iterator[Receipt], window: tuple[float, float], interval_s: float) -> float:
    began, ended = window
    within = [receipt for receipt in receipts if receipt.received_at <= ended]
    if not within:
        return ended - began
    pauses = [
        (after.received_at - before.received_at) - (after.sent_at - before.sent_at)
        for before, after in pairwise(within)
        if after.received_at >= began
    ]
    silent = ended - within[-1].received_at - interval_s
    return max([*pauses, silent, 0.0])
