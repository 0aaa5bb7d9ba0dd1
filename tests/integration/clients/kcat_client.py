"""kcat, the command that operators reach for first."""

import shutil
import subprocess

import pytest

from tests.integration.conftest import CreateTopic

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
SECONDS_MAX = 20.0

pytestmark = pytest.mark.skipif(
    KCAT is None, reason="kcat is not installed (Debian: apt-get install kcat); its tests were NOT run"
)


def kcat(bootstrap: str, *arguments: str, stdin: str = "") -> str:
    assert KCAT is not None
    done = subprocess.run(
        [KCAT, "-b", bootstrap, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_that_kcat_sends_come_back(
    bootstrap: str, topic: str, create_topic: CreateTopic, compression: str
) -> None:
    create_topic(topic, 1)
    lines = [f"key{number}:value {number} äöü" for number in range(200)]

    kcat(bootstrap, "-P", "-t", topic, "-K", ":", "-z", compression, stdin="\n".join(lines) + "\n")
    found = kcat(bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-K", ":")

    assert found.splitlines() == lines


def test_kcat_shows_headers_offsets_and_partitions(
    bootstrap: str, topic: str, create_topic: CreateTopic
) -> None:
    create_topic(topic, 2)

    kcat(bootstrap, "-P", "-t", topic, "-p", "1", "-H", "origin=shell", stdin="first\nsecond\n")
    found = kcat(bootstrap, "-C", "-t", topic, "-e", "-q", "-f", "%p/%o %h %s\n")

    assert found.splitlines() == ["1/0 origin=shell first", "1/1 origin=shell second"]


def test_kcat_lists_the_broker_and_its_topics(bootstrap: str, topic: str, create_topic: CreateTopic) -> None:
    create_topic(topic, 3)

    listed = kcat(bootstrap, "-L")

    assert f"broker 1 at {bootstrap} (controller)" in listed
    assert f'topic "{topic}" with 3 partitions' in listed


def test_kcat_asks_for_an_offset_by_time(bootstrap: str, topic: str, create_topic: CreateTopic) -> None:
    create_topic(topic, 1)
    kcat(bootstrap, "-P", "-t", topic, stdin="only\n")

    assert f"{topic} [0] offset 0" in kcat(bootstrap, "-Q", "-t", f"{topic}:0:1000")
    assert f"{topic} [0] offset 1" in kcat(bootstrap, "-Q", "-t", f"{topic}:0:-1")
