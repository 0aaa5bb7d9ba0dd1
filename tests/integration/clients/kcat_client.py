"""kcat, the command that operators reach for first. Each call is a process of its own."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.integration.clients.client import (
    FETCH_WAIT_MS,
    PLAINLY,
    SECONDS_MAX,
    Capability,
    Client,
    Places,
    Reader,
    Sending,
    Sent,
)
from tests.integration.clients.confluent_client import ConfluentClient
from tests.integration.messages import Message, Stored

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
NOT_COMPARED = 0
"""The timestamp of every message here: kcat takes none from its user."""


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


class KcatReader(Reader):
    def __init__(self, bootstrap: str, topic: str, partitions: int, start: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._positions = dict.fromkeys(range(partitions), start)

    def poll(self, seconds: float) -> list[Stored]:
        """Everything up to the end of each partition."""
        found: list[Stored] = []
        for partition, position in self._positions.items():
            where = ("-t", self._topic, "-p", str(partition), "-o", str(position))
            lines = kcat(self._bootstrap, "-C", *where, "-e", "-q", "-f", "%o %k:%s\n").splitlines()
            for line in lines:
                offset, text = line.split(" ", maxsplit=1)
                key, value = text.split(":", maxsplit=1)
                message = Message(key.encode(), value.encode(), (), NOT_COMPARED)
                found.append(Stored(partition, int(offset), message))
            self._positions[partition] = position + len(lines)
        return found

    def seek(self, partition: int, offset: int) -> None:
        self._positions[partition] = offset


class KcatClient(Client):
    name = "kcat"
    lacks = frozenset(Capability)

    @classmethod
    def absent(cls) -> str | None:
        if KCAT is not None:
            return None
        return "kcat is not installed (Debian: apt-get install kcat); its tests were NOT run"

    def messages(self, count: int) -> list[Message]:
        return [
            Message(b"key%d" % number, f"value {number} äöü".encode(), (), NOT_COMPARED)
            for number in range(count)
        ]

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """By another client: kcat cannot."""
        ConfluentClient(self.bootstrap).create_topic(topic, partitions, config)

    def produce(self, topic: str, sent: Sent, how: Sending = PLAINLY) -> Places:
        options = ["-z", how.compression, "-X", f"acks={how.acks}"]
        if how.in_small_batches:
            options += ["-X", "enable.idempotence=true", "-X", "batch.num.messages=50"]
        for partition, messages in sent.items():
            lines = [f"{(each.key or b'').decode()}:{(each.value or b'').decode()}\n" for each in messages]
            where = ("-t", topic, "-p", str(partition), "-K", ":")
            kcat(self.bootstrap, "-P", *where, *options, stdin="".join(lines))
        return []

    @contextmanager
    def reading(
        self, topic: str, partitions: int, *, start: int | None = None, wait_ms: int = FETCH_WAIT_MS
    ) -> Iterator[Reader]:
        yield KcatReader(self.bootstrap, topic, partitions, start or 0)

    def watermarks(self, topic: str) -> tuple[int, int]:
        return self._offset(topic, -2), self._offset(topic, -1)

    def _offset(self, topic: str, timestamp_ms: int) -> int:
        found = re.search(
            r"\[0\] offset (\d+)", kcat(self.bootstrap, "-Q", "-t", f"{topic}:0:{timestamp_ms}")
        )
        assert found is not None
        return int(found[1])
