"""What must still be true of a broker after somebody was hostile to it.

It runs, it serves a newcomer, what an honest client was promised is there, its files can be read
back and hold against their checksums, and it gave back the descriptors that it used.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.protocol.batches import crc_matches, split_batches
from penstock.protocol.records import iterate_records
from tests.integration.broker_process import BrokerProcess, eventually
from tests.integration.raw_client import RawClient, batch_of, connected, records_of

LIMIT_BYTES = 64 * 1024 * 1024


def open_sockets(pid: int) -> int:
    return sum(target.startswith("socket:") for target in _descriptors(pid))


def open_files(pid: int) -> int:
    """Apart from logs, of which one may be open for each partition."""
    return sum(target.startswith("/") and not target.endswith(".log") for target in _descriptors(pid))


def _descriptors(pid: int) -> Iterator[str]:
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            yield str(path.readlink())


def peak_memory_mib(pid: int) -> int:
    """The most that was resident at any time since the process began."""
    path = Path(f"/proc/{pid}/status")
    if not path.exists():
        pytest.skip("memory cannot be measured: there is no /proc here")
    line = next(line for line in path.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def hostile_socket(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


class VerifyingClient:
    """A client that writes now and then and remembers everything it was promised."""

    def __init__(self, client: RawClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._acknowledged: list[bytes] = []
        client.create_topic(topic)

    def writes(self) -> None:
        value = b"promise-%d" % len(self._acknowledged)
        answer = self._client.produce(self._topic, batch_of(value))
        assert answer.error_code == 0
        assert answer.base_offset == len(self._acknowledged)
        self._acknowledged.append(value)

    def finds_everything(self) -> None:
        found: list[bytes | None] = []
        while len(found) < len(self._acknowledged):
            data = records_of(self._client.fetch(self._topic, len(found)))
            assert data, "a record that was promised is missing"
            for at, header in split_batches(data):
                batch = data[at : at + header.size]
                found += [record.value for record in iterate_records(batch, limit_bytes=LIMIT_BYTES)]
        assert found == self._acknowledged


@contextmanager
def unharmed(broker: BrokerProcess, topic: str) -> Iterator[VerifyingClient]:
    """Whatever happens within the block, the broker and an honest client's data survive it."""
    with connected(broker.bootstrap) as client:
        honest = VerifyingClient(client, topic)
        honest.writes()
        sockets, files = open_sockets(broker.pid), open_files(broker.pid)
        yield honest
        assert broker.is_running
        honest.writes()
        honest.finds_everything()
        eventually(lambda: open_sockets(broker.pid) <= sockets)
        eventually(lambda: open_files(broker.pid) <= files)
    with connected(broker.bootstrap) as newcomer:
        newcomer.create_topic(topic)
    verify_logs(broker.data_dir)
    verify_log_lines(broker.stderr)


def verify_logs(data_dir: Path) -> int:
    """Every batch on disk is whole, intact and in its place. Returns how many there are."""
    count = 0
    for path in data_dir.rglob("*.log"):
        data = path.read_bytes()
        expected = int(path.stem)
        walk = split_batches(data)
        for at, header in walk:
            assert header.base_offset == expected, f"{path.name} at {at}"
            assert crc_matches(data, header, at), f"{path.name} at {at}"
            expected = header.next_offset
            count += 1
        assert walk.position == len(data), f"{path.name} goes on after its last batch"
    return count


def verify_log_lines(stderr: str) -> None:
    """One event a line, each with its time and level; nothing failed for a reason of ours."""
    for line in stderr.splitlines():
        assert line[:4].isdigit(), f"not a log line: {line[:200]}"
        assert line[24:30].strip() in ("INFO", "WARN", "ERROR"), line[:200]
        assert " task.failed " not in line, line[:2000]
        assert " callback.failed " not in line, line[:2000]
