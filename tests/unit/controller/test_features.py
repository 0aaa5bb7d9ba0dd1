"""The level of the cluster: raised when every broker knows the next one, and never lowered."""

import pytest

from penstock.controller.broker_lifecycle import unregister
from penstock.controller.decision import Decision
from penstock.controller.features import upgrade
from penstock.errors import CorruptData, ErrorCode
from penstock.metadata import levels
from tests.unit.controller.controller_support import StoredCluster, cluster_of, refusal

NEXT = {levels.FEATURE: 2}


def next_release_of(*broker_ids: int) -> StoredCluster:
    """Brokers of this release, seen by one of the next."""
    cluster = cluster_of(*broker_ids)
    cluster.newest = 2
    return cluster


def raised(cluster: StoredCluster, level: int) -> Decision:
    return upgrade(cluster.image, level, newest=cluster.newest)


def join_again(cluster: StoredCluster, broker_id: int, **facts: object) -> None:
    cluster.end_session(broker_id)
    cluster.join(broker_id, f"again-{broker_id}", **facts)


def test_a_cluster_without_a_level_is_at_the_oldest() -> None:
    assert StoredCluster().image.level == 1


def test_every_broker_has_to_know_the_next_level_also_one_that_is_away() -> None:
    cluster = next_release_of(1, 2, 3)
    join_again(cluster, 2, features=NEXT)
    cluster.end_session(3)
    error = refusal(lambda: raised(cluster, 2))
    assert error.code is ErrorCode.INVALID_UPDATE_VERSION
    assert error.detail.endswith("1, 3.")
    join_again(cluster, 1, features=NEXT)
    cluster.commit(unregister(cluster.image, 3))
    cluster.commit(raised(cluster, 2))
    assert cluster.image.level == 2
    assert cluster.read_afresh().level == 2


def test_a_broker_of_the_release_before_joins_until_then_and_not_after() -> None:
    cluster = next_release_of(1)
    join_again(cluster, 1, features=NEXT)
    cluster.join(2)  # of the release before
    cluster.end_session(2)
    cluster.commit(unregister(cluster.image, 2))
    cluster.commit(raised(cluster, 2))
    error = refusal(lambda: cluster.join(2))
    assert error.code is ErrorCode.UNSUPPORTED_VERSION
    cluster.join(2, features=NEXT)


def test_who_joins_while_the_level_is_raised_is_seen_or_refused() -> None:
    cluster = next_release_of(1)
    join_again(cluster, 1, features=NEXT)
    raising = raised(cluster, 2)
    joining = cluster.joining(2)
    cluster.commit(raising)
    assert not cluster.attempt(joining)

    cluster = next_release_of(1, 2)
    join_again(cluster, 1, features=NEXT)
    join_again(cluster, 2, features=NEXT)
    raising = raised(cluster, 2)
    join_again(cluster, 2)  # went back to the release before
    assert not cluster.attempt(raising)


def test_there_is_no_way_back_and_none_to_what_nobody_knows() -> None:
    cluster = next_release_of(1)
    join_again(cluster, 1, features=NEXT)
    cluster.commit(raised(cluster, 2))
    assert not raised(cluster, 2).changes
    assert "cannot be lowered" in refusal(lambda: raised(cluster, 1)).detail
    assert "1 to 2" in refusal(lambda: raised(cluster, 3)).detail


def test_a_release_refuses_a_level_before_it_reads_anything_of_it() -> None:
    cluster = next_release_of(1)
    join_again(cluster, 1, features=NEXT)
    cluster.commit(raised(cluster, 2))
    cluster.newest = 1
    with pytest.raises(CorruptData, match=r"at level 2, and this release of Penstock knows 1 to 1"):
        cluster.read_afresh()
