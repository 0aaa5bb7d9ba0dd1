"""A virtual environment for each suite, with the client that it tests, apart from Penstock's own.

It is created once below .cache, and again when the requirements change.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_WRITTEN_WHEN_DONE = "requirements.txt"


def interpreter_with(folder: Path, requirements: Sequence[str]) -> Path:
    """The interpreter of the environment in `folder`, with these requirements installed."""
    program = folder / "bin" / "python"
    wanted = "\n".join(requirements) + "\n"
    done = folder / _WRITTEN_WHEN_DONE
    if done.exists() and done.read_text() == wanted:
        return program
    print(f"making {folder}", flush=True)
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    _run([str(program), "-m", "pip", "install", "--quiet", *requirements])
    done.write_text(wanted)
    return program


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)
