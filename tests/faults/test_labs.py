"""What the two labs do to machines really happens to them. Where a host cannot do it the test is skipped."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOT_POSSIBLE = 2
SLOW_S = 0.3
"""There and back."""


@pytest.fixture(scope="module", params=["namespaces", "proxies"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    words = [sys.executable, "-m", "tests.faults.lab_probe", request.param]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    if done.returncode == NOT_POSSIBLE:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def has_answered(answer: float | str) -> bool:
    return isinstance(answer, float)


def test_machines_hear_each_other_until_they_are_cut_off_and_then_again(found: dict[str, Any]) -> None:
    assert all(map(has_answered, found["well"]))
    assert found["one to two"] == "answered"
    for kind in ("cut from all", "cut from one", "cut one way"):
        assert found[kind][0] == "silent", f"{kind}: neither answered nor told"
        assert all(map(has_answered, found[f"{kind}, healed"])), kind


def test_who_is_cut_off_from_one_is_heard_by_the_others(found: dict[str, Any]) -> None:
    assert found["cut from all"][2] == "silent"
    assert all(has_answered(found[kind][1]) for kind in ("cut from all", "cut from one", "cut one way"))
    assert all(has_answered(found[kind][2]) for kind in ("cut from one", "cut one way"))


def test_a_slow_machine_is_slow_and_the_others_are_not(found: dict[str, Any]) -> None:
    fast, slow = found["slow"]
    assert slow >= SLOW_S
    assert fast < slow
    assert found["slow, healed"] < slow


def test_a_connection_that_is_reset_is_told_so_and_a_new_one_works(found: dict[str, Any]) -> None:
    if "connections reset" in found["cannot"]:
        pytest.skip("this lab does not reset connections")
    told, answer = found["reset"]
    assert told == "broken"
    assert has_answered(answer)


def test_who_is_dead_refuses_connections(found: dict[str, Any]) -> None:
    assert found["killed"] == "refused"


def test_a_full_disk_takes_nothing_more(found: dict[str, Any]) -> None:
    if "disk full" in found["cannot"]:
        pytest.skip("this lab has no disks of its own")
    assert found["disk"]["full"] == "No space left on device"


def test_after_a_loss_of_power_there_is_what_was_synced(found: dict[str, Any]) -> None:
    if "power loss" in found["cannot"]:
        pytest.skip("this lab's disks do not lose power")
    assert found["disk"]["after power loss"] == "synced"
