"""The position of every stream as the committed offsets of a group, so that it is seen as a consumer is.

`penstock group describe <query>` then shows its lag, and alerts and autoscaling cover it. Spark's
checkpoint stays the truth: nothing is ever read back from the group.

When: Spark asks a source for news at every trigger and says from where on. Everything before that is
      committed. So the planner commits this position before it looks for news: exact after each batch,
      when a stream idles, and at the end of an AvailableNow run. A query that is stopped between a
      batch and the next trigger is shown one batch behind until it is started again.
Name: kafka.group.id if it is given; else the query's name; else groupIdPrefix, or `spark`, and the
      query's id. Name and id are known to tasks alone (query_name_channel.py). Until the planner has learnt
      them, the first task of a batch commits where the batch starts.

Rule 1: a position never moves back, unless the partition ends before it: then it was made anew.
Rule 2: that the mirror fails is logged once and never fails the query, nor holds it up: after a
        failure nothing is tried for a while.
"""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from penstock.spark.options.access import Access
from penstock.spark.options.client import client_settings
from penstock.spark.options.options import ReadSettings
from penstock.spark.pool import borrowed
from penstock.spark.source.offsets import Position
from penstock.spark.source.query_name_channel import Mailbox, Postbox, post
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster import ClusterClient, WireError

log = logging.getLogger("penstock.spark")

_TIMEOUT_S: Final = 5.0
_PAUSE_S: Final = 10.0
_NOTE: Final = "mirrored by Spark"


class Query(NamedTuple):
    """Who reads, as a task knows it."""

    name: str
    id: str


class Duty(NamedTuple):
    """What the first task of a batch does while the planner does not know the group."""

    mailbox: Mailbox | None
    position: dict[TopicPartition, int]


def group_of(settings: ReadSettings, query: Query) -> str:
    return settings.group or query.name or f"{settings.group_prefix or 'spark'}-{query.id}"


def moves(position: Position, committed: Position, ends: Position) -> dict[TopicPartition, Offset]:
    """What to commit."""
    return {
        partition: Offset(offset)
        for partition, offset in position.items()
        if partition not in committed
        or committed[partition] < offset
        or ends.get(partition, committed[partition]) < committed[partition]
    }


def _client(access: Access) -> AbstractContextManager[ClusterClient]:
    return borrowed(client_settings(access, timeout_s=min(access.timeout_s, _TIMEOUT_S)))


class Mirror:
    """The planner's side. Without a name it waits for one."""

    def __init__(
        self,
        settings: ReadSettings,
        client: Callable[[Access], AbstractContextManager[ClusterClient]] = _client,
    ) -> None:
        self._client = client
        self._access = settings.access
        self._group = settings.group
        self._done: Position = {}
        self._is_failing = False
        self._again_at = 0.0
        self._postbox = None if self._group else _postbox(settings.access)

    def follow(self, position: Position, ends: Position) -> None:
        """Everything before `position` is done; `ends` is where partitions end."""
        if self._group is None and self._postbox is not None and (letter := self._postbox.letter()):
            self._group = letter
            self.close()
        if self._group is None or position == self._done or time.monotonic() < self._again_at:
            return
        try:
            self._commit(self._group, position, ends)
        except WireError as error:
            self._again_at = time.monotonic() + _PAUSE_S
            if not self._is_failing:
                log.warning("the position of this query is not shown as group %s: %s", self._group, error)
            self._is_failing = True
        else:
            self._done = dict(position)
            self._is_failing = False

    def duty(self, position: Position) -> Duty | None:
        if self._group is not None:
            return None
        return Duty(None if self._postbox is None else self._postbox.mailbox, dict(position))

    def _commit(self, group: str, position: Position, ends: Position) -> None:
        with self._client(self._access) as client:
            # Asked each time: another run of the query may have come further meanwhile.
            committed = _committed(client, group, position.keys())
            if news := moves(position, committed, ends):
                client.commit(group, news, _NOTE)

    def close(self) -> None:
        if self._postbox is not None:
            self._postbox.close()
        self._postbox = None


def fulfil(duty: Duty, settings: ReadSettings, query: Query) -> None:
    """The task's side."""
    group = group_of(settings, query)
    try:
        if duty.mailbox is not None:
            post(duty.mailbox, group)
        with _client(settings.access) as client:
            committed = _committed(client, group, duty.position.keys())
            client.commit(group, moves(duty.position, committed, {}), _NOTE)
    except (WireError, OSError) as error:
        log.warning("the position of this query is not shown as group %s: %s", group, error)


def current_query() -> Query | None:
    """The stream that this task belongs to."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query_id = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    if context is None or not query_id:
        return None
    # The name of the query, if it has one, and then lines that begin with its id.
    description = context.getLocalProperty("spark.job.description") or ""
    name, has_id, _ = description.partition(f"\nid = {query_id}\n")
    return Query(name.strip() if has_id else "", query_id)


def _postbox(access: Access) -> Postbox | None:
    try:
        return Postbox(access.bootstrap[0])
    except OSError as error:
        log.warning("the name of this query will not be learnt: %s", error)
        return None


def _committed(
    client: ClusterClient, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    found = client.committed(group, partitions)
    return {partition: offset for partition, offset in found.items() if offset is not None}
