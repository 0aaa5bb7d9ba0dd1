"""`make serve` and `make cluster` for the first time: somebody waits, and is told for what."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(target: str, folder: Path) -> tuple[list[str], list[str]]:
    """What is to be installed, and what is said, with an installer that does nothing."""
    settings = ("MAKE_VENV=mkdir -p .venv", "INSTALL=echo", f"PYTHON={sys.executable}")
    # As from a shell, although `make test` may have started us.
    ours = {"ARGS", "SEED", "FAULTS", "JOBS"}
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name not in ours
    }
    done = subprocess.run(
        ["make", target, *settings],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_installing_is_announced_and_its_end_is_told_and_later_nothing_is_said(checkout: Path) -> None:
    _, (announced, ended) = make(".venv/.broker", checkout)
    assert announced.startswith("installing Penstock and what it needs into .venv")
    assert ended == "installed"
    assert make(".venv/.broker", checkout)[1] == []


def test_help_says_how_to_start_where_the_port_is_taken(checkout: Path) -> None:
    help_lines, _ = make("help", checkout)
    (serve,) = [line for line in help_lines if line.startswith("make serve ")]
    assert 'ARGS="--kafka 127.0.0.1:0"' in serve


def test_a_cluster_comes_with_an_etcd(checkout: Path) -> None:
    make(".venv/.broker", checkout)
    program = checkout / ".venv" / "bin" / "penstock"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho penstock "$@"\n')
    program.chmod(0o755)

    installed, said = make("cluster", checkout)

    assert installed == ["--editable .[etcd]", "penstock cluster up"]
    assert said == ["installing an etcd, which several brokers need, into .venv", "installed"]
