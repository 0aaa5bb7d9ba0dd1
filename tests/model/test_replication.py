"""Three replicas under crashes, power failures, lost and doubled messages, fencing, and wiped disks.

Nothing that was shown is lost or shown otherwise; whoever may lead has all of it on disk; what was confirmed
as deleted stays deleted; and when the trouble is over all logs are the same. Each rule that this rests on
is broken once, and that is noticed.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import CorruptData
from penstock.log.partition_log import PartitionLog
from penstock.log.truncation import FullTruncation, Truncation
from penstock.protocol.messages.fetch import EpochEndOffset
from penstock.replication.following import FollowerRole
from penstock.replication.leading import FollowerFetchState, LeaderRole
from penstock.replication.partition import Partition
from penstock.types import Offset
from tests.model.replication_model import NOBODY, Cluster, Node, run

STEPS = 600


def test_nothing_that_was_shown_is_lost() -> None:
    clusters = [run(seed, STEPS) for seed in range(60)]
    counts = sum((cluster.counts for cluster in clusters), Counter[str]())
    assert sum(len(cluster.acknowledged) for cluster in clusters) > 200
    assert sum(cluster.oracle.state.leader_epoch for cluster in clusters) > 120
    assert min(counts["Truncation"], counts["FullTruncation"], counts["wipe"]) > 9, counts
    assert min(counts["delete_records"], counts["deleted"]) > 9, counts


def run_many(seeds: int) -> None:
    for seed in range(seeds):
        run(seed, STEPS)


# Rules, broken


def cut_to_high_watermark(self: FollowerRole, diverging: EpochEndOffset) -> Truncation | FullTruncation:
    log: PartitionLog = self._log
    high_watermark_before = max(
        self._high_watermark_of_leader, self.high_watermark_before, log.log_start_offset
    )
    offset = min(high_watermark_before, log.log_end_offset)
    return Truncation(log, offset) if offset > log.log_start_offset else FullTruncation(log, offset)


def count_committed_only(self: LeaderRole) -> None:
    self._maximal = frozenset(self._state.isr)


def join_at_high_watermark(self: LeaderRole, fetched: FollowerFetchState) -> bool:
    is_admitted = fetched.broker_epoch == fetched.admitted_epoch
    return self._proposal is None and fetched.offset >= self.high_watermark and is_admitted


def show_with_too_few(self: LeaderRole) -> bool:
    return True


def ask_before_flush(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *, flushed_only: original(self, flushed_only=False)


def show_before_flush(self: Partition) -> None:
    if self.leading is not None:
        self._advance_high_watermark(self.leading.reached(self.log.log_end_offset))


def report_any_start(original: Callable[..., Any]) -> Callable[..., Any]:
    def fetch_position(self: FollowerRole, *, flushed_only: bool) -> object:
        asked = original(self, flushed_only=flushed_only)
        return asked if asked is None else asked._replace(log_start_offset=self._log.log_start_offset)

    return fetch_position


def ask_in_sync_only(self: LeaderRole, offset: Offset) -> bool:
    members = (self._followers.get(member) for member in self._maximal)
    return all(member is None or member.log_start >= offset for member in members)


def join_with_any_start(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, fetched: original(self, fetched._replace(log_start=self.own_start))


def agree_always(self: Partition, params: object) -> None:
    return None


MUTANTS: dict[str, tuple[type, str, object]] = {
    "a follower is cut to its high watermark": (FollowerRole, "_truncate", cut_to_high_watermark),
    "a pending in-sync set is forgotten": (LeaderRole, "_update_maximal_isr", count_committed_only),
    "a replica joins at the high watermark": (LeaderRole, "may_join", join_at_high_watermark),
    "too few in sync are enough": (LeaderRole, "meets_min_isr", property(show_with_too_few)),
    "a follower acknowledges before its flush": (
        FollowerRole,
        "fetch_position",
        ask_before_flush(FollowerRole.fetch_position),
    ),
    "a leader shows before its flush": (Partition, "advance", show_before_flush),
    "a follower reports a start that is not stored": (
        FollowerRole,
        "fetch_position",
        report_any_start(FollowerRole.fetch_position),
    ),
    "a deletion leaves out eligible leaders": (LeaderRole, "is_deleted", ask_in_sync_only),
    "a replica joins with an older start": (
        LeaderRole,
        "may_join",
        join_with_any_start(LeaderRole.may_join),
    ),
    "histories are not compared": (Partition, "diverging", agree_always),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, broken = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, broken)
    with pytest.raises((AssertionError, CorruptData)):
        run_many(200)


# A trap that chance seldom finds


def kip_320(cluster: Cluster) -> None:
    """A follower of epoch 0 acknowledges to the leader of epoch 2, and hears of epoch 1 afterwards.

    Broker 0 leads and has a record that 1 has not; 2 has it and is not in sync. 1 leads in epoch 1 and
    writes nothing; 0 leads again in epoch 2, from among those who have all that was shown.
    """
    cluster.is_healed = True  # the network loses nothing here
    old, other, follower = cluster.nodes
    cluster.oracle.fence(2)
    cluster.oracle.admit(2)
    follower.epoch = dict(cluster.oracle.state.live)[2]
    old.advance_image(len(cluster.oracle.history) - 1)
    follower.advance_image(len(cluster.oracle.history) - 1)
    old.produce(cluster.acknowledge)
    settle(cluster, follower, store_is_away=True)
    cluster.oracle.fence(0)
    in_epoch_1 = len(cluster.oracle.history) - 1
    other.advance_image(in_epoch_1)
    old.crash(loses_power=False)
    old.start()
    cluster.oracle.fence(1)
    old.advance_image(len(cluster.oracle.history) - 1)
    assert (cluster.oracle.state.leader, cluster.oracle.state.leader_epoch) == (0, 2)
    settle(cluster, follower)
    settle(cluster, old)
    follower.advance_image(in_epoch_1)
    settle(cluster, follower)


def settle(cluster: Cluster, node: Node, *, store_is_away: bool = False) -> None:
    for _ in range(4):
        for each in (cluster.nodes[0], node):
            each.begin_flush()
            each.end_flush()
        node.fetch()
        while cluster.network:
            if store_is_away:
                cluster.network = [message for message in cluster.network if message.to != NOBODY]
            cluster.deliver()
        node.finish_truncation()
        cluster.check()


def test_a_follower_of_an_earlier_epoch_is_not_counted() -> None:
    kip_320(Cluster(0, min_isr=2))


def test_without_the_check_of_epochs_that_loses_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Partition, "check_epoch", lambda self, epoch: None)
    with pytest.raises(AssertionError, match="may lead and has"):
        kip_320(Cluster(0, min_isr=2))
