"""A checkpoint belongs to one pipeline with one input and one output; a note in it says which.

Spark would go on from the checkpoint of another topic, and fail in the middle or leave records out. So
before it is started, the note is compared with what is asked for now. A topic that was deleted and made anew
is another one too, by the same name: the note has the ids of topics.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.errors import CommandFailed
from penstock.spark.lake import disk
from penstock.types import TopicId

NOTE: Final = "penstock.json"
IDS: Final = "topic_ids"
NO_IDS: Final[Mapping[str, TopicId]] = {}


def is_new(folder: Path) -> bool:
    """Whether no query was started from it."""
    return not (folder / "metadata").exists()


def claim(
    folder: Path,
    wanted: Mapping[str, str],
    ids: Mapping[str, TopicId] = NO_IDS,
    *,
    instead: str = "another checkpoint",
) -> None:
    """Refuses a checkpoint that was made for something else. One that is new is ours from now on.

    `ids` are those of the topics that are read; `instead` is what to give for a topic that was made anew.
    """
    note = folder / NOTE
    if folder.exists() and not folder.is_dir():
        raise CommandFailed(f"the checkpoint {folder} is a file: name a folder")
    if not note.exists():
        _check_unclaimed(folder)
        try:
            disk.make_folder(folder)
            disk.create_once(note, _document(wanted, ids))
        except OSError as problem:
            raise CommandFailed(f"cannot write to {folder}: {problem.strerror or problem}") from problem
    found = _read(note)
    _compare(folder, found, wanted)
    if changed := _made_anew(found, ids):
        if not is_new(folder):
            raise CommandFailed(
                f"topic {changed[0]} was deleted and made anew since the checkpoint {folder} was made: its "
                f"offsets are those of other records now. To go on with the new topic, give {instead}"
            )
        disk.replace(note, _document(wanted, ids))  # nothing was read yet


def _document(wanted: Mapping[str, str], ids: Mapping[str, TopicId]) -> bytes:
    named = {IDS: {topic: each.hex() for topic, each in ids.items()}} if ids else {}
    return json.dumps({**wanted, **named}).encode()


def _made_anew(found: Mapping[str, Any], ids: Mapping[str, TopicId]) -> list[str]:
    noted = found.get(IDS, {})
    return [topic for topic, each in ids.items() if noted.get(topic, each.hex()) != each.hex()]


def _check_unclaimed(folder: Path) -> None:
    if folder.is_dir() and not is_new(folder):
        raise CommandFailed(
            f"{folder} is the checkpoint of a query that is no pipeline of ours: name another"
        )


def _read(note: Path) -> dict[str, Any]:
    try:
        found = json.loads(note.read_bytes())
    except ValueError as problem:
        raise CommandFailed(f"{note} cannot be read: {problem}") from problem
    return found if isinstance(found, dict) else {}


def _compare(folder: Path, found: Mapping[str, Any], wanted: Mapping[str, str]) -> None:
    for name, value in wanted.items():
        if found.get(name) != value:
            raise CommandFailed(
                f"the checkpoint {folder} was made for {name} {found.get(name)}, not for {name} {value}: "
                "give the one that belongs to it, or a folder that is not there yet"
            )
