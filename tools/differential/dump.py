"""Kafka's own log dump tool reads what Penstock wrote.

A broker writes one partition: an idempotent producer, all codecs, several segments, a sparse index
every few batches. Then the tool is run over each kind of file; it complains of index entries that
point to the wrong place, and prints the batches and producers it finds.

A group reads that partition and commits, and another is deleted. The tool knows how to read the records
that groups are kept in.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.testing import broker

_RECORDS = 800
_COMPLAINTS = re.compile(r"mismatch|could not|not found|error|exception", re.IGNORECASE)
_TOOL_S_MAX = 60
_CLIENT_S_MAX = 30
_GROUP_RECORDS = {
    "a group with its member": r'{"type":"2","data":{"group":"dumped-group"}} payload: .*"dumped-member"',
    "what the member subscribed to": r'"subscription":{"topics":\["dumped"\]',
    "what it was assigned": r'"assignedPartitions":\[{"topic":"dumped","partitions":\[0\]}\]',
    "a committed offset": r'{"group":"dumped-group","topic":"dumped","partition":0}} payload: .*"offset":1,',
    "a deleted offset": r'{"group":"dumped-deleted","topic":"dumped","partition":0}} payload: <DELETE>',
    "a deleted group": r'{"type":"2","data":{"group":"dumped-deleted"}} payload: <DELETE>',
}


def dump_problems(jars: Path) -> list[str]:
    """What Kafka's tool finds wrong with our files, as sentences."""
    with tempfile.TemporaryDirectory(prefix="penstock-dump-") as temporary:
        logs = _written(Path(temporary) / "data")
        return [*_problems(logs / "dumped-0", jars), *_group_problems(logs / "__consumer_offsets-0", jars)]


def _written(data: Path) -> Path:
    settings = {
        "log.index.interval.bytes": "300",
        "log.segment.bytes": str(1100 * 1024),
        "log.message.timestamp.type": "CreateTime",
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
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
            assert producer.flush(_CLIENT_S_MAX) == 0, "every record is acknowledged"
        _read_as_group(running.bootstrap)
        _commit_and_delete(running.bootstrap)
    return data / "logs"


def _read_as_group(address: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "dumped-group",
            "group.instance.id": "dumped-member",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["dumped"])
    message = consumer.poll(_CLIENT_S_MAX)
    assert message is not None, "the group is given the first record"
    consumer.commit(message=message, asynchronous=False)
    consumer.close()


def _commit_and_delete(address: str) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "dumped-deleted"})
    consumer.commit(offsets=[TopicPartition("dumped", 0, 5)], asynchronous=False)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.delete_consumer_groups(["dumped-deleted"]).values():
        future.result(_CLIENT_S_MAX)


def _problems(folder: Path, jars: Path) -> Iterator[str]:
    logs = sorted(folder.glob("*.log"))
    counted = sum(_dumped(path, jars).count("\nbaseOffset: ") for path in logs)
    if counted == 0:
        yield "the dump tool finds no batch in our segments"
    for path in sorted(folder.iterdir()):
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot"):
            yield from (
                f"{path.name}: {line}" for line in _dumped(path, jars).splitlines() if _is_complaint(line)
            )
    newest = sorted(folder.glob("*.snapshot"))[-1]
    if "producerId: " not in _dumped(newest, jars):
        yield "the dump tool finds no producer in our snapshot"


def _group_problems(folder: Path, jars: Path) -> Iterator[str]:
    (log,) = folder.glob("*.log")
    shown = _dumped(log, jars, "--offsets-decoder")
    for what, pattern in _GROUP_RECORDS.items():
        if re.search(pattern, shown) is None:
            yield f"the dump tool does not find {what} in __consumer_offsets"
    yield from (f"__consumer_offsets: {line}" for line in shown.splitlines() if _is_complaint(line))


def _is_complaint(line: str) -> bool:
    return _COMPLAINTS.search(line) is not None and not line.startswith("SLF4J")


def _dumped(path: Path, jars: Path, *options: str) -> str:
    command = ["java", "-cp", f"{jars}/*", "kafka.tools.DumpLogSegments", *options, "--files", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S_MAX, check=False)
    return done.stdout + done.stderr
