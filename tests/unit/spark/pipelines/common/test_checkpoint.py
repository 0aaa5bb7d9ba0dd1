"""A checkpoint is used for what it was made for, and for nothing else."""

import json
from pathlib import Path

import pytest

from penstock.errors import CommandFailed
from penstock.spark.lake.description import check_checkpoint
from penstock.spark.pipelines.archive.archive import ArchiveSettings
from penstock.spark.pipelines.common.checkpoint import bind_checkpoint, check_binding, recorded_starts
from penstock.types import NO_TOPIC_ID, TopicId, TopicPartition

OLD, NEW = TopicId(b"a" * 16), TopicId(b"b" * 16)
WANTED = {"pipeline": "archive", "topics": "orders"}


def started(folder: Path) -> None:
    (folder / "metadata").write_text("{}")


def test_a_topic_that_was_made_anew_does_not_go_on_with_the_old_checkpoint(tmp_path: Path) -> None:
    bind_checkpoint(tmp_path / "checkpoint", WANTED, {"orders": OLD})
    started(tmp_path / "checkpoint")
    bind_checkpoint(tmp_path / "checkpoint", WANTED, {"orders": OLD})
    with pytest.raises(
        CommandFailed, match=r"topic orders was deleted and made anew since .* give another --to$"
    ):
        bind_checkpoint(tmp_path / "checkpoint", WANTED, {"orders": NEW}, remedy="another --to")


def test_a_checkpoint_from_which_nothing_was_read_takes_the_new_topic(tmp_path: Path) -> None:
    bind_checkpoint(tmp_path / "checkpoint", WANTED, {"orders": OLD})
    bind_checkpoint(tmp_path / "checkpoint", WANTED, {"orders": NEW})
    started(tmp_path / "checkpoint")
    bind_checkpoint(tmp_path / "checkpoint", WANTED, {"orders": NEW})
    note = json.loads((tmp_path / "checkpoint" / "penstock.json").read_text())
    assert note == {**WANTED, "topic_ids": {"orders": NEW.hex()}}


def test_a_topic_that_has_an_id_only_now_was_not_made_anew(tmp_path: Path) -> None:
    """The brokers were upgraded, or one of them answers that does not know ids."""
    folder = tmp_path / "checkpoint"
    bind_checkpoint(folder, WANTED, {"orders": NO_TOPIC_ID})
    started(folder)
    bind_checkpoint(folder, WANTED, {"orders": OLD})
    bind_checkpoint(folder, WANTED, {"orders": NO_TOPIC_ID})
    with pytest.raises(CommandFailed, match="topic orders was deleted and made anew"):
        bind_checkpoint(folder, WANTED, {"orders": NEW})


def test_a_note_that_no_id_was_known_is_as_good_as_none(tmp_path: Path) -> None:
    note = {**WANTED, "topic_ids": {"orders": NO_TOPIC_ID.hex()}}
    (tmp_path / "penstock.json").write_text(json.dumps(note))
    started(tmp_path)
    bind_checkpoint(tmp_path, WANTED, {"orders": OLD})


def test_where_a_topic_began_at_the_first_start_is_remembered(tmp_path: Path) -> None:
    """Neither start has read anything, and retention goes on between them."""
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    bind_checkpoint(tmp_path, WANTED, {"orders": OLD})
    assert recorded_starts(tmp_path, {first: 5}) == {first: 5}
    assert recorded_starts(tmp_path, {first: 9, second: 3}) == {first: 5, second: 3}
    started(tmp_path)
    assert recorded_starts(tmp_path, {first: 12, second: 12}) == {first: 5, second: 3}


def test_where_a_topic_began_is_forgotten_with_the_topic(tmp_path: Path) -> None:
    orders, clicks = TopicPartition("orders", 0), TopicPartition("clicks", 0)
    bind_checkpoint(tmp_path, WANTED, {"orders": OLD, "clicks": OLD})
    recorded_starts(tmp_path, {orders: 5, clicks: 5})
    bind_checkpoint(tmp_path, WANTED, {"orders": NEW, "clicks": OLD})
    assert recorded_starts(tmp_path, {orders: 9, clicks: 9}) == {orders: 9, clicks: 5}


def test_topics_are_the_same_in_any_order(tmp_path: Path) -> None:
    bind_checkpoint(tmp_path / "checkpoint", {"pipeline": "archive", "topics": "orders,clicks"})
    bind_checkpoint(tmp_path / "checkpoint", {"pipeline": "archive", "topics": "clicks,orders"})
    with pytest.raises(CommandFailed, match="was made for topics orders,clicks, not for topics clicks:"):
        bind_checkpoint(tmp_path / "checkpoint", {"pipeline": "archive", "topics": "clicks"})
    one = ArchiveSettings(("orders", "clicks"), tmp_path, {})
    assert one.checkpoint_folder == one._replace(topics=("clicks", "orders")).checkpoint_folder


def test_a_checkpoint_among_files_of_a_table_is_found_by_any_name(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    for place in ("link/checkpoint", "elsewhere/../lake/checkpoint", "lake/_penstock/../checkpoint"):
        with pytest.raises(CommandFailed, match="would lie among the files of the table"):
            check_checkpoint(tmp_path / "lake", tmp_path / place)
    check_checkpoint(tmp_path / "link", tmp_path / "lake" / "_penstock" / "checkpoints")


def test_a_checkpoint_does_not_lie_among_the_files_of_a_table(tmp_path: Path) -> None:
    for place in ("lake/checkpoint", "lake"):
        with pytest.raises(CommandFailed, match="would lie among the files of the table"):
            check_checkpoint(tmp_path / "lake", tmp_path / place)
    for place in ("checkpoint", "lake-2/checkpoint", "lake/_penstock/checkpoints/orders"):
        check_checkpoint(tmp_path / "lake", tmp_path / place)


def test_a_checkpoint_of_other_settings_is_refused_without_being_made(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    check_binding(folder, {"pipeline": "replay", "start": "24h"})
    assert not folder.exists()
    bind_checkpoint(folder, {"pipeline": "replay", "start": "24h"})
    check_binding(folder, {"pipeline": "replay", "start": "24h"})
    with pytest.raises(CommandFailed, match="was made for start 24h, not for start 7d"):
        check_binding(folder, {"pipeline": "replay", "start": "7d"})
