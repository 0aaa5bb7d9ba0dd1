"""What some seeds have beside the plain plan: each extra is drawn, does something, and breaks no promise."""

import pytest

from penstock.broker.replication.damaged_replicas import DamagedReplicas
from penstock.metadata.cluster_image import GROUP_TOPIC
from penstock.sim.cluster.checks.compacted_ledger import CompactedLedger
from penstock.sim.cluster.cluster import CROWD_TOPIC, SimCluster
from penstock.sim.cluster.extras import CROWD, NO_EXTRAS, WITHOUT_OF_EXTRAS, Extras
from penstock.sim.cluster.faults.isolation import CHECKED
from penstock.sim.cluster.plan import (
    FIRST_OF_DELETIONS,
    FIRST_OF_EXTRAS,
    FIRST_OF_ISOLATIONS,
    KINDS_OF_EXTRAS,
    Fault,
    FaultKind,
    draw_plan,
)
from penstock.sim.run import run_cluster
from penstock.sim.violation import InvariantViolation

SEED = 9_300


def run_with(extras: Extras, *faults: Fault) -> SimCluster:
    quiet = draw_plan(SEED, brokers=3, seconds=15.0)
    return run_cluster(quiet._replace(faults=faults, extras=extras, members=2, segment_ms=500))


def test_extras_leave_the_plain_plan_as_it_is() -> None:
    plan = draw_plan(SEED, brokers=3)
    plain = tuple(fault for fault in plan.faults if fault.kind not in KINDS_OF_EXTRAS)
    assert plan.without("extras") == plan._replace(extras=NO_EXTRAS, faults=plain)


@pytest.mark.parametrize("name", WITHOUT_OF_EXTRAS)
def test_a_hundred_seeds_draw_every_extra(name: str) -> None:
    extras = [draw_plan(seed).extras for seed in range(1, 101)]
    assert 0 < sum(each != each.without(name) for each in extras) < 100


def test_records_are_deleted() -> None:
    cluster = run_with(Extras(deletes_records=True))
    assert cluster.fault_counts["deleted-records"] > 5
    assert any(ledger.deleted for ledger in cluster.watching.ledgers.values())


@pytest.mark.parametrize("number", range(4))
def test_power_fails_when_a_deletion_is_confirmed_or_missed(number: int) -> None:
    """With other fault numbers a follower was cut off before the deletion and joins again, or was not."""
    crash = Fault(FIRST_OF_DELETIONS + number, FaultKind.DELETION_CRASH, 4.0, 1.0, (1 + number % 3,))
    quiet = draw_plan(SEED, brokers=3, seconds=25.0)._replace(lag_ms=1_000, members=0)
    extras = Extras(deletes_records=True, crashes_at_deletions=True)
    cluster = run_cluster(quiet._replace(faults=(crash,), extras=extras))
    assert cluster.fault_counts[FaultKind.DELETION_CRASH] == 1


@pytest.mark.parametrize("extras", [Extras(retention_ms=3_000), Extras(retention_bytes=1_000)])
def test_retention_removes_records(extras: Extras) -> None:
    cluster = run_with(extras)
    assert any(ledger.start_max for ledger in cluster.watching.ledgers.values())


def test_the_topic_of_the_coordinator_is_compacted() -> None:
    cluster = run_with(Extras(compacts=True))
    compacted = [
        ledger for ledger in cluster.watching.ledgers.values() if isinstance(ledger, CompactedLedger)
    ]
    assert {ledger.name for ledger in compacted} == {f"{GROUP_TOPIC}-0", f"{GROUP_TOPIC}-1"}
    assert cluster.fault_counts["cleaned"] > 5


def test_power_takes_what_only_memory_had_and_others_have_it() -> None:
    power = Fault(0, FaultKind.POWER, 6.0, 1.0, (1,))
    cluster = run_with(Extras(flushes_before_ack=False), power)
    assert cluster.fault_counts[FaultKind.POWER] == 1


def test_a_plan_without_extras_has_no_faults_of_theirs() -> None:
    rots = next(plan for plan in map(draw_plan, range(1, 100)) if plan.extras.rots)
    crashes = next(plan for plan in map(draw_plan, range(1, 100)) if plan.extras.crashes_at_deletions)
    isolates = next(plan for plan in map(draw_plan, range(1, 100)) if plan.extras.isolates)
    for plan, kind, name in (
        (rots, FaultKind.ROT, "rot"),
        (crashes, FaultKind.DELETION_CRASH, "deletion-crashes"),
        (crashes, FaultKind.DELETION_CRASH, "deletions"),
        (isolates, FaultKind.ISOLATE, "isolations"),
    ):
        assert any(fault.kind is kind for fault in plan.faults)
        assert not any(fault.kind is kind for fault in plan.without(name).faults)
        assert not any(fault.kind in KINDS_OF_EXTRAS for fault in plan.without("extras").faults)


