"""A rolling upgrade to a release that knows another level, with real processes.

The next release is this one with one level more.
"""

import sys
from pathlib import Path

import pytest

from tests.integration.broker_process import penstock
from tests.integration.cluster_processes import ClusterProcesses, running_cluster

NEXT_RELEASE = (
    "import runpy; from penstock.metadata import levels; levels.NEWEST = 2;"
    "runpy.run_module('penstock', run_name='__main__', alter_sys=True)"
)


def said(cluster: ClusterProcesses, *words: str, node: int = 1) -> str:
    done = penstock(*words, "--bootstrap", cluster.brokers[node].bootstrap)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_a_cluster_is_upgraded_one_broker_after_the_other(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        cluster.create("orders")
        assert said(cluster, "cluster", "features") == "penstock.version: level 1, the newest\n"
        for node_id, broker in cluster.brokers.items():
            broker.stop()
            broker.program = [sys.executable, "-c", NEXT_RELEASE]
            broker.start()
            cluster.until_in_sync("orders", [1, 2, 3])
            said(cluster, "produce", "orders", "--value", str(node_id))
            assert said(cluster, "cluster", "features", node=node_id).startswith(
                "penstock.version: level 1, 2 is known"
            )
            if node_id == 2:
                refused = penstock("cluster", "features", "--upgrade", "--bootstrap", broker.bootstrap)
                assert refused.exit_code == 1
                assert refused.stderr.rstrip().endswith("gone for good: 3.")
        said(cluster, "cluster", "features", "--upgrade")
        assert said(cluster, "cluster", "features", node=3) == "penstock.version: level 2, the newest\n"
        _goes_back(cluster)
        assert said(cluster, "consume", "orders", "--format", "%v") == "1\n2\n3\n"


def _goes_back(cluster: ClusterProcesses) -> None:
    """The release before is refused now, with a sentence; the next one goes on with the same data."""
    broker = cluster.brokers[3]
    broker.stop()
    next_release, broker.program = broker.program, [sys.executable, "-m", "penstock"]
    with pytest.raises(AssertionError, match="at level 2, and this release of Penstock knows 1 to 1"):
        broker.start()
    assert "Traceback" not in broker.stderr
    broker.program = next_release
    broker.start()
    cluster.until_in_sync("orders", [1, 2, 3])
