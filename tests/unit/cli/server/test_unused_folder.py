"""What a start that was refused leaves behind: no folder that it made, and every record."""

from pathlib import Path

import pytest

from penstock.cli.server.serve import remove_unused_new_folder
from penstock.errors import ConfigError
from penstock.host.os_disk import OsDisk
from penstock.host.randomness import SystemRandomness
from penstock.log.data_directory import open_directory
from penstock.types import NodeId


def refused_start(path: Path, *, partition: str = "") -> None:
    with pytest.raises(ConfigError), remove_unused_new_folder(str(path)):
        start(path, partition)


def start(path: Path, partition: str) -> None:
    open_directory(OsDisk(), str(path), NodeId(1), SystemRandomness(), "a-cluster")
    if partition:
        (path / "logs" / partition).mkdir()
    raise ConfigError("node id 1 is taken")


def test_a_broker_that_is_refused_leaves_no_folder_that_it_made(tmp_path: Path) -> None:
    refused_start(tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_folder_that_was_there_or_holds_records_stays(tmp_path: Path) -> None:
    refused_start(tmp_path)
    assert (tmp_path / "penstock.json").exists()
    refused_start(tmp_path / "data", partition="orders-0")
    assert (tmp_path / "data" / "logs" / "orders-0").exists()
