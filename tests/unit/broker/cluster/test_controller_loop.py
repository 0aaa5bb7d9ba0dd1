"""How often the controller tries to commit a group of decisions of which some conflict.

Every attempt is a round trip to the metadata store, and partitions have no leader meanwhile.
"""

import asyncio
from collections.abc import Collection

from penstock.broker.cluster.controller_loop import commit_by_halves
from penstock.controller.decision import Decision
from penstock.host.metadata_store import CommittedTransaction, Compare, Conflict, Put
from penstock.limits import UPKEEP_CONFLICTS_MAX

DECISIONS = 200
PROPOSALS_MAX = 17
"""All of them, and two halves each of 200, 100, 50, 25, 13, 7, 4 and 2."""


class Store:
    """Commits what compares none of the keys that have moved."""

    def __init__(self, moved: Collection[str]) -> None:
        self._moved = moved
        self.attempts = 0
        self.committed: list[str] = []

    async def commit_once(self, decision: Decision) -> CommittedTransaction | Conflict:
        self.attempts += 1
        if any(compare.key in self._moved for compare in decision.compares):
            return Conflict(self.attempts)
        self.committed += [change.key for change in decision.changes if isinstance(change, Put)]
        return CommittedTransaction(self.attempts, True)


def commit(store: Store) -> Conflict | None:
    term = Compare("controller", 1)
    group = [
        Decision((term, Compare(str(number), 1)), (Put(str(number), b""),)) for number in range(DECISIONS)
    ]
    return asyncio.run(commit_by_halves(store.commit_once, group))


def test_decisions_without_a_conflict_are_one_attempt() -> None:
    store = Store(())
    assert commit(store) is None
    assert (store.attempts, len(store.committed)) == (1, DECISIONS)


def test_one_conflict_among_many_takes_a_logarithm_of_attempts() -> None:
    for moved in range(DECISIONS):
        store = Store({str(moved)})
        assert commit(store) is not None
        assert store.attempts <= PROPOSALS_MAX
        assert store.committed == [str(number) for number in range(DECISIONS) if number != moved]


def test_a_conflict_that_all_decisions_share_ends_the_group_early() -> None:
    """Another broker is the controller: to divide down to single decisions would take 399 attempts."""
    store = Store({"controller"})
    assert commit(store) == Conflict(UPKEEP_CONFLICTS_MAX)
    assert store.attempts == UPKEEP_CONFLICTS_MAX


def test_many_conflicts_leave_the_rest_to_the_next_decision() -> None:
    store = Store({str(number) for number in range(0, DECISIONS, 2)})
    assert commit(store) is not None
    assert store.attempts <= 2 * UPKEEP_CONFLICTS_MAX
    assert 0 < len(store.committed) < DECISIONS / 2
