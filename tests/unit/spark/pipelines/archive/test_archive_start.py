"""The start of an archive, before Spark: one run at a time, and each knows where the first one began."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import CommandFailed
from penstock.spark.pipelines.archive import archive as archiving
from penstock.spark.pipelines.archive.archive import ArchiveSettings, check
from penstock.spark.pipelines.common.run_lock import run_lock
from penstock.types import Offset, TopicId, TopicPartition
from penstock.wire.cluster_metadata import TopicMetadata


class Client:
    """Client of a cluster with one topic, `orders`, from which retention removes records."""

    start = Offset(0)

    def topics(
        self, names: tuple[str, ...], ids: Mapping[str, TopicId] | None = None
    ) -> dict[str, TopicMetadata]:
        return {
            name: TopicMetadata(name, TopicId(b"a" * 16), 1, internal=False)
            for name in names
            if name == "orders"
        }

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool
    ) -> dict[TopicPartition, tuple[Offset, int]]:
        return dict.fromkeys(wanted, (self.start, -1))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    one = Client()

    @contextmanager
    def cluster(access: object) -> Iterator[Client]:
        yield one

    monkeypatch.setattr(archiving, "open_client", cluster)
    return one


def starts_in(settings: ArchiveSettings) -> object:
    return json.loads((settings.checkpoint_folder / "penstock-starts.json").read_text())


def test_a_second_start_is_refused_before_it_changes_anything(client: Client, tmp_path: Path) -> None:
    settings = ArchiveSettings(("orders",), tmp_path / "lake", {})
    client.start = Offset(5)
    check(settings)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    client.start = Offset(2)
    with (
        run_lock(settings.checkpoint_folder, "archive", ""),
        pytest.raises(CommandFailed, match="another run of this archive is under way"),
    ):
        check(settings)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_a_start_that_comes_to_nothing_counts_as_the_first(client: Client, tmp_path: Path) -> None:
    settings = ArchiveSettings(("orders",), tmp_path / "lake", {})
    check(settings)
    client.start = Offset(7)
    check(settings)
    assert starts_in(settings) == {"orders": {"0": 0}}


def test_an_archive_that_is_refused_makes_nothing(client: Client, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    (tmp_path / "file").touch()
    before = set(tmp_path.rglob("*"))
    settings = ArchiveSettings(("orders",), tmp_path / "lake", {})
    for wrong, why in (
        (settings._replace(topics=("nowhere",)), "there is no topic nowhere"),
        (settings._replace(folder=tmp_path / "full"), "holds no table of ours but other files"),
        (settings._replace(checkpoint=tmp_path / "lake" / "here"), "would lie among the files of the table"),
        (settings._replace(checkpoint=tmp_path / "file"), "file is a file: name a folder"),
    ):
        with pytest.raises(CommandFailed, match=why):
            check(wrong)
        assert set(tmp_path.rglob("*")) == before
