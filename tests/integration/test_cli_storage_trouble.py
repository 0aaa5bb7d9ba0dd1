"""What commands and /health/ready say while a partition is damaged or the disk is full.

librdkafka keeps trying when a broker reports a storage error. A person is to learn what it was.
"""

import json
from pathlib import Path

import pytest

from tests.integration.broker_process import BrokerProcess, serving
from tests.integration.disk_faults import small_disk
from tests.integration.test_cli import Cli

DAMAGE = "the broker reports a storage error for k-0: see its log; `penstock dump-log --verify` shows damage."
PATIENCE = ("--timeout", "2")
SEGMENTS = {"log.segment.bytes": 1_100_000, "message.max.bytes": 500_000}
"""Small enough that a few records fill some, which are not read at the next start."""


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def assert_ready(broker: BrokerProcess) -> None:
    status, body = broker.get("/health/ready")
    assert (status, json.loads(body)) == (200, {"status": "ready"})


@pytest.fixture
def lines() -> str:
    return "".join("x" * 90_000 + f"{number:04d}\n" for number in range(50))


def test_a_partition_that_is_damaged_at_the_start_is_named(data_dir: Path) -> None:
    with serving(data_dir) as broker:
        cli = Cli(broker.bootstrap)
        for topic in ("k", "sound"):
            cli.ok("produce", topic, "--value", "hello")
        assert broker.stop() == 0
        flip(data_dir / "logs" / "k-0" / "00000000000000000000.log", 70)
        broker.start()
        cli = Cli(broker.bootstrap)

        assert DAMAGE in cli.refused("consume", "k")
        assert DAMAGE in cli.refused("topic", "offsets", "k")
        assert DAMAGE in cli.refused("topic", "truncate", "k", "--yes")
        assert f"1 record not stored: {DAMAGE}" in cli.refused("produce", "k", "--value", "more", *PATIENCE)
        # The rest is served, so nobody should take the broker away.
        assert cli.ok("consume", "sound") == "hello\n"
        assert_ready(broker)
        # And what the operations page advises helps.
        cli.ok("topic", "delete", "k", "--yes")
        cli.ok("produce", "k", "--value", "anew")
        assert cli.ok("consume", "k") == "anew\n"


def test_damage_found_while_reading_ends_the_reader_with_its_reason(data_dir: Path, lines: str) -> None:
    with serving(data_dir, settings=SEGMENTS) as broker:
        for topic in ("k", "followed"):
            Cli(broker.bootstrap).ok("produce", topic, given=lines)
        assert broker.stop() == 0
        for topic in ("followed", "k"):
            segments = sorted((data_dir / "logs" / f"{topic}-0").glob("*.log"))
            assert len(segments) > 3
            flip(segments[1], 5_000)
        broker.start()
        cli = Cli(broker.bootstrap)
        followed = cli.refused("consume", "followed", "--follow", *PATIENCE)
        assert DAMAGE.replace("k-0", "followed-0") in followed

        done = cli.run("consume", "k", *PATIENCE)
        assert done.code == 1
        assert done.err == f"penstock: {DAMAGE}\n"
        assert len(done.out.splitlines()) == int(segments[1].stem), "what precedes the damage is printed"

        # A restart does not forget it, and says what to do.
        assert broker.stop() == 0
        broker.start()
        note = segments[0].parent / "damaged"
        assert f"when the files are mended, remove {note} and start again" in broker.stderr
        assert DAMAGE in Cli(broker.bootstrap).refused("consume", "k", *PATIENCE)

        # Once more from the start, with the way out of the operations page.
        assert broker.stop() == 0
        note.unlink()
        broker.start()
        cli = Cli(broker.bootstrap)
        cli.ok("topic", "truncate", "k", "--before", str(int(segments[2].stem)), "--yes")
        kept = cli.ok("consume", "k").splitlines()
        assert kept == lines.splitlines()[int(segments[2].stem) :]


def test_a_full_disk_is_named_and_the_broker_stays_ready(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=8) as disk, serving(disk / "data") as broker:
        cli = Cli(broker.bootstrap)
        cli.ok("topic", "create", "k")
        given = "".join("x" * 100_000 + "\n" for _ in range(120))

        refusal = cli.refused("produce", "k", *PATIENCE, given=given)

        assert "records not stored: the broker's disk is full (" in refusal
        assert "of 8.0 MiB are free)." in refusal
        assert_ready(broker)
        assert "on this disk are free" in cli.ok("log-dirs")
        cli.ok("topic", "truncate", "k", "--yes")
        cli.ok("produce", "k", "--value", "room again")
        assert cli.ok("consume", "k") == "room again\n"
