"""Replicas that are being added are copied no faster than they may be."""

import pytest

from penstock.controller.reassignment import Reassignment, reassign
from penstock.limits import REPLICA_WAIT_MS
from penstock.replication.fetch_session_handler import FetchSessionHandler, Replica
from penstock.replication.throttle import Allowance, Throttle, is_being_added
from penstock.types import TopicId
from tests.unit.controller.controller_support import cluster_of
from tests.unit.controller.scenarios import shrink
from tests.unit.replication.replica_support import FOLLOWER, LEADER, follower_on, new_log

RATE = 1_000


def test_over_time_the_rate_holds_whatever_one_answer_brings() -> None:
    throttle, now, copied = Throttle(), 100.0, 0
    while now < 200.0:
        allowance = throttle.allowance(RATE, now)
        assert allowance.bytes_max == RATE
        if allowance.since > now:
            now = allowance.since
            continue
        throttle.spend(7_300, RATE, now)
        copied += 7_300
    assert copied == pytest.approx(100 * RATE, rel=0.08)


def test_a_higher_rate_takes_effect_within_a_second() -> None:
    throttle = Throttle()
    throttle.spend(10_000_000, RATE, 100.0)
    assert throttle.allowance(RATE, 100.0).since == 101.0
    assert throttle.allowance(100 * RATE * RATE, 101.0).since < 101.2


def test_what_is_held_back_is_not_asked_for_until_then() -> None:
    held, free = Replica(TopicId(b"orders----------"), 0), Replica(TopicId(b"orders----------"), 1)
    plan = FetchSessionHandler(
        LEADER,
        lambda topic_id, index: follower_on(new_log()),
        allow=lambda replica, now: Allowance(5.0 if replica == held else now, 99),
    )
    plan.follow(held)
    plan.follow(free)
    full = REPLICA_WAIT_MS
    for now, expected, wait_ms in ((1.0, [1], full), (4.75, [1], 250), (5.0, [0], full)):
        request = plan.request(FOLLOWER, 70, now)
        assert request is not None
        named = [params for topic in request.topics for params in topic.partitions]
        assert [params.partition for params in named][:1] == expected
        assert {params.partition_max_bytes for params in named} <= {99}
        assert request.max_wait_ms == wait_ms, "it is not held back for longer than it must be"
    assert plan.next_delayed_at() is None


def test_only_a_replica_that_is_added_and_not_yet_in_sync_is_held_to_a_rate() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.create("t", factor=1)
    (old,) = cluster.state().replicas
    new = next(node for node in (1, 2, 3) if node != old)
    topic_id = cluster.image.topics["t"].id
    assert not is_being_added(cluster.image, topic_id, 0, old)
    cluster.commit(reassign(cluster.image, Reassignment("t", 0, (new, old))))
    assert is_being_added(cluster.image, topic_id, 0, new)
    assert not is_being_added(cluster.image, topic_id, 0, old)
    shrink(cluster, old, new)
    assert not is_being_added(cluster.image, topic_id, 0, new)
    assert not is_being_added(cluster.image, topic_id, 7, new)
    assert not is_being_added(cluster.image, TopicId(bytes(16)), 0, new)
