"""How long a flush is delayed for the appends that are about to arrive."""

import pytest

from penstock.broker.storage.group_commit import DELAYS_BEFORE_TRUST, GroupCommit
from penstock.limits import FLUSHES_WITHOUT_DELAY_MAX, GROUP_COMMIT_APPENDS_MAX, GROUP_COMMIT_DELAY_MS_MAX

FLUSH_S = 0.0003


def after_flushes(count: int, *, appends: int, arrived: int = 0, took_s: float = FLUSH_S) -> GroupCommit:
    group = GroupCommit()
    for _ in range(count):
        group.flushed(took_s, appends=appends, arrived=arrived)
    return group


def flush(group: GroupCommit, appends: int, *, arrived: int = 0) -> bool:
    """One flush, of so many appends; whether it was delayed."""
    delay_s = group.delay_s(1)
    if delay_s:
        group.delayed(appends)
    group.flushed(FLUSH_S, appends=appends, arrived=arrived)
    return delay_s > 0


def test_a_producer_that_sends_one_request_at_a_time_is_never_delayed() -> None:
    group = after_flushes(50, appends=1)
    assert group.delay_s(1) == 0


def test_a_flush_waits_for_as_many_appends_as_were_unacknowledged() -> None:
    """Two were flushed and three arrived meanwhile: a client with five requests in flight."""
    group = after_flushes(50, appends=2, arrived=3)
    assert group.delay_s(4) > 0
    assert not group.is_complete(4)
    assert group.delay_s(5) == 0
    assert group.is_complete(5)


def test_a_delay_is_at_most_as_long_as_a_flush() -> None:
    group = after_flushes(200, appends=5)
    assert group.delay_s(1) == pytest.approx(FLUSH_S, rel=0.01)


def test_on_a_slow_disk_a_delay_has_a_limit_of_its_own() -> None:
    group = after_flushes(200, appends=5, took_s=0.02)
    assert group.delay_s(1) == GROUP_COMMIT_DELAY_MS_MAX / 1000


def test_a_crowd_of_producers_is_not_waited_for() -> None:
    group = after_flushes(50, appends=150, arrived=50)
    assert group.delay_s(GROUP_COMMIT_APPENDS_MAX - 1) > 0
    assert group.delay_s(GROUP_COMMIT_APPENDS_MAX) == 0


def test_the_first_flush_is_not_delayed() -> None:
    assert GroupCommit().delay_s(1) == 0


def test_delays_in_vain_become_rare() -> None:
    """Two requests were unacknowledged each time, and the second one never comes again."""
    group = after_flushes(50, appends=1, arrived=1)
    delayed = [flush(group, 1, arrived=1) for _ in range(1000)]
    assert 0 < sum(delayed[200:]) <= 800 // FLUSHES_WITHOUT_DELAY_MAX + 1


def test_one_delay_in_vain_among_many_useful_ones_costs_one_flush() -> None:
    group = after_flushes(50, appends=5)
    assert all(flush(group, 5) for _ in range(DELAYS_BEFORE_TRUST))
    assert flush(group, 4, arrived=1)
    assert [flush(group, 5) for _ in range(3)] == [False, True, True]


def test_delays_are_tried_again_when_a_client_has_become_predictable() -> None:
    group = after_flushes(50, appends=1, arrived=1)
    for _ in range(1000):
        flush(group, 1, arrived=1)
    later = [flush(group, 5) for _ in range(2 * FLUSHES_WITHOUT_DELAY_MAX)]
    assert all(later[-10:])
