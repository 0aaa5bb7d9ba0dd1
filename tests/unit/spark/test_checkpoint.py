"""A checkpoint is used for what it was made for, and for nothing else."""

import json
from pathlib import Path

import pytest

from penstock.errors import CommandFailed
from penstock.spark.lake.description import check_checkpoint
from penstock.spark.pipelines.checkpoint import claim
from penstock.types import TopicId

OLD, NEW = TopicId(b"a" * 16), TopicId(b"b" * 16)
WANTED = {"pipeline": "archive", "topics": "orders"}


def started(folder: Path) -> None:
    (folder / "metadata").write_text("{}")


def test_a_topic_that_was_made_anew_does_not_go_on_with_the_old_checkpoint(tmp_path: Path) -> None:
    claim(tmp_path / "checkpoint", WANTED, {"orders": OLD})
    started(tmp_path / "checkpoint")
    claim(tmp_path / "checkpoint", WANTED, {"orders": OLD})
    with pytest.raises(
        CommandFailed, match=r"topic orders was deleted and made anew since .* give another --to$"
    ):
        claim(tmp_path / "checkpoint", WANTED, {"orders": NEW}, instead="another --to")


def test_a_checkpoint_from_which_nothing_was_read_takes_the_new_topic(tmp_path: Path) -> None:
    claim(tmp_path / "checkpoint", WANTED, {"orders": OLD})
    claim(tmp_path / "checkpoint", WANTED, {"orders": NEW})
    started(tmp_path / "checkpoint")
    claim(tmp_path / "checkpoint", WANTED, {"orders": NEW})
    note = json.loads((tmp_path / "checkpoint" / "penstock.json").read_text())
    assert note == {**WANTED, "topic_ids": {"orders": NEW.hex()}}


def test_a_checkpoint_does_not_lie_among_the_files_of_a_table(tmp_path: Path) -> None:
    for place in ("lake/checkpoint", "lake"):
        with pytest.raises(CommandFailed, match="would lie among the files of the table"):
            check_checkpoint(tmp_path / "lake", tmp_path / place)
    for place in ("checkpoint", "lake-2/checkpoint", "lake/_penstock/checkpoints/orders"):
        check_checkpoint(tmp_path / "lake", tmp_path / place)
