"""What a running query says of itself, in numbers and as a line for people.

Pure: Spark's progress reports are JSON documents, and come in as such.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.spark.source.offsets import from_document
from penstock.types import TopicPartition


class BatchProgress(NamedTuple):
    """One finished micro-batch."""

    batch: int
    rows: int
    seconds: float
    ends: dict[TopicPartition, int]
    """How far its source is read."""
    latest: dict[TopicPartition, int]
    """How far there is something to read."""

    @property
    def lag(self) -> int:
        return lag(self.latest, self.ends)


def lag(latest: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    return sum(max(offset - ends.get(partition, 0), 0) for partition, offset in latest.items())


def parse_batch_progress(report: Mapping[str, Any]) -> BatchProgress:
    """From a progress report, parsed. Only sources that read topics have positions."""
    sources = report.get("sources") or [{}]
    return BatchProgress(
        batch=int(report["batchId"]),
        rows=int(report.get("numInputRows") or 0),
        seconds=float((report.get("durationMs") or {}).get("triggerExecution", 0)) / 1000,
        ends=_position(sources[0].get("endOffset")),
        latest=_position(sources[0].get("latestOffset")),
    )


def _position(given: Any) -> dict[TopicPartition, int]:
    if isinstance(given, str):
        given = json.loads(given)
    if not isinstance(given, dict) or not all(isinstance(each, dict) for each in given.values()):
        return {}
    return from_document(given)


class Progress:
    """Of one run, summed up."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.rows = 0
        self.batches = 0
        self.last: BatchProgress | None = None

    def add(self, step: BatchProgress) -> bool:
        """False for a report of a step that is known or that did nothing."""
        if step.rows == 0 or (self.last is not None and step.batch <= self.last.batch):
            return False
        self.rows += step.rows
        self.batches += 1
        self.last = step
        return True

    def line(self) -> str:
        assert self.last is not None, "there is a line when there was a step"
        step = self.last
        rate = f", {step.rows / step.seconds:,.0f} rows/s" if step.seconds else ""
        behind = f", {step.lag:,} behind" if step.latest else ""
        return f"{self._name}: batch {step.batch}: {step.rows:,} rows{rate}; {self.rows:,} so far{behind}"
