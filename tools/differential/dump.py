"""Kafka's own log dump tool reads what Penstock wrote.

A broker writes one partition: an idempotent producer, all codecs, several segments, a sparse index
every few batches. Then the tool is run over each kind of file; it complains of index entries that
point to the wrong place, and prints the batches and producers it finds.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Producer

from penstock.testing import broker

_RECORDS = 800
_COMPLAINTS = re.compile(r"mismatch|could not|not found|error|exception", re.IGNORECASE)
_TOOL_S_MAX = 60


def dump_problems(jars: Path) -> list[str]:
    """What Kafka's tool finds wrong with our files, as sentences."""
    with tempfile.TemporaryDirectory(prefix="penstock-dump-") as temporary:
        folder = _written(Path(temporary) / "data")
        return list(_problems(folder, jars))


def _written(data: Path) -> Path:
    settings = {
        "log.index.interval.bytes": "300",
        "log.segment.bytes": str(1100 * 1024),
        "log.message.timestamp.type": "CreateTime",
    }
    with broker(data, **settings) as running:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            producer = Producer(
                {
                    "bootstrap.servers": running.bootstrap,
                    "enable.idempotence": True,
                    "compression.type": codec,
                    "batch.size": 4000,
                }
            )
            for number in range(_RECORDS):
                producer.produce("dumped", value=f"{codec}-{number}-".encode() + bytes(700), partition=0)
            assert producer.flush(30) == 0, "every record is acknowledged"
    return data / "logs" / "dumped-0"


def _problems(folder: Path, jars: Path) -> Iterator[str]:
    logs = sorted(folder.glob("*.log"))
    counted = sum(_dumped(path, jars).count("\nbaseOffset: ") for path in logs)
    if counted == 0:
        yield "the dump tool finds no batch in our segments"
    for path in sorted(folder.iterdir()):
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot"):
            yield from (
                f"{path.name}: {line}" for line in _dumped(path, jars).splitlines() if _complains(line)
            )
    newest = sorted(folder.glob("*.snapshot"))[-1]
    if "producerId: " not in _dumped(newest, jars):
        yield "the dump tool finds no producer in our snapshot"


def _complains(line: str) -> bool:
    return _COMPLAINTS.search(line) is not None and not line.startswith("SLF4J")


def _dumped(path: Path, jars: Path) -> str:
    command = ["java", "-cp", f"{jars}/*", "kafka.tools.DumpLogSegments", "--files", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S_MAX, check=False)
    return done.stdout + done.stderr