@pytest.mark.parametrize("brokers", [3, 4, 5])
@pytest.mark.parametrize("lag_ms", [1_000, 30_000])
def test_writes_go_on_while_a_leader_reaches_no_other_broker(brokers: int, lag_ms: int) -> None:
    """A violation is raised for a producer that waits for long. With a short lag the leader has removed its
    followers from the in-sync replicas before they report it."""
    quiet = draw_plan(SEED, brokers=brokers, seconds=30.0)._replace(lag_ms=lag_ms, partitions=3)
    isolation = Fault(FIRST_OF_ISOLATIONS, FaultKind.ISOLATE, 6.0, 1.0, (1,))
    cluster = run_cluster(quiet._replace(faults=(isolation,), changes_minimum=False, extras=NO_EXTRAS))
    assert cluster.fault_counts[CHECKED] == 1


@pytest.mark.parametrize("number", range(6))
def test_a_flipped_bit_is_found_and_others_lead(number: int) -> None:
    """With other fault numbers the bit is read, looked up, or not; and the leader dies or not."""
    rot = Fault(FIRST_OF_EXTRAS + number, FaultKind.ROT, 6.0, 1.0, (1 + number % 3,))
    assert run_with(Extras(rots=True), rot).fault_counts[FaultKind.ROT] == 1


def test_a_damaged_broker_that_leads_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told of the damage. Of the three brokers one leads: its partition stays offline. A follower
    falls behind, and leaves the in-sync replicas by that."""
    monkeypatch.setattr(DamagedReplicas, "on_damage", lambda *_: None)
    violations = []
    for node in (1, 2, 3):
        try:
            run_with(Extras(rots=True), Fault(FIRST_OF_EXTRAS, FaultKind.ROT, 6.0, 1.0, (node,)))
        except InvariantViolation as violation:
            violations.append(str(violation))
    assert len(violations) == 1
    assert "not handed over within 30 s" in violations[0]


def test_a_partition_that_is_offline_for_no_reason_is_noticed() -> None:
    plan = draw_plan(SEED, brokers=3, seconds=8.0).without("extras")._replace(faults=())
    cluster = SimCluster(plan)

    def go_offline() -> None:
        running = cluster.nodes[1].running
        assert running is not None
        next(iter(running.storage.partitions)).go_offline("for no reason")

    cluster.loop.call_later(6.0, go_offline)
    with pytest.raises(InvariantViolation, match="is offline on node-1 for no reason"):
        cluster.run()


def test_jobs_that_are_interrupted_break_no_promise() -> None:
    """Readers ask followers, too, while those truncate what a leader that died has left on them."""
    faults = [Fault(number, FaultKind.KILL, 4.0 + number, 0.5, (1 + number % 3,)) for number in range(8)]
    run_with(Extras(job_steps=0.4, follower_reads=0.6, cold_reads=0.8), *faults)


def test_one_seed_is_one_history_with_all_extras() -> None:
    extras = Extras(deletes_records=True, compacts=True, job_steps=0.4, follower_reads=0.3, cold_reads=0.5)
    kill = Fault(0, FaultKind.KILL, 5.0, 1.0, (2,))
    assert run_with(extras, kill).hash == run_with(extras, kill).hash


@pytest.mark.parametrize("is_all_classic", [True, False])
def test_members_of_the_classic_protocol_read_and_commit(is_all_classic: bool) -> None:
    """Alone, and in one group with members of the new protocol, through the loss of a coordinator."""
    kills = [Fault(number, FaultKind.KILL, 5.0 + 3 * number, 1.0, (1 + number,)) for number in range(3)]
    cluster = run_with(Extras(classic=2, is_all_classic=is_all_classic), *kills)
    topic = cluster.truth.image.topics[GROUP_TOPIC]
    assert cluster.places.acknowledged
    assert len(topic.partitions) == 2


def test_hundreds_of_partitions_are_followed() -> None:
    """After a broker was killed every replica of each is in sync again: the run itself asks for that."""
    cluster = run_with(Extras(crowd=CROWD), Fault(0, FaultKind.KILL, 6.0, 1.0, (1,)))
    topic = cluster.truth.image.topics[CROWD_TOPIC]
    assert len(topic.partitions) == CROWD
    written = [index for index in range(CROWD) if cluster.ledger(topic.id, topic.name, index).end]
    assert len(written) > 5
