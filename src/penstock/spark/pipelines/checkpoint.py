"""A checkpoint belongs to one pipeline with one input and one output; a note in it says which.

Spark would go on from the checkpoint of another topic, and fail in the middle or leave records out. So
before it is started, the note is compared with what is asked for now.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.errors import CommandFailed
from penstock.spark.lake import disk

NOTE: Final = "penstock.json"


def is_new(folder: Path) -> bool:
    """Whether no query was started from it."""
    return not (folder / "metadata").exists()


def claim(folder: Path, wanted: Mapping[str, str]) -> None:
    """Refuses a checkpoint that was made for something else. One that is new is ours from now on."""
    note = folder / NOTE
    if folder.exists() and not folder.is_dir():
        raise CommandFailed(f"the checkpoint {folder} is a file: name a folder")
    if not note.exists():
        _check_unclaimed(folder)
        try:
            disk.make_folder(folder)
            disk.create_once(note, json.dumps(dict(wanted)).encode())
        except OSError as problem:
            raise CommandFailed(f"cannot write to {folder}: {problem.strerror or problem}") from problem
    _compare(folder, _read(note), wanted)


def _check_unclaimed(folder: Path) -> None:
    if folder.is_dir() and not is_new(folder):
        raise CommandFailed(
            f"{folder} is the checkpoint of a query that is no pipeline of ours: name another"
        )


def _read(note: Path) -> dict[str, str]:
    try:
        found = json.loads(note.read_bytes())
    except ValueError as problem:
        raise CommandFailed(f"{note} cannot be read: {problem}") from problem
    return found if isinstance(found, dict) else {}


def _compare(folder: Path, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for name, value in wanted.items():
        if found.get(name) != value:
            raise CommandFailed(
                f"the checkpoint {folder} was made for {name} {found.get(name)}, not for {name} {value}: "
                "give the one that belongs to it, or a folder that is not there yet"
            )
