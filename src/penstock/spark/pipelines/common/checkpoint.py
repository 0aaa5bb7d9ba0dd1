"""Checkpoint notes: a checkpoint belongs to one pipeline with one input and one output.

Spark would continue from the checkpoint of another topic, and then fail midway or skip records. So a note
file in the checkpoint names the pipeline, its input and its output, and the pipeline compares the note with
the current settings before it starts Spark. A topic that was deleted and recreated under the same name counts
as another topic: the note records topic ids, as soon as the brokers report ids.

A second note records the offsets at which the topics began when the pipeline was first started. Spark records
where its first batch ends but not where the batch starts. Without the note, a first batch that is run again
after a crash could not be checked for records that retention removed in between.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.errors import CommandFailed
from penstock.spark.lake import disk
from penstock.spark.source.offsets import PartitionOffsets, from_document, to_document
from penstock.types import NO_TOPIC_ID, TopicId

NOTE_FILE: Final = "penstock.json"
STARTS_FILE: Final = "penstock-starts.json"
PIPELINE: Final = "pipeline"
IDS: Final = "topic_ids"
TOPICS: Final = "topics"
NO_IDS: Final[Mapping[str, TopicId]] = {}


def is_new(folder: Path) -> bool:
    """Return whether no query was started from this checkpoint yet."""
    return not (folder / "metadata").exists()


def make_folder(folder: Path) -> None:
    """Create the checkpoint folder if needed; reject a path that cannot be a pipeline checkpoint."""
    if folder.exists() and not folder.is_dir():
        raise CommandFailed(f"the checkpoint {folder} is a file: name a folder")
    if not (folder / NOTE_FILE).exists():
        _check_unbound(folder)
    with _reporting_write_errors(folder):
        disk.make_folder(folder)


def bind_checkpoint(
    folder: Path,
    identity: Mapping[str, str],
    ids: Mapping[str, TopicId] = NO_IDS,
    *,
    remedy: str = "another checkpoint",
) -> None:
    """Reject a checkpoint that was made for other settings; bind a new one to these settings.

    `ids` are the ids of the topics that are read. `remedy` is the option that the error suggests for a
    recreated topic.
    """
    note, known = folder / NOTE_FILE, _known({topic: each.hex() for topic, each in ids.items()})
    make_folder(folder)
    # create_once: if two runs start together, the first note wins and the second run is compared with it.
    if not note.exists():
        with _reporting_write_errors(folder):
            disk.create_once(note, _document(identity, known))
    found = _read(note)
    _compare(folder, found, identity)
    noted = _known(found.get(IDS, {}))
    changed = [topic for topic, each in known.items() if noted.get(topic, each) != each]
    if changed and not is_new(folder):
        raise CommandFailed(
            f"topic {changed[0]} was deleted and made anew since the checkpoint {folder} was made: its "
            f"offsets are those of other records now. To go on with the new topic, give {remedy}"
        )
    if noted | known != noted:  # the brokers report ids only now, or nothing was read yet
        with _reporting_write_errors(folder):
            # The starts are removed before the note changes: a crash in between repeats this step, and no
            # start of the deleted topic survives under the new id.
            _remove_starts(folder, changed)
            disk.replace(note, _document(identity, noted | known))


def noted_topic_ids(folder: Path) -> dict[str, TopicId]:
    """Return the ids of the topics that the checkpoint belongs to; empty for a new checkpoint."""
    note = folder / NOTE_FILE
    ids = _read(note).get(IDS, {}) if note.exists() else {}
    return {topic: TopicId(bytes.fromhex(each)) for topic, each in ids.items()}


def check_binding(folder: Path, identity: Mapping[str, str]) -> None:
    """Reject a checkpoint that was made for other settings; leave one that does not exist yet as it is."""
    if (note := folder / NOTE_FILE).exists():
        _compare(folder, _read(note), identity)


def recorded_starts(folder: Path, now: PartitionOffsets) -> PartitionOffsets:
    """Return where the topics began when a query was first started from this checkpoint.

    `now` is where the topics begin now.

    A start that wrote nothing also counts: it may be the first start on which a user relied. The result is
    empty for a checkpoint that was used before this note existed.
    """
    noted = _starts(folder)
    if not is_new(folder):
        return noted
    # No batch exists yet, so the lowest start of all attempts is kept: no record may be lost unnoticed.
    first = dict(now) | {each: min(offset, now.get(each, offset)) for each, offset in noted.items()}
    with _reporting_write_errors(folder):
        disk.replace(folder / STARTS_FILE, json.dumps(to_document(first)).encode())
    return first


def _starts(folder: Path) -> PartitionOffsets:
    note = folder / STARTS_FILE
    return from_document(_read(note)) if note.exists() else {}


def _remove_starts(folder: Path, topics: Sequence[str]) -> None:
    """Remove the starts of recreated topics, before any of their records was read."""
    noted = _starts(folder)
    kept = {each: offset for each, offset in noted.items() if each.topic not in topics}
    if kept != noted:
        disk.replace(folder / STARTS_FILE, json.dumps(to_document(kept)).encode())


def last_offset(folder: Path) -> dict[str, Any] | None:
    """Return the planned end of the latest batch for the query's first source; None without a batch."""
    batches = [int(path.name) for path in (folder / "offsets").glob("*") if path.name.isdecimal()]
    if not batches:
        return None
    # The file has a line with its version, a line with the query's settings, then one line per source.
    lines = (folder / "offsets" / str(max(batches))).read_text(encoding="utf-8").splitlines()
    found: dict[str, Any] = json.loads(lines[2])
    return found


@contextmanager
def _reporting_write_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise CommandFailed(f"cannot write to {folder}: {problem.strerror or problem}") from problem


def _known(ids: Mapping[str, str]) -> dict[str, str]:
    """Drop topics of brokers that have no topic ids."""
    return {topic: each for topic, each in ids.items() if each != NO_TOPIC_ID.hex()}


def _document(identity: Mapping[str, str], ids: Mapping[str, str]) -> bytes:
    return json.dumps({**identity, **({IDS: ids} if ids else {})}).encode()


def _check_unbound(folder: Path) -> None:
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


def _compare(folder: Path, found: Mapping[str, Any], identity: Mapping[str, str]) -> None:
    for name, value in identity.items():
        if name not in found and name != PIPELINE and found.get(PIPELINE) == identity.get(PIPELINE):
            raise CommandFailed(
                f"the checkpoint {folder} is of an earlier version of Penstock, which did not note {name}: "
                "finish what was begun with that version, or give a folder that is not there yet"
            )
        if _ignore_order(name, found.get(name)) != _ignore_order(name, value):
            raise CommandFailed(
                f"the checkpoint {folder} was made for {name} {found.get(name)}, not for {name} {value}: "
                "give the one that belongs to it, or a folder that is not there yet"
            )


def _ignore_order(name: str, value: str | None) -> object:
    """Normalize the value for comparison: the order of topics does not matter."""
    return sorted(value.split(",")) if name == TOPICS and value is not None else value
