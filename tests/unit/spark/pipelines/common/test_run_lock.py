"""Two runs of the same are refused; one that died is in nobody's way."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import CommandFailed
from penstock.spark.pipelines.common.run_lock import run_lock

HOLDER = """
import sys
from pathlib import Path
from penstock.spark.pipelines.common.run_lock import run_lock
with run_lock(Path(sys.argv[1]), "stage", ""):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_run_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with run_lock(tmp_path, "stage", "Wait for it"):
        with (
            pytest.raises(CommandFailed, match=r"another run of this stage is under way: .* Wait for it"),
            run_lock(tmp_path, "stage", "Wait for it"),
        ):
            raise AssertionError
        with run_lock(tmp_path.parent, "stage", ""):
            pass
    with run_lock(tmp_path, "stage", ""):
        pass


def test_a_run_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(CommandFailed), run_lock(tmp_path, "stage", ""):
            raise AssertionError
        holder.kill()
        holder.wait()
    with run_lock(tmp_path, "stage", ""):
        pass
