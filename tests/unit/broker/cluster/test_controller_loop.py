"""How many proposals the controller makes for a group of decisions of which some conflict.

Every proposal is a round trip to the metadata store, and partitions have no leader meanwhile.
"""

import asyncio
from collections.abc import Collection

from penstock.broker.cluster.controller_loop import propose_by_halves
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
        self.proposals = 0
        self.committed: list[str] = []

    async def propose(self, decision: Decision) -> CommittedTransaction | Conflict:
        self.proposals += 1
        if any(compare.key in self._moved for compare in decision.compares):
            return Conflict(self.proposals)
        self.committed += [change.key for change in decision.changes if isinstance(change, Put)]
        return CommittedTransaction(self.proposals, True)


def propose(store: Store) -> Conflict | None:
    term = Compare("controller", 1)
    group = [
        Decision((term, Compare(str(number), 1)), (Put(str(number), b""),)) for number in range(DECISIONS)
    ]
    return asyncio.run(propose_by_halves(store.propose, group))


def test_decisions_without_a_conflict_are_one_proposal() -> None:
    store = Store(())
    assert propose(store) is None
    assert (store.proposals, len(store.committed)) == (1, DECISIONS)


def test_one_conflict_among_many_takes_a_logarithm_of_proposals() -> None:
    for moved in range(DECISIONS):
        store = Store({str(moved)})
        assert propose(store) is not None
        assert store.proposals <= PROPOSALS_MAX
        assert store.committed == [str(number) for number in range(DECISIONS) if number != moved]


def test_a_conflict_that_all_decisions_share_ends_the_group_early() -> None:
    """Another broker is the controller: to divide down to single decisions would take 399 proposals."""
    store = Store({"controller"})
    assert propose(store) == Conflict(UPKEEP_CONFLICTS_MAX)
    assert store.proposals == UPKEEP_CONFLICTS_MAX


def test_many_conflicts_leave_the_rest_to_the_next_decision() -> None:
    store = Store({str(number) for number in range(0, DECISIONS, 2)})
    assert propose(store) is not None
    assert store.proposals <= 2 * UPKEEP_CONFLICTS_MAX
    assert 0 < len(store.committed) < DECISIONS / 2
