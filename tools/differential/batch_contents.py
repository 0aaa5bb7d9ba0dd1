"""Differences for malformed records in valid batches, which Kafka decodes and Penstock does not (gap G18).

A batch that Kafka rejects and Penstock stores differs in the Produce response and in the Fetch at the end of
the scenario. Each difference is listed with its partition and its values.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tools.differential.compare import ABSENT

NOTHING_ELSE_CHANGED = "{'base_offset': 0, *'crc': True, *"


class Field(NamedTuple):
    case: str
    path: str
    kafka: str
    penstock: str


class Stored(NamedTuple):
    """Differences for a batch that Kafka rejects."""

    scenario: str
    name: str
    partition: int
    kafka_error: int
    record_count: int

    def fields(self) -> Iterator[Field]:
        case, answer = f"{self.scenario}/{self.name}", f"responses.{self.scenario}.partition_responses"
        yield Field(case, f"{answer}.{self.partition}.error_code", str(self.kafka_error), "0")
        yield Field(case, f"{answer}.{self.partition}.base_offset", "-1", "0")
        read = f"responses.{self.scenario}.partitions.{self.partition}"
        case, count = f"{self.scenario}/what is there", str(self.record_count)
        yield Field(case, f"{read}.high_watermark", "0", count)
        yield Field(case, f"{read}.last_stable_offset", "0", count)
        yield Field(case, f"{read}.records.0", ABSENT, NOTHING_ELSE_CHANGED)


STORED = (
    Stored("produce-headers", "count one too high", 7, 87, 2),
    Stored("produce-headers", "count one too low", 8, 87, 1),
    Stored("produce-headers", "gzip that is not", 19, -1, 1),
    Stored("produce-headers", "snappy that is not", 20, -1, 1),
    Stored("produce-headers", "lz4 that is not", 21, -1, 1),
    Stored("produce-headers", "zstd that is not", 22, -1, 1),
    Stored("produce-records", "header without a key", 0, 87, 1),
    Stored("produce-records", "record beyond the batch", 1, 87, 1),
    Stored("produce-records", "record of negative length", 2, 87, 1),
    Stored("produce-records", "bytes after the last record", 3, 87, 1),
    Stored("produce-records", "no record at all", 4, 87, 1),
    Stored("produce-records", "gzip, header without a key", 6, 87, 1),
    Stored("produce-records", "gzip, record beyond the batch", 7, 87, 1),
    Stored("produce-records", "gzip, bytes after the last record", 8, 87, 1),
    Stored("produce-records", "gzip, offset delta 5", 9, -1, 1),
    Stored("produce-records", "gzip, count one too high", 10, 87, 2),
)


def refused_here(scenario: str, partition: int) -> Iterator[Field]:
    """Differences of the final Fetch of a scenario, for a batch that Kafka stores and Penstock rejects."""
    case, read = f"{scenario}/what is there", f"responses.{scenario}.partitions.{partition}"
    yield Field(case, f"{read}.high_watermark", "1", "0")
    yield Field(case, f"{read}.last_stable_offset", "1", "0")
    yield Field(case, f"{read}.records.0", NOTHING_ELSE_CHANGED, ABSENT)


_TIMES = "responses.produce-times"
# Kafka corrects the largest time in the header; here it counts as it is.
LARGEST_TIME = (
    Field("produce-times/maximum in the future", f"{_TIMES}.partition_responses.7.error_code", "0", "32"),
    Field("produce-times/maximum in the future", f"{_TIMES}.partition_responses.7.base_offset", "0", "-1"),
    Field("produce-times/what is there", f"{_TIMES}.partitions.1.records.0.max_timestamp", "-1", "-5"),
    Field(
        "produce-times/what is there",
        f"{_TIMES}.partitions.6.records.0.max_timestamp",
        "1700000000000",
        "1700000000050",
    ),
    *refused_here("produce-times", 7),
)
# Five records are announced and one is there.
AFTER_DELETION = (
    Field(
        "delete-records/refused afterwards", "responses.trimmed.partition_responses.0.error_code", "87", "0"
    ),
    Field(
        "delete-records/refused afterwards", "responses.trimmed.partition_responses.0.base_offset", "-1", "10"
    ),
)
