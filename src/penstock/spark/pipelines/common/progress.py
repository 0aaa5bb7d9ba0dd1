"""Progress of a running query, as numbers and as a line for users.

Pure: Spark's progress reports are passed in as parsed JSON documents.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.spark.source.offsets import from_document
from penstock.types import TopicPartition


class BatchProgress(NamedTuple):
    """Numbers of one finished micro-batch."""

    batch: int
    rows: int
    seconds: float
    ends: dict[TopicPartition, int]
    """End offsets up to which the source was read."""
    latest: dict[TopicPartition, int]
    """Latest offsets available in the source."""

    @property
    def lag(self) -> int:
        return lag(self.latest, self.ends)


def lag(latest: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    return sum(max(offset - ends.get(partition, 0), 0) for partition, offset in latest.items())


def parse_batch_progress(report: Mapping[str, Any]) -> BatchProgress:
    """Parse one progress report. Only sources that read topics have positions."""
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
    """Sum of the progress of one run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.rows = 0
        self.batches = 0
        self.last: BatchProgress | None = None

    def add(self, step: BatchProgress) -> bool:
        """Add a batch; return False for a batch that was already counted or had no rows."""
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
