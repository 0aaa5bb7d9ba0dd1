"""Decisions are cut and joined so that a transaction holds them, and nothing is half made."""

from penstock.controller.decision import Decision, batched, compare_term, merged, transactions_of
from penstock.errors import ErrorCode
from penstock.host.metadata_store import Compare, Delete, Put
from tests.unit.controller.controller_support import StoredCluster, cluster_of, refusal


def compare(number: int) -> Compare:
    return Compare(f"/{number}", number)


def small(number: int, *more: Compare) -> Decision:
    return Decision((*more, compare(number)), (Put(f"/{number}", b""),))


def test_what_fits_is_one_transaction() -> None:
    decision = Decision((compare(1),), (Delete("/1"),), tuple(Put(f"/p{n}", b"") for n in range(3)))
    assert transactions_of(decision, 4) == [Decision(decision.compares, decision.all_changes)]


def test_what_makes_it_count_comes_last_and_every_piece_compares_all() -> None:
    decision = Decision(
        (compare(1), compare(2)), (Delete("/1"),), tuple(Put(f"/p{n}", b"") for n in range(7))
    )
    cut = transactions_of(decision, 3)
    assert [len(piece.changes) for piece in cut] == [3, 3, 1, 1]
    assert {piece.compares for piece in cut} == {decision.compares}
    assert cut[-1].changes == decision.changes
    assert [change for piece in cut[:-1] for change in piece.changes] == list(decision.prepared)


def test_small_decisions_fill_transactions_and_shared_comparisons_count_once() -> None:
    term = Compare("/controller", 9)
    groups = list(batched((small(number, term) for number in range(10)), 5))
    assert [len(group) for group in groups] == [4, 4, 2]
    joined = merged(groups[0])
    assert len(joined.compares) == 5
    assert len(joined.changes) == 4
    assert list(batched([], 5)) == []


def test_a_cluster_without_a_controller_decides_nothing() -> None:
    cluster = StoredCluster()
    assert compare_term(cluster.image) == (), "an empty store is an embedded broker's"
    cluster.join(1)
    assert refusal(lambda: compare_term(cluster.image)).code == ErrorCode.NOT_CONTROLLER


def test_the_term_is_another_with_every_controller() -> None:
    cluster = cluster_of(1, 2)
    assert compare_term(cluster.image) == (Compare("/penstock/c/controller", 2),)
