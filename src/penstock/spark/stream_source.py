"""Streams: a topic as a table that grows.

Spark keeps one StreamReader for a query, in a process of its own on the driver, and asks it for news
at every trigger. What it answers is written to the checkpoint before it is read, so a batch that is
run again reads the same offsets. Tasks get a copy of the reader as it was at the start; `read` uses
nothing that changes.

Topics and partitions that appear are found while the query runs (partition.metadata.cache.ttl.ms) and
read from their beginning. Those that disappear, begin above 0 or go back are lost data.

Rule: the position in the checkpoint is only offsets, as the official source writes it. That a topic was
      deleted and made anew is therefore found from its id while the query runs, and after a restart
      only if the new one is shorter.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.spark.access import client_settings
from penstock.spark.discovery import (
    Found,
    discover,
    earliest_of,
    latest_of,
    report_losses,
    required,
    resolve,
)
from penstock.spark.mirror import Duty, Mirror, current_query, fulfil
from penstock.spark.offsets import (
    Position,
    Range,
    available,
    first_start,
    from_document,
    limited,
    limited_by_bytes,
    plan,
    split,
    to_document,
)
from penstock.spark.options import Limits, ReadSettings, may_move, stream_read_settings
from penstock.spark.pool import borrowed
from penstock.spark.reading import read_range, record_bytes
from penstock.spark.source import RangePartition, payload_of
from penstock.spark.table import Table
from penstock.spark.workers import settle
from penstock.types import NO_TOPIC_ID, TopicId, TopicPartition
from penstock.wire.cluster import ClusterClient

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("penstock.spark")


class FirstPartition(RangePartition):
    """The task that also shows the query's position, while the planner cannot."""

    def __init__(self, wanted: Range, duty: Duty) -> None:
        super().__init__(wanted)
        self.duty = duty


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> "StreamReader":
        return cls(stream_read_settings(options), Table(schema, payload_of(options)))

    def __init__(self, settings: ReadSettings, table: Table) -> None:
        self._settings = settings
        self._table = table
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need: connections and the place in the stream stay with the planner."""
        return self.__dict__ | {"_planner": None}

    @property
    def planner(self) -> "Planner":
        if self._planner is None:
            self._planner = Planner(self._settings)
        return self._planner

    # In the planner's process

    def initialOffset(self) -> dict[str, Any]:
        return to_document(self.planner.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        return _read_limit(self._settings.limits)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        takes_all = isinstance(limit, ReadAllAvailable)
        return to_document(self.planner.next_end(from_document(start), takes_all=takes_all))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_document(self.planner.latest) or None

    def prepareForTriggerAvailableNow(self) -> None:
        self.planner.stop_at_what_is_there()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self.planner.tasks(from_document(start), from_document(end))

    def commit(self, end: dict[str, Any]) -> None:
        """Comes a batch late; the mirror knows it from `latestOffset`."""

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()

    # In the executors

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return read_range(self._settings, self._table, self.begun(partition))

    def begun(self, partition: InputPartition) -> Range:
        """What the task that begins now is to read."""
        settle()
        assert isinstance(partition, RangePartition)
        if isinstance(partition, FirstPartition) and (query := current_query()) is not None:
            fulfil(partition.duty, self._settings, query)
        return partition.wanted


def _read_limit(limits: Limits) -> ReadLimit:
    """Spark knows one limit at a time; it hands it back, and `next_end` looks at all that were given."""
    if limits.offsets_max is not None:
        return ReadMaxRows(limits.offsets_max)
    if limits.bytes_max is not None:
        return ReadMaxBytes(limits.bytes_max)
    if limits.offsets_min is not None:
        return ReadMinRows(limits.offsets_min)
    return ReadAllAvailable()


class Planner:
    """Looks for news, and cuts it into tasks.

    Spark writes down where each batch ends, and for the very first one nobody writes down where it
    starts: Spark asks for that again, several times and also after a crash. An answer that has moved
    meanwhile would leave records out. So it is looked up once, and if it can move, the first batch is
    empty: its end, in the checkpoint, is the start.
    """

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._may_move = may_move(settings.start, latest_if_no_match=settings.latest_if_no_match)
        self._initial: Position | None = None
        self._has_begun = False
        self._mirror = Mirror(settings) if settings.mirror else None
        self._found: Found | None = None
        self._found_at = 0.0
        self._ids: dict[str, TopicId] = {}
        self._made_anew: set[str] = set()
        self._target: Position | None = None
        self._triggered_at: float | None = None
        self.latest: Position = {}

    def initial(self) -> Position:
        settings = self._settings
        if self._initial is None:
            with self._client() as client:
                partitions = required(self._discover(client), settings.subscription)
                self._initial = resolve(client, settings, settings.start, partitions)
        return self._initial

    def stop_at_what_is_there(self) -> None:
        with self._client() as client:
            self._target = self._ends(client)

    def next_end(self, start: Position, *, takes_all: bool) -> Position:
        """Where the next batch ends; `start` itself if there shall be none yet."""
        with self._client() as client:
            self.latest = self._ends(client) if self._target is None else self._target
            if self._mirror is not None:
                self._mirror.follow(start, self.latest)
            if start == self._initial and self._may_move and not self._has_begun:
                self._has_begun = True
                return start
            if takes_all or not self._settings.limits.are_any:
                return self.latest
            new = self.latest.keys() - start.keys()
            waiting = available(start, self.latest, earliest_of(client, new, self._settings))
            return self._within_limits(client, start, waiting)

    def tasks(self, start: Position, end: Position) -> list[InputPartition]:
        settings = self._settings
        self._has_begun = True
        if start == self._initial:
            start = first_start(start, end, may_move=self._may_move)
        unsure = [
            p for p, until in end.items() if start.get(p, until + 1) > until or p.topic in self._made_anew
        ]
        with self._client() as client:
            there = self._discover(client).partitions
            earliest = earliest_of(client, [each for each in unsure if each in there], settings)
        planned = plan(start, end, earliest, from_earliest=self._made_anew)
        report_losses(planned.losses, settings)
        self._made_anew.clear()
        ranges = split(
            planned.ranges, tasks_min=settings.tasks_min, records_max=settings.records_per_task_max
        )
        tasks: list[InputPartition] = [RangePartition(each) for each in ranges]
        duty = None if self._mirror is None else self._mirror.duty(start)
        if duty is not None and ranges:
            tasks[0] = FirstPartition(ranges[0], duty)
        return tasks

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()

    # What there is

    def _client(self) -> AbstractContextManager[ClusterClient]:
        return borrowed(client_settings(self._settings.access))

    def _ends(self, client: ClusterClient) -> dict[TopicPartition, int]:
        return latest_of(client, self._discover(client).partitions, self._settings)

    def _discover(self, client: ClusterClient) -> Found:
        """Looked up again now and then: triggers may come every few milliseconds."""
        now = time.monotonic()
        if self._found is None or now - self._found_at >= self._settings.discovery_ms / 1000:
            self._found = discover(client, self._settings.subscription)
            self._found_at = now
            self._compare_ids(self._found.ids)
        return self._found

    def _compare_ids(self, ids: Mapping[str, TopicId]) -> None:
        known = {topic: now for topic, now in ids.items() if now != NO_TOPIC_ID}  # not all brokers have them
        changed = [topic for topic, now in known.items() if self._ids.get(topic, now) != now]
        self._ids |= known
        self._made_anew.update(changed)
        report_losses([f"topic {topic} was deleted and made anew" for topic in changed], self._settings)

    # How much of it

    def _within_limits(
        self, client: ClusterClient, start: Position, waiting: Mapping[TopicPartition, int]
    ) -> Position:
        limits = self._settings.limits
        if self._target is None and self._shall_wait(sum(waiting.values())):
            return start
        most = sum(waiting.values()) if limits.offsets_max is None else limits.offsets_max
        if limits.bytes_max is not None:
            weights = record_bytes(client, self._settings, self.latest, waiting)
            most = min(most, limited_by_bytes(waiting, weights, limits.bytes_max))
        return limited(start, self.latest, waiting, most)

    def _shall_wait(self, count: int) -> bool:
        """minOffsetsPerTrigger, for at most maxTriggerDelay."""
        limits, now = self._settings.limits, time.monotonic()
        if limits.offsets_min is None:
            return False
        is_due = self._triggered_at is None or (now - self._triggered_at) * 1000 >= limits.delay_ms_max
        if count < limits.offsets_min and not is_due:
            return True
        self._triggered_at = now
        return False
