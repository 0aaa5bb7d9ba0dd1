"""Files of a log read without a broker: what is there, and where damage begins."""

import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.client_app import app
from penstock.errors import CommandFailed
from penstock.log.leader_epochs import FILE_NAME as EPOCH_FILE
from penstock.log.producer_state import Producers
from penstock.protocol.batches import HEADER_BYTES, parse_header
from penstock.protocol.compression import Codec
from penstock.protocol.records import Record, build_batch
from penstock.types import Offset

NOW_MS = 1_700_000_000_000
NOBODY = 65534
"""Number of a user without rights."""
BASE = "00000000000000000010"


def batch(base_offset: int, *values: bytes, codec: Codec = Codec.NONE) -> bytes:
    records = [
        Record(Offset(0), NOW_MS + base_offset + index, b"k", value, (("h", b"1"),))
        for index, value in enumerate(values)
    ]
    return build_batch(records, base_offset=base_offset, codec=codec, producer_id=7, producer_epoch=0,
                       base_sequence=base_offset, leader_epoch=3)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition of two batches, offsets 10 to 12 and 13, with everything beside it."""
    folder = tmp_path / "orders-0"
    folder.mkdir()
    first, second = batch(10, b"a", b"b", b"c"), batch(13, b"d", codec=Codec.ZSTD)
    (folder / f"{BASE}.log").write_bytes(first + second)
    (folder / f"{BASE}.index").write_bytes(struct.pack(">II", 3, len(first)))
    (folder / f"{BASE}.timeindex").write_bytes(struct.pack(">qI", NOW_MS + 13, 3))
    producers = Producers()
    producers.replay(parse_header(second), Offset(13))
    (folder / "00000000000000000014.snapshot").write_bytes(producers.to_bytes())
    (folder / EPOCH_FILE).write_text("0\n1\n3 10\n")
    (folder / "partition.metadata").write_text("version: 0\n")
    return folder


def dump(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["dump-log", *map(str, arguments)])


def rows(*arguments: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dump(*arguments, "--json").stdout.splitlines()]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def refusal(result: Result) -> str:
    assert isinstance(result.exception, CommandFailed)
    return str(result.exception)


def wrong_use(result: Result) -> str:
    assert result.exit_code == 2
    return result.output


def test_a_folder_shows_every_kind_of_file(folder: Path) -> None:
    found = rows(folder)

    assert [row["type"] for row in found] == ["index", "batch", "batch", "timeindex", "producer", "epoch"]
    by_type = {row["type"]: row for row in found}
    assert (by_type["index"]["offset"], by_type["timeindex"]["offset"]) == (13, 13)
    assert (by_type["batch"]["base_offset"], by_type["batch"]["codec"]) == (13, "zstd")
    assert (by_type["producer"]["producer_id"], by_type["producer"]["last_offset"]) == (7, 13)
    assert (by_type["epoch"]["leader_epoch"], by_type["epoch"]["start_offset"]) == (3, 10)


def test_records_follow_their_batch(folder: Path) -> None:
    found = rows(folder / f"{BASE}.log", "--records")

    assert [row.get("value", row["type"]) for row in found] == ["batch", "a", "b", "c", "batch", "d"]
    assert found[1]["headers"] == [["h", "1"]]
    text = dump(folder / f"{BASE}.log", "--records").stdout
    assert "offset 11  2023-11-14T22:13:20.011Z  key 'k'  value 'b'  h='1'" in text


def test_a_sound_folder_verifies(folder: Path) -> None:
    result = dump(folder, "--verify")

    assert result.exit_code == 0
    assert result.stdout.count(": ok, ") == 5


def test_a_flipped_bit_is_found_and_what_precedes_it_is_shown(folder: Path) -> None:
    log = folder / f"{BASE}.log"
    second_at = len(batch(10, b"a", b"b", b"c"))
    flip(log, second_at + HEADER_BYTES)

    result = dump(log)

    assert "offsets 10 to 12" in result.stdout
    assert f"DAMAGED at position {second_at}: " in result.stdout
    assert "checksum" in result.stdout
    assert refusal(result) == "1 of 1 file is damaged."


def test_a_torn_tail_is_damage(folder: Path) -> None:
    log = folder / f"{BASE}.log"
    log.write_bytes(log.read_bytes()[:-1])

    result = dump(log)

    assert "the file ends inside this batch, 1 byte short" in result.stdout
    refusal(result)


def test_batches_out_of_order_are_damage(folder: Path) -> None:
    log = folder / f"{BASE}.log"
    log.write_bytes(batch(13, b"d") + batch(10, b"a"))

    assert "offset 10 where 14 or more belongs" in dump(log).stdout


def test_an_index_that_points_elsewhere_is_found_by_verifying(folder: Path) -> None:
    (folder / f"{BASE}.index").write_bytes(struct.pack(">II", 3, 5))
    (folder / f"{BASE}.timeindex").write_bytes(struct.pack(">qI", NOW_MS, 3))

    result = dump(folder, "--verify")

    assert "no batch at position 5 ends with offset 13" in result.stdout
    assert f"the newest time up to offset 13 is not {NOW_MS}" in result.stdout
    assert refusal(result) == "1 of 5 files is damaged."


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (f"{BASE}.index", b"\x00" * 9, "at position 8: the file ends inside an entry"),
        (f"{BASE}.index", struct.pack(">IIII", 3, 10, 2, 20), "at position 8: the entries do not ascend"),
        (f"{BASE}.timeindex", b"\x00" * 5, "at position 0: the file ends inside an entry"),
        ("00000000000000000014.snapshot", b"\x00" * 40, "a producer snapshot has version 0"),
        (EPOCH_FILE, b"0\n2\n3 10\n", "announces 2 rows and has 1"),
        (EPOCH_FILE, b"0\n2\n3 10\n2 20\n", "epoch 2 from offset 20 follows epoch 3 from 10"),
    ],
)
def test_damage_of_small_files_is_told(folder: Path, name: str, content: bytes, problem: str) -> None:
    (folder / name).write_bytes(content)

    result = dump(folder / name)

    assert problem in result.stdout
    refusal(result)


def test_damage_is_a_row_of_json_too(folder: Path) -> None:
    flip(folder / f"{BASE}.log", 30)

    assert [row["type"] for row in rows(folder / f"{BASE}.log")] == ["damage"]


def test_what_is_no_file_of_a_log_is_refused(folder: Path) -> None:
    assert "there is no" in wrong_use(dump(folder / "absent"))
    assert "is no file of a log" in wrong_use(dump(folder / "partition.metadata"))
    assert "holds no files of a log" in wrong_use(dump(_empty(folder)))
    # Nothing is printed of the others either: what was typed is wrong.
    assert dump(folder, folder / "absent").stdout == ""
    (folder / "\N{SUPERSCRIPT TWO}.log").touch()
    assert "is no file of a log" in wrong_use(dump(folder / "\N{SUPERSCRIPT TWO}.log"))
    os.mkfifo(folder / "7.log")
    assert "7.log is neither a file nor a folder" in wrong_use(dump(folder / "7.log"))


def _empty(folder: Path) -> Path:
    empty = folder / "empty"
    empty.mkdir()
    return empty


@contextmanager
def without_privileges() -> Iterator[None]:
    """As a user other than root, whom permissions do not hold back."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize(
    ("locked", "asked"),
    [(".", "."), (".", f"{BASE}.log"), ("inner", "."), ("inner", "inner"), (f"{BASE}.log", f"{BASE}.log")],
)
def test_what_the_user_may_not_read_is_one_sentence(folder: Path, locked: str, asked: str) -> None:
    (folder / "inner").mkdir()
    dump(folder)  # whatever the command imports is loaded now, with all rights
    for above in (folder.parent, folder.parent.parent, folder.parent.parent.parent):
        above.chmod(0o755)
    (folder / locked).chmod(0)
    with without_privileges():
        result = dump(folder / asked)
    (folder / locked).chmod(0o755)

    assert f"cannot read {folder}" in wrong_use(result)
    assert result.output.endswith("Permission denied\n")
    assert result.stdout == ""
