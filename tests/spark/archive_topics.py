"""Topics to archive, and what must be in the lake afterwards."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from penstock.config.listeners import Address
from penstock.spark.lake.description import open_table
from penstock.types import TopicPartition
from penstock.wire.cluster_client import EARLIEST, LATEST, ClusterClient


class Producing:
    """Writes numbered records to a topic, spread over its partitions."""

    def __init__(self, bootstrap: str, topic: str, *, partitions: int = 2) -> None:
        self.topic = topic
        self.bootstrap = bootstrap
        self._partitions = partitions
        self._count = 0
        with self._client() as client:
            client.create_topic(topic, partitions, {})

    def _client(self) -> "Connected":
        return Connected(self.bootstrap)

    def produce(self, count: int, *, value_bytes: int = 20) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20})
        for number in range(self._count, self._count + count):
            key = None if number % 7 == 0 else f"key-{number % 50}"
            value = None if number % 11 == 0 else f"value {number}".ljust(value_bytes).encode()
            producer.produce(
                self.topic, value, key, number % self._partitions, headers=[("number", str(number).encode())]
            )
            if number % 10_000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0
        self._count += count

    def ends(self) -> dict[TopicPartition, int]:
        wanted = [TopicPartition(self.topic, number) for number in range(self._partitions)]
        with self._client() as client:
            found = client.offsets(dict.fromkeys(wanted, LATEST), read_committed=False)
            starts = client.offsets(dict.fromkeys(wanted, EARLIEST), read_committed=False)
        assert all(offset == 0 for offset, _ in starts.values())
        return {partition: offset for partition, (offset, _) in found.items()}


class Connected:
    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._client = ClusterClient([Address(host, int(port))], client_id="test", timeout_s=30)

    def __enter__(self) -> ClusterClient:
        return self._client

    def __exit__(self, *failure: object) -> None:
        self._client.close()


class Audit(NamedTuple):
    rows: int
    lost: int
    doubled: int


def audited(folder: Path, ends: dict[TopicPartition, int]) -> Audit:
    """Every record of the topic against every row of the table."""
    with open_table(folder) as table:
        rows = rows_of(table.files())
    wanted = {(partition, offset) for partition, end in ends.items() for offset in range(end)}
    doubled = sum(count - 1 for count in rows.values())
    assert set(rows) <= wanted, "rows that no record is behind"
    return Audit(rows.total(), len(wanted - set(rows)), doubled)


def rows_of(paths: Iterable[str]) -> Counter[tuple[TopicPartition, int]]:
    rows: Counter[tuple[TopicPartition, int]] = Counter()
    for path in paths:
        read = pq.ParquetFile(path).read(["topic", "partition", "offset"])
        topics, partitions, offsets = (column.to_pylist() for column in read.columns)
        rows.update(
            (TopicPartition(topic, partition), offset)
            for topic, partition, offset in zip(topics, partitions, offsets, strict=True)
        )
    return rows
