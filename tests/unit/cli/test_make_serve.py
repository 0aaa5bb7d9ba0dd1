"""`make serve` for the first time: somebody waits, and is told for what."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def make(folder: Path) -> list[str]:
    """What it says when it installs, with an installer that does nothing."""
    settings = ("MAKE_VENV=mkdir -p .venv", "INSTALL=true", f"PYTHON={sys.executable}")
    done = subprocess.run(
        ["make", ".venv/.broker", *settings], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stderr.splitlines()


def test_installing_is_announced_and_its_end_is_told_and_later_nothing_is_said(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)

    announced, ended = make(tmp_path)

    assert announced.startswith("installing Penstock and what it needs into .venv")
    assert ended == "installed"
    assert make(tmp_path) == []
