"""The runbooks of docs/cluster.md, typed as they stand there: 20 s each, as every command is a process."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.runbook import Reader, commands_of

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    try:
        yield reader
    finally:
        reader.close()


@pytest.mark.timeout(300)
def test_a_cluster_on_one_machine_its_backup_and_its_restoration(reader: Reader, tmp_path: Path) -> None:
    reader.type_section(PAGE, "On one machine")
    *commands, consume, stop = commands_of(PAGE, "Backup and restore")
    for command in commands:
        reader.type(command)
    reader.type(consume)
    assert sorted(reader.output.split("\n")) == ["", "2 plums", "3 apples"]
    reader.type(stop)
    assert not list((tmp_path / "penstock-cluster").rglob("*.pid"))


@pytest.mark.timeout(300)
def test_one_broker_becomes_three_that_are_restarted_and_replaced(reader: Reader, tmp_path: Path) -> None:
    reader.type_section(PAGE, "From one broker to several")
    assert reader.output == "12.50\n"
    reader.type_section(PAGE, "Adding a broker")
    reader.type_section(PAGE, "Rolling restart and upgrade")
    reader.type("penstock consume orders --format '%v'")
    assert reader.output == "3 apples\n"
    before = json.loads((tmp_path / "data-3" / "penstock.json").read_text())
    reader.type_section(PAGE, "Replacing a dead broker")
    assert sorted(reader.output.split("\n")) == ["", "2 plums", "3 apples"]
    after = json.loads((tmp_path / "data-3" / "penstock.json").read_text())
    assert before["cluster_id"] == after["cluster_id"]
    assert before["directory_id"] != after["directory_id"]
    reader.type_section(PAGE, "Putting back one broker's data")
    assert sorted(reader.output.split("\n")) == ["", "1 pear", "2 plums", "3 apples"]
