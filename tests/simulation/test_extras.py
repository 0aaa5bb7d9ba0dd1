"""What some seeds have beside the plain plan: each extra is drawn, does something, and breaks no promise."""

import pytest

from penstock.metadata.facts import GROUP_TOPIC
from penstock.sim.cluster.cluster import SimCluster
from penstock.sim.cluster.compacted_ledger import CompactedLedger
from penstock.sim.cluster.extras import NO_EXTRAS, WITHOUT_OF_EXTRAS, Extras, drawn_extras
from penstock.sim.cluster.plan import Fault, Kind, drawn
from penstock.sim.run import run_cluster

SEED = 9_300


def run_with(extras: Extras, *faults: Fault) -> SimCluster:
    quiet = drawn(SEED, brokers=3, seconds=15.0)
    return run_cluster(quiet._replace(faults=faults, extras=extras, members=2, segment_ms=500))


def test_extras_leave_the_plain_plan_as_it_is() -> None:
    plan = drawn(SEED)
    assert plan.without("extras") == plan._replace(extras=NO_EXTRAS)


@pytest.mark.parametrize("name", WITHOUT_OF_EXTRAS)
def test_a_hundred_seeds_draw_every_extra(name: str) -> None:
    extras = [drawn_extras(seed) for seed in range(1, 101)]
    assert 0 < sum(each != each.without(name) for each in extras) < 100


def test_records_are_deleted() -> None:
    cluster = run_with(Extras(deletes_records=True))
    assert cluster.struck["deleted-records"] > 5
    assert any(ledger.deleted for ledger in cluster.watching.ledgers.values())


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
    assert cluster.struck["cleaned"] > 5


def test_power_takes_what_only_memory_had_and_others_have_it() -> None:
    power = Fault(0, Kind.POWER, 6.0, 1.0, (1,))
    cluster = run_with(Extras(flushes_before_ack=False), power)
    assert cluster.struck[Kind.POWER] == 1
