"""A few faults against real processes, in each lab: `make faults` does many more.

Half a minute each: the cluster starts, bears load, recovers, and is read whole.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_POSSIBLE = 2
CUT_S = 9.0
"""How long a broker is cut off from the others."""


def run(lab: str, *kinds: str) -> str:
    words = [
        "--lab",
        lab,
        "--faults",
        str(len(kinds)),
        *(word for kind in kinds for word in ("--only", kind)),
    ]
    command = [sys.executable, "-m", "tools.faults", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    if done.returncode == NOT_POSSIBLE:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(240)
def test_a_cluster_keeps_its_promises_under_some_faults() -> None:
    told = run("namespaces", "disk full", "power loss of all")
    assert "anomalies      0" in told


@pytest.mark.timeout(240)
def test_writes_go_on_while_their_leader_is_cut_off_from_the_others() -> None:
    told = run("namespaces", "cut off from brokers")
    assert "anomalies      0" in told
    found = re.search(r"cut off from brokers +1 +([0-9.]+)", told)
    assert found is not None
    assert float(found[1]) < CUT_S, "writes waited for the end of the cut"


@pytest.mark.timeout(240)
def test_so_it_does_behind_proxies_where_there_are_no_namespaces() -> None:
    told = run("proxies", "kill", "slow link")
    assert "anomalies      0" in told
