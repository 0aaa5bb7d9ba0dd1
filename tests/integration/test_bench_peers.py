"""A short comparison with real servers: Penstock and one peer, where there is one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.contenders import NATS, REDIS

ROOT = Path(__file__).parents[2]
CANDIDATES = {"nats-always": NATS, "redis-always": REDIS}
"""The peers that start fastest. One is compared: the first that is here."""
OURS = "penstock-before-ack"
RUN_S_MAX = 100


def chosen_peer() -> str:
    return next((name for name, peer in CANDIDATES.items() if peer.missing() is None), next(iter(CANDIDATES)))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """JSON and page of a run of one question."""
    folder = tmp_path_factory.mktemp("peers")
    command = [sys.executable, "-m", "benchmarks.peers", "--quick", "--only", "latency", "--out", str(folder)]
    command += ["--peer", OURS, "--peer", chosen_peer()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    assert done.returncode == 0, done.stderr
    (as_json,), (as_page,) = folder.glob("*.json"), folder.glob("*.html")
    return json.loads(as_json.read_text()), as_page.read_text()


def contenders_with_figures(report: dict[str, Any]) -> set[str]:
    return {name for figure in report["figures"] for name in figure["contenders"]}


def test_a_contender_has_figures_or_is_reported_as_missing(reports: tuple[dict[str, Any], str]) -> None:
    report, as_page = reports
    missing = {each["contender"] for each in report["missing"]}
    assert contenders_with_figures(report) | missing == {OURS, chosen_peer()}
    assert OURS not in missing
    assert all(f"<strong>{name}</strong> NOT MEASURED" in as_page for name in missing)


def test_a_peer_that_is_here_waits_for_its_disk_as_we_do(reports: tuple[dict[str, Any], str]) -> None:
    if all(peer.missing() for peer in CANDIDATES.values()):
        pytest.skip("; ".join(f"{name} is not here: {peer.missing()}" for name, peer in CANDIDATES.items()))
    report, _ = reports
    (p50,) = (figure for figure in report["figures"] if figure["figure"] == "produce and wait, p50")
    assert p50["contenders"][chosen_peer()]["median"] > 0
