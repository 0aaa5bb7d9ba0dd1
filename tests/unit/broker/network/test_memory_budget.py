"""A budget that is shared: nobody gets more than there is, nobody is woken for nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.network.memory_budget import MemoryBudget


def test_what_does_not_fit_is_not_given() -> None:
    budget = MemoryBudget(100)
    assert budget.try_take(60)
    assert not budget.try_take(50)
    assert budget.try_take(40)


def test_the_first_of_all_may_take_even_more_than_there_is() -> None:
    budget = MemoryBudget(100)
    assert budget.try_take(150)
    assert not budget.try_take(1)


def test_it_is_short_when_three_quarters_are_gone() -> None:
    budget = MemoryBudget(100)
    budget.try_take(75)
    assert not budget.is_short
    budget.overdraw(1)
    assert budget.is_short


def test_who_waits_is_called_once_there_is_enough_and_it_is_theirs() -> None:
    budget, told = MemoryBudget(100), []
    budget.try_take(100)
    budget.wait(50, lambda: told.append("a"))
    budget.release(49)
    assert told == []
    budget.release(1)
    assert told == ["a"]
    assert not budget.try_take(1), "what was granted is taken"


def test_one_gift_serves_everybody_it_is_enough_for_in_the_order_of_asking() -> None:
    budget, told = MemoryBudget(100), []
    budget.try_take(100)
    for name, need in (("a", 30), ("b", 30), ("c", 50), ("d", 10)):
        budget.wait(need, lambda name=name: told.append(name))  # type: ignore[misc]
    budget.release(100)
    assert told == ["a", "b"], "d must not pass c for ever"
    budget.release(60)
    assert told == ["a", "b", "c", "d"]


def test_who_left_is_not_called() -> None:
    budget, told = MemoryBudget(100), []
    budget.try_take(100)

    def first() -> None:
        told.append("first")

    budget.wait(10, first)
    budget.wait(10, lambda: told.append("second"))
    budget.forget(first)
    budget.forget(first)
    budget.release(100)
    assert told == ["second"]


def test_giving_back_more_than_was_taken_is_a_mistake() -> None:
    budget = MemoryBudget(100)
    budget.try_take(10)
    with pytest.raises(AssertionError, match="more was given back"):
        budget.release(11)


@given(st.lists(st.tuples(st.integers(1, 100), st.booleans()), max_size=60))
def test_grants_never_exceed_the_total_and_nobody_is_forgotten(steps: list[tuple[int, bool]]) -> None:
    budget = MemoryBudget(100)
    held: list[int] = []
    waiting = 0

    def granted(need: int) -> None:
        nonlocal waiting
        waiting -= 1
        held.append(need)

    for need, gives_back in steps:
        if gives_back and held:
            budget.release(held.pop())
        elif budget.try_take(need):
            held.append(need)
        else:
            waiting += 1
            budget.wait(need, lambda need=need: granted(need))  # type: ignore[misc]
        assert sum(held) <= 100
    while held:
        budget.release(held.pop())
    assert waiting == 0
