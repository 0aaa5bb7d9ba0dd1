"""Deadlines that move, and the heap behind them."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.timers import Timers


def test_expired_keys_come_earliest_first_and_once() -> None:
    timers: Timers[str] = Timers()
    timers.set("late", 3.0)
    timers.set("early", 1.0)
    assert timers.next_deadline() == 1.0
    assert timers.pop_expired(5.0) == ["early", "late"]
    assert timers.pop_expired(5.0) == []
    assert timers.next_deadline() is None


def test_a_deadline_that_moves_later_expires_only_then() -> None:
    timers: Timers[str] = Timers()
    timers.set("session", 1.0)
    timers.set("session", 10.0)
    assert timers.pop_expired(5.0) == []
    assert timers.pop_expired(10.0) == ["session"]


def test_what_is_not_looked_at_stays_due_and_may_still_be_put_off() -> None:
    timers: Timers[int] = Timers()
    for number in range(5):
        timers.set(number, float(number))
    assert timers.pop_expired(10.0, 2) == [0, 1]
    assert timers.next_deadline() == 2.0
    timers.set(3, 20.0)
    assert timers.pop_expired(10.0, 2) == [2]
    assert timers.pop_expired(10.0, 2) == [4]
    assert timers.next_deadline() == 20.0


def test_a_cancelled_timer_never_expires_and_is_not_waited_for() -> None:
    timers: Timers[str] = Timers()
    timers.set("session", 1.0)
    timers.cancel("session")
    assert timers.next_deadline() is None
    assert timers.pop_expired(2.0) == []


def test_moving_and_cancelling_for_ever_needs_no_more_memory() -> None:
    timers: Timers[int] = Timers()
    for round_ in range(50_000):
        timers.set(round_ % 7, 1_000_000.0 - round_)
        if round_ % 3 == 0:
            timers.cancel(round_ % 7)
    assert len(timers._heap) <= 1_001


steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 40)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("take"), st.just(0), st.integers(0, 40)),
    ),
    max_size=60,
)


@given(steps)
def test_timers_agree_with_a_dict(steps: list[tuple[str, int, int]]) -> None:
    timers: Timers[int] = Timers()
    model: dict[int, int] = {}
    for action, key, time in steps:
        if action == "set":
            timers.set(key, float(time))
            model[key] = time
        elif action == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            expired = {key for key, deadline in model.items() if deadline <= time}
            assert set(timers.pop_expired(float(time))) == expired
            model = {key: deadline for key, deadline in model.items() if key not in expired}
        next_deadline = timers.next_deadline()
        assert (next_deadline is None) == (not model)
        assert next_deadline is None or next_deadline <= min(model.values())
