"""Which faults come, and what a slow link does to what is on it."""

from collections import Counter
from itertools import islice

from tools.faults.schedule import FAULTS, draw_steps
from tools.faults.slow_link import WAIT_S_MAX, Direction


def test_a_schedule_has_every_kind_as_often_and_depends_on_the_seed_alone() -> None:
    steps = list(islice(draw_steps(1, FAULTS), 2 * len(FAULTS)))
    assert Counter(step.fault.kind for step in steps) == {fault.kind: 2 for fault in FAULTS}
    assert steps == list(islice(draw_steps(1, FAULTS), 2 * len(FAULTS)))
    assert steps != list(islice(draw_steps(2, FAULTS), 2 * len(FAULTS)))


def test_frames_arrive_late_and_in_order() -> None:
    link = Direction(latency_s=0.15, bytes_per_s=1_000)
    link.enter(bytes(100), now=1.0)
    link.enter(b"x", now=1.0)
    assert link.arrived(1.2) == []
    assert link.arrived(1.2505) == [bytes(100)], "a tenth of a second for a hundred bytes, and the latency"
    assert link.arrived(1.26) == [b"x"]
    assert link.next_at is None


def test_what_would_wait_too_long_is_dropped() -> None:
    link = Direction(latency_s=0.0, bytes_per_s=1_000)
    for _ in range(5):
        link.enter(bytes(1_000), now=0.0)
    assert len(link.arrived(60.0)) == WAIT_S_MAX
