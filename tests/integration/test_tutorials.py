"""The pages of docs/tutorial without Spark, typed as they stand there."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.broker_process import eventually
from tests.integration.etcd_process import require_etcd
from tests.integration.runbook import Reader, commands_of

PAGES = Path(__file__).parents[2] / "docs" / "tutorial"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path, with_etcd=False)
    try:
        yield reader
    finally:
        reader.close()


def lines_of(reader: Reader) -> list[str]:
    return sorted(reader.output.splitlines())


def test_the_first_ten_minutes(reader: Reader) -> None:
    page = PAGES / "first-ten-minutes.md"
    reader.type_section(page, "Start a broker")
    reader.type_section(page, "Write records and read them")
    assert lines_of(reader) == ["0/0 bob: 1 pear", "1/0 gus: 2 plums", "2/0 ada: 3 apples", "2/1 ada: 5 figs"]

    read, write, describe, read_again = commands_of(page, "Read as a group")
    reader.type(read)
    assert lines_of(reader) == ["ada: 3 apples", "ada: 5 figs", "bob: 1 pear", "gus: 2 plums"]
    reader.type(write)
    reader.type(describe)
    assert "behind: 2 records" in reader.output
    reader.type(read_again)
    assert lines_of(reader) == ["ada: 1 melon", "bob: 4 limes"]
    reader.type(describe)
    assert "behind: nothing" in reader.output

    reader.press_ctrl_c()
    look, start, read, read_as_group, reset, read_all = commands_of(page, "Stop it and start it again")
    reader.type(look)
    assert [line for line in lines_of(reader) if line.startswith("orders")] == [
        "orders-0",
        "orders-1",
        "orders-2",
    ]
    reader.type(start)
    reader.type(read)
    assert len(lines_of(reader)) == 6
    reader.type(read_as_group)
    assert lines_of(reader) == []
    reader.type(reset)
    reader.type(read_all)
    assert len(lines_of(reader)) == 6


@pytest.mark.timeout(240)
def test_the_first_cluster(reader: Reader, tmp_path: Path) -> None:
    require_etcd()
    page = PAGES / "first-cluster.md"
    reader.type_section(page, "Start three brokers")
    produce, kill, describe = commands_of(page, "Kill a broker while a producer runs")
    count, count_different = commands_of(page, "See that nothing is lost")

    def number_of_records() -> int:
        reader.type(count)
        return int(reader.output)

    reader.type(produce)
    assert eventually(number_of_records, seconds_max=20) < 1000
    reader.type(kill)

    def has_left() -> bool:
        reader.type(describe)
        in_sync = [line.split()[-1] for line in reader.output.splitlines()[-3:]]
        return all("1" not in nodes for nodes in in_sync)

    eventually(has_left, seconds_max=20)
    assert "1000 records, " in reader.wait()
    assert number_of_records() == 1000
    reader.type(count_different)
    assert int(reader.output) == 1000

    etcd = json.loads((tmp_path / "penstock-cluster" / "cluster.json").read_text())["etcd_ports"][0]
    reader.put(etcd, for_port=38721)
    reader.type_section(page, "Bring the broker back")
    assert number_of_records() == 1000
    reader.press_ctrl_c()
    reader.press_ctrl_c()
