"""What commands do when nobody takes what they print, or when they were started without streams.

In processes of their own: it is the descriptors that matter.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from penstock.testing import Broker, broker

SECONDS_MAX = 30.0
# A word with a mark is another for each run, so that every command can succeed.
COMMANDS = (
    "--help",
    "--version",
    "serve --help",
    "check-config",
    "topic create made-*",
    "topic list",
    "topic describe kept",
    "topic offsets kept",
    "topic alter kept --set retention.ms=-1",
    "topic truncate emptied --yes",
    "topic delete doomed-* --yes",
    "consume kept",
    "log-dirs",
    "dump-log DATA",
    "dump-log DATA --verify",
)


class Ended(NamedTuple):
    code: int
    err: str


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("data") / "d") as served:
        producer = Producer({"bootstrap.servers": served.bootstrap})
        for name in ("kept", "emptied", "doomed-full", "doomed-pipe"):
            producer.produce(name, b"x")
        assert producer.flush(SECONDS_MAX) == 0
        yield served


def run(served: Broker, command: str, mark: str, stdout: int) -> Ended:
    words = command.replace("*", mark).replace("DATA", str(served.data_dir / "logs")).split()
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=SECONDS_MAX,
        env=os.environ | {"PENSTOCK_BOOTSTRAP": served.bootstrap},
        check=False,
    )
    return Ended(done.returncode, done.stderr)


@pytest.mark.parametrize("command", COMMANDS)
def test_output_that_finds_no_room_is_told_in_a_sentence(running: Broker, command: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    ended = run(running, command, "full", full)
    os.close(full)

    assert ended == (1, "penstock: cannot write the output: No space left on device.\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_left_ends_every_command_quietly(running: Broker, command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = run(running, command, "pipe", writing)
    os.close(writing)

    assert ended == (0, "")


def shell(served: Broker, command: str) -> Ended:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "{sys.executable}" -m penstock {command}'],
        stderr=subprocess.PIPE,
        text=True,
        timeout=SECONDS_MAX,
        env=os.environ | {"PENSTOCK_BOOTSTRAP": served.bootstrap},
        check=False,
    )
    return Ended(done.returncode, done.stderr)


def test_streams_that_are_closed_lead_nowhere(running: Broker, tmp_path: Path) -> None:
    assert shell(running, "topic list >&-") == (0, "")
    assert shell(running, "consume kept >&-") == (0, "")
    assert shell(running, "consume kept <&- >&- 2>&-") == (0, "")
    assert shell(running, "produce kept --acks 1 <&-").err.startswith("0 records, 0 bytes in ")
    assert "give --yes" in shell(running, "topic delete kept <&-").err
    assert shell(running, "check-config --set no.such=1 2>&-") == (2, "")
    assert shell(running, "check-config --set no.such=1 2>/dev/full") == (2, "")
