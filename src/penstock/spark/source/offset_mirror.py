"""Commits of each stream's position as offsets of a consumer group, so that tools can show the stream's lag.

The option `mirrorOffsets` controls it. `penstock group describe <query>` then returns the lag of the query,
and alerts and autoscaling cover it. Spark's checkpoint stays the only source of truth: no position is ever
read back from the group.

When: At every trigger Spark calls the source with the position from which the next batch starts. Everything
      before that is done. So the planner commits this position before it looks for new records: exact after
      each batch, when a stream idles, and at the end of an AvailableNow run. For a query that is stopped
      between a batch and the next trigger, the group is one batch behind until the query is started again.
Name: kafka.group.id if it is given; else the query's name; else groupIdPrefix, or `spark`, and the query's
      id. Only tasks have the name and the id (query_name_channel.py). Until the planner has received them,
      the first task of a batch commits where the batch starts.

Rule 1: A committed position never moves back, unless the partition ends before it: then it was recreated.
Rule 2: A failure of the mirror is logged once, and never fails or delays the query: after a failure no
        commit is tried for a while.
"""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from penstock.spark.options.client import client_settings
from penstock.spark.options.cluster_access import ClusterAccess
from penstock.spark.options.options import ReadSettings
from penstock.spark.pool import borrowed_client
from penstock.spark.source.offsets import PartitionOffsets
from penstock.spark.source.query_name_channel import (
    QueryNameReceiver,
    QueryNameReceiverAddress,
    send_query_name,
)
from penstock.types import Offset, TopicPartition
from penstock.wire.cluster_client import ClusterClient, WireError

log = logging.getLogger("penstock.spark")

_TIMEOUT_S: Final = 5.0
_RETRY_BACKOFF_S: Final = 10.0
_NOTE: Final = "mirrored by Spark"


class QueryIdentity(NamedTuple):
    """Name and id of a query, as a task has them."""

    name: str
    id: str


class FirstTaskCommit(NamedTuple):
    """The commit that the first task of a batch makes while the planner does not have the group's name."""

    address: QueryNameReceiverAddress | None
    position: dict[TopicPartition, int]


def group_name(settings: ReadSettings, query: QueryIdentity) -> str:
    return settings.group or query.name or f"{settings.group_prefix or 'spark'}-{query.id}"


def offsets_to_commit(
    position: PartitionOffsets, committed: PartitionOffsets, ends: PartitionOffsets
) -> dict[TopicPartition, Offset]:
    """The offsets to commit: new, higher, or of partitions that end before the committed offset."""
    return {
        partition: Offset(offset)
        for partition, offset in position.items()
        if partition not in committed
        or committed[partition] < offset
        or ends.get(partition, committed[partition]) < committed[partition]
    }


def _client(access: ClusterAccess) -> AbstractContextManager[ClusterClient]:
    return borrowed_client(client_settings(access, timeout_s=min(access.timeout_s, _TIMEOUT_S)))


class OffsetMirror:
    """Commits the stream's position from the planner, as offsets of a consumer group.

    It commits nothing until it has the group's name; until then, tasks commit (`commit_from_task`).
    """

    def __init__(
        self,
        settings: ReadSettings,
        client: Callable[[ClusterAccess], AbstractContextManager[ClusterClient]] = _client,
    ) -> None:
        self._client = client
        self._access = settings.access
        self._group = settings.group
        self._committed_position: PartitionOffsets = {}
        self._is_failing = False
        self._retry_at = 0.0
        self._query_name_receiver = None if self._group else _query_name_receiver(settings.access)

    def commit_position(self, position: PartitionOffsets, ends: PartitionOffsets) -> None:
        """Commit a position. Everything before `position` is done; `ends` is where partitions end."""
        if (
            self._group is None
            and self._query_name_receiver is not None
            and (received_name := self._query_name_receiver.received_name())
        ):
            self._group = received_name
            self.close()
        if self._group is None or position == self._committed_position or time.monotonic() < self._retry_at:
            return
        try:
            self._commit(self._group, position, ends)
        except WireError as error:
            self._retry_at = time.monotonic() + _RETRY_BACKOFF_S
            if not self._is_failing:
                log.warning("the position of this query is not shown as group %s: %s", self._group, error)
            self._is_failing = True
        else:
            self._committed_position = dict(position)
            self._is_failing = False

    def first_task_commit(self, position: PartitionOffsets) -> FirstTaskCommit | None:
        if self._group is not None:
            return None
        return FirstTaskCommit(
            None if self._query_name_receiver is None else self._query_name_receiver.address, dict(position)
        )

    def _commit(self, group: str, position: PartitionOffsets, ends: PartitionOffsets) -> None:
        with self._client(self._access) as client:
            # Read each time: another run of the query may have committed a higher offset meanwhile.
            committed = _fetch_committed(client, group, position.keys())
            if news := offsets_to_commit(position, committed, ends):
                client.commit(group, news, _NOTE)

    def close(self) -> None:
        if self._query_name_receiver is not None:
            self._query_name_receiver.close()
        self._query_name_receiver = None


def commit_from_task(
    first_task_commit: FirstTaskCommit, settings: ReadSettings, query: QueryIdentity
) -> None:
    """Commit from a task, and send the group's name to the planner."""
    group = group_name(settings, query)
    try:
        if first_task_commit.address is not None:
            send_query_name(first_task_commit.address, group)
        with _client(settings.access) as client:
            committed = _fetch_committed(client, group, first_task_commit.position.keys())
            client.commit(group, offsets_to_commit(first_task_commit.position, committed, {}), _NOTE)
    except (WireError, OSError) as error:
        log.warning("the position of this query is not shown as group %s: %s", group, error)


def current_query() -> QueryIdentity | None:
    """The streaming query that this task belongs to."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query_id = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    if context is None or not query_id:
        return None
    # The query's name, if it has one, followed by lines that begin with its id.
    description = context.getLocalProperty("spark.job.description") or ""
    name, has_id, _ = description.partition(f"\nid = {query_id}\n")
    return QueryIdentity(name.strip() if has_id else "", query_id)


def _query_name_receiver(access: ClusterAccess) -> QueryNameReceiver | None:
    try:
        return QueryNameReceiver(access.bootstrap[0])
    except OSError as error:
        log.warning("the name of this query will not be learnt: %s", error)
        return None


def _fetch_committed(
    client: ClusterClient, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    found = client.committed(group, partitions)
    return {partition: offset for partition, offset in found.items() if offset is not None}
