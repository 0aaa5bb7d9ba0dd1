"""The planner of a stream: which offsets the next batch has, and which tasks read it.

New topics and partitions are found while the query runs (partition.metadata.cache.ttl.ms) and read from
their beginning. Deleted and recreated topics, and partitions that begin above 0 or whose end moves back,
are lost data: the query fails, or continues if failOnDataLoss is false.

Rule 1: A topic that one metadata reply lacks keeps its position (known_topics.py). A partition never leaves
        a position.
Rule 2: A topic is read from its beginning again only if its id differs from the one in the position. If the
        end moved below the position under the same id, the query continues at that end.
Rule 3: A log that was truncated below the position may have grown beyond it before the next trigger. So the
        position has leader epochs: if the epoch has changed, the leader is asked where the old epoch ended.
        An end below the position that a leader of an older epoch reports is stale: another leader is found.
Rule 4: A certain loss of data fails the query before Spark writes the batch to its checkpoint, so that the
        next start does not find a batch that cannot be read.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from pyspark.sql.datasource import InputPartition

from penstock.limits import LONG_MAX
from penstock.spark.options.client import client_settings
from penstock.spark.options.options import NamedTopics, ReadSettings, TopicPattern, may_move
from penstock.spark.pool import borrowed_client
from penstock.spark.source.discovery import (
    discover,
    fetch_earliest,
    fetch_ends,
    fetch_latest,
    report_losses,
    require_found,
    resolve_bound,
)
from penstock.spark.source.known_topics import KnownTopics, TopicsSnapshot, changed_ids
from penstock.spark.source.offset_mirror import FirstTaskCommit, OffsetMirror
from penstock.spark.source.offsets import (
    OffsetRange,
    PartitionOffsets,
    StreamPosition,
    available,
    first_batch_start,
    limit_offsets,
    offsets_within_bytes,
    plan_stream_batch,
    split_ranges,
    truncation_losses,
    with_topic_ids,
)
from penstock.spark.source.reading import record_bytes
from penstock.spark.source.source import OffsetRangePartition
from penstock.types import TopicPartition
from penstock.wire.cluster_client import ClusterClient, LogEnd
from penstock.wire.errors import TopicUnknown
from penstock.wire.retry_policy import topic_gone_after_s

_ABSENT_PAUSE_S: Final = 0.2

Borrow = Callable[[], AbstractContextManager[ClusterClient]]


class CommittingPartition(OffsetRangePartition):
    """A task that also commits the query's position, while the planner cannot."""

    def __init__(self, wanted: OffsetRange, count: int, first_task_commit: FirstTaskCommit) -> None:
        super().__init__(wanted, count)
        self.first_task_commit = first_task_commit


class StreamPlanner:
    """Finds the offsets of the next batch and splits them into tasks.

    Spark's checkpoint holds where each batch ends. For the very first batch it does not hold where the
    batch starts: Spark requests that again, several times and also after a crash. A start that has moved
    meanwhile would leave records out. So the start is looked up once. If it can move, the first batch is
    empty: its end, which is in the checkpoint, is the start.
    """

    def __init__(
        self,
        settings: ReadSettings,
        borrow: Borrow | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._borrow = borrow or (lambda: borrowed_client(client_settings(settings.access)))
        self._monotonic = monotonic
        self._sleep = sleep
        self._may_move = may_move(settings.start, latest_if_no_match=settings.latest_if_no_match)
        self._initial_position: StreamPosition | None = None
        self._has_begun = False
        self._mirror = OffsetMirror(settings) if settings.mirror else None
        self._gone_after_s = topic_gone_after_s(settings.access.timeout_s)
        self._topics = KnownTopics(self._gone_after_s)
        self._discovered_at: float | None = None
        self._reported_deleted: set[str] = set()
        self._target: Mapping[TopicPartition, LogEnd] | None = None
        self._checked_epochs: dict[TopicPartition, tuple[int, int, int]] = {}
        """For each partition, a position, its epoch and a later epoch: nothing was truncated in between."""
        self._stale_since: dict[TopicPartition, float] = {}
        self._triggered_at: float | None = None
        self.latest: PartitionOffsets = {}

    def initial_position(self) -> StreamPosition:
        """Where the query starts if it has no checkpoint. Looked up once."""
        settings = self._settings
        if self._initial_position is None:
            with self._borrow() as client:
                found = discover(client, settings.subscription)
                partitions = require_found(found, settings.subscription)
                snapshot = self._topics.apply_metadata(found.partitions, found.ids, self._monotonic())
                self._initial_position = StreamPosition(
                    resolve_bound(client, settings, settings.start, partitions), snapshot.ids
                )
        return self._initial_position

    def bound_to_available(self) -> None:
        with self._borrow() as client:
            self._target = fetch_ends(client, self._topics_snapshot(client).present, self._settings)

    def next_end(self, start: StreamPosition, *, takes_all: bool) -> StreamPosition:
        """The end of the next batch. `start` itself if there shall be no batch yet."""
        self._topics.track({partition.topic for partition in start.offsets}, start.ids)
        with self._borrow() as client:
            snapshot, ends, found = self._ends(client, start)
            self.latest = ends
            # Spark passes the end of the last finished batch, so everything below it is done.
            if self._mirror is not None:
                self._mirror.commit_position(start.offsets, ends)
            if start == self._initial_position and self._may_move and not self._has_begun:
                self._has_begun = True
                return start
            if takes_all or not self._settings.limits.any_set:
                return _position(start, ends, snapshot, found)
            # Positions in recreated topics belong to the old topic: all records of the new one are to be
            # read.
            begun = {each: at for each, at in start.offsets.items() if each.topic not in snapshot.recreated}
            new = [each for each in ends.keys() - begun.keys() if each in snapshot.present]
            waiting = available(begun, ends, fetch_earliest(client, new, self._settings))
            within = self._within_limits(client, begun, ends, waiting)
            return start if within is None else _position(start, within, snapshot, found)

    def tasks(self, start: StreamPosition, end: StreamPosition) -> list[InputPartition]:
        settings = self._settings
        self._has_begun = True
        begin = start.offsets
        if start == self._initial_position:
            begin = first_batch_start(begin, end.offsets, may_move=self._may_move)
        recreated = changed_ids(start.ids, end.ids)
        self._topics.track({partition.topic for partition in end.offsets}, end.ids)
        with self._borrow() as client:
            wanted = {
                each.topic
                for each, until in end.offsets.items()
                if each.topic in recreated or begin.get(each, 0) < until
            }
            # A topic that one reply lacks must not be reported as deleted.
            deleted = self._await_topics(client, wanted).deleted & wanted
            there = {each: until for each, until in end.offsets.items() if each.topic not in deleted}
            present = self._topics_snapshot(client).present
            # A recreated topic may have fewer partitions. The other partitions existed when the batch was
            # planned: if a leader cannot return their first offset, the batch fails and Spark runs it
            # again.
            unsure = [
                each for each in there if (each in present if each.topic in recreated else each not in begin)
            ]
            earliest = fetch_earliest(client, unsure, settings)
        report_losses([f"topic {topic} has been deleted" for topic in sorted(deleted)], settings)
        known = {each: offset for each, offset in begin.items() if each.topic not in deleted}
        planned = plan_stream_batch(known, there, earliest, from_earliest=recreated)
        report_losses(planned.losses, settings)
        ranges = split_ranges(
            with_topic_ids(planned.ranges, end.ids),
            tasks_min=settings.tasks_min,
            records_max=settings.records_per_task_max,
        )
        return self._with_first_task_commit(ranges, begin)

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()

    def _with_first_task_commit(
        self, ranges: list[OffsetRange], start: PartitionOffsets
    ) -> list[InputPartition]:
        tasks: list[InputPartition] = [OffsetRangePartition(each, len(ranges)) for each in ranges]
        first_task_commit = None if self._mirror is None else self._mirror.first_task_commit(start)
        if first_task_commit is not None and ranges:
            tasks[0] = CommittingPartition(ranges[0], len(ranges), first_task_commit)
        return tasks

    # Partitions and their ends

    def _ends(
        self, client: ClusterClient, start: StreamPosition
    ) -> tuple[TopicsSnapshot, dict[TopicPartition, int], Mapping[TopicPartition, LogEnd]]:
        """The topics, where each partition of the query ends now, and the replies that say so.

        DataLost if records are lost and the user does not allow it.
        """
        found: Mapping[TopicPartition, LogEnd]
        if self._target is None:
            snapshot = self._topics_snapshot(client)
            try:
                found = fetch_ends(client, snapshot.present, self._settings)
            except TopicUnknown:
                # The topic was deleted between the two requests, or its leader lacks it for a moment.
                snapshot = self._topics_snapshot(client, again=True)
                found = fetch_ends(client, snapshot.present, self._settings)
        else:
            # The run ends when the target is reached, so it waits for absent topics.
            snapshot = self._await_topics(client, {each.topic for each in start.offsets})
            found = self._target = self._complete_target(client, start, snapshot, self._target)
        self._report_deleted(snapshot)
        begun = {each: at for each, at in start.offsets.items() if each.topic not in snapshot.recreated}
        held = {each: at for each, at in begun.items() if each not in snapshot.present}
        # A topic that was recreated with fewer partitions may get more: their records will begin at 0.
        dropped = {each: 0 for each in start.offsets.keys() - begun.keys() if each not in snapshot.present}
        offsets = {each: end.offset for each, end in found.items()}
        ends = dropped | dict(begun) | offsets | held
        truncated = self._truncated(client, start, begun.keys() - held.keys(), found)
        back = {each: at for each, at in begun.items() if ends[each] < at and each not in truncated}
        stale = self._still_stale(
            [each for each in back if each in found and _is_stale(start, each, found[each])]
        )
        if stale:
            self._discovered_at = None  # the next trigger looks for the leaders again
            ends |= {each: back.pop(each) for each in stale}
        if back and self._settings.read_committed:
            back = self._without_open_transactions(client, back, ends)
        ends |= truncated
        # If the loss does not fail the query, `tasks` reports it.
        if self._settings.fail_on_data_loss:
            lost = back.keys() | truncated.keys()
            report_losses(truncation_losses({each: begun[each] for each in lost}, ends), self._settings)
        return snapshot, ends, found

    def _truncated(
        self,
        client: ClusterClient,
        start: StreamPosition,
        partitions: Iterable[TopicPartition],
        found: Mapping[TopicPartition, LogEnd],
    ) -> PartitionOffsets:
        """The partitions that were truncated below the position, and to which offset (rule 3)."""
        elections = {
            each: (start.offsets[each], start.epochs[each], found[each].leader_epoch)
            for each in partitions
            if each in found and found[each].leader_epoch > start.epochs.get(each, LONG_MAX)
        }
        unsure = {each: facts for each, facts in elections.items() if self._checked_epochs.get(each) != facts}
        if not unsure:
            return {}
        try:
            kept = client.epoch_ends({each: epoch for each, (_, epoch, _) in unsure.items()})
        except TopicUnknown:
            return {}  # it was deleted just now, which the next trigger finds
        truncated = {each: end for each, end in kept.items() if 0 <= end < start.offsets[each]}
        self._checked_epochs |= {each: facts for each, facts in unsure.items() if each not in truncated}
        return truncated

    def _complete_target(
        self,
        client: ClusterClient,
        start: StreamPosition,
        snapshot: TopicsSnapshot,
        target: Mapping[TopicPartition, LogEnd],
    ) -> Mapping[TopicPartition, LogEnd]:
        """The target with ends of partitions that it lacks, or that a deposed leader reported."""
        while True:
            wanted = [each for each in start.offsets if each in snapshot.present]
            late = [each for each in wanted if each not in target or _is_stale(start, each, target[each])]
            target = {**target, **fetch_ends(client, late, self._settings)}
            if not self._still_stale([each for each in late if _is_stale(start, each, target[each])]):
                return target
            self._sleep(_ABSENT_PAUSE_S)
            snapshot = self._topics_snapshot(client, again=True)

    def _still_stale(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Those of these partitions for which another leader may still be found.

        If all replies are those of older epochs for as long as it takes to find that a topic is gone, the
        cluster was set back.
        """
        now = self._monotonic()
        self._stale_since = {each: self._stale_since.get(each, now) for each in partitions}
        return frozenset(
            each for each, since in self._stale_since.items() if now - since < self._gone_after_s
        )

    def _without_open_transactions(
        self, client: ClusterClient, back: PartitionOffsets, ends: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The partitions in `back` that do not end at an open transaction. No record of the others is lost.

        Their last stable offset lies below a position that was reached with another isolation level. They
        keep their position.
        """
        uncommitted = self._settings._replace(read_committed=False)
        written = fetch_latest(client, back, uncommitted)
        waiting = {each: at for each, at in back.items() if written[each] >= at}
        ends |= waiting
        return {each: at for each, at in back.items() if each not in waiting}

    def _topics_snapshot(self, client: ClusterClient, *, again: bool = False) -> TopicsSnapshot:
        """The topics, refreshed only now and then, because triggers may come every few milliseconds."""
        now = self._monotonic()
        known = self._topics.snapshot(now)
        wait_s = self._settings.discovery_ms / 1000
        if known.absent:
            wait_s = min(wait_s, _ABSENT_PAUSE_S)  # an absent topic is checked again soon
        if self._discovered_at is not None and now - self._discovered_at < wait_s and not again:
            return known
        found = discover(client, self._settings.subscription, self._topics.ids())
        self._discovered_at = self._monotonic()
        snapshot = self._topics.apply_metadata(found.partitions, found.ids, self._discovered_at)
        if snapshot.absent and isinstance(self._settings.subscription, TopicPattern):
            # A request for all topics goes to one broker. One that names topics is retried with other
            # brokers.
            more = discover(client, NamedTopics(tuple(sorted(snapshot.absent))), self._topics.ids())
            ids = {**found.ids, **more.ids}
            snapshot = self._topics.apply_metadata(
                found.partitions | more.partitions, ids, self._discovered_at
            )
        return snapshot

    def _await_topics(self, client: ClusterClient, topics: Collection[str]) -> TopicsSnapshot:
        """The topics, once each of these is found or certainly deleted."""
        self._topics.track(topics, {})
        snapshot = self._topics_snapshot(client)
        while snapshot.absent.intersection(topics):
            self._sleep(_ABSENT_PAUSE_S)
            snapshot = self._topics_snapshot(client, again=True)
        return snapshot

    def _report_deleted(self, snapshot: TopicsSnapshot) -> None:
        news = sorted(snapshot.deleted - self._reported_deleted)
        for topic in news:
            what = "deleted and made anew" if topic in snapshot.recreated else "deleted"
            report_losses([f"topic {topic} has been {what}"], self._settings)
        self._reported_deleted = set(
            snapshot.deleted
        )  # a topic that is recreated and deleted again is reported again

    # Limits

    def _within_limits(
        self,
        client: ClusterClient,
        start: PartitionOffsets,
        ends: PartitionOffsets,
        waiting: Mapping[TopicPartition, int],
    ) -> PartitionOffsets | None:
        """The end of the batch within the limits. None: too few offsets for a batch."""
        limits = self._settings.limits
        if self._target is None and self._has_too_few_offsets(sum(waiting.values())):
            return None
        most = sum(waiting.values()) if limits.offsets_max is None else limits.offsets_max
        if limits.bytes_max is not None:
            weights = record_bytes(client, self._settings, ends, waiting)
            most = min(most, offsets_within_bytes(waiting, weights, limits.bytes_max))
        return limit_offsets(start, ends, waiting, most)

    def _has_too_few_offsets(self, count: int) -> bool:
        """Whether to wait for minOffsetsPerTrigger, which is done for at most maxTriggerDelay."""
        limits, now = self._settings.limits, self._monotonic()
        if limits.offsets_min is None:
            return False
        is_due = self._triggered_at is None or (now - self._triggered_at) * 1000 >= limits.delay_ms_max
        if count < limits.offsets_min and not is_due:
            return True
        self._triggered_at = now
        return False


def _is_stale(start: StreamPosition, partition: TopicPartition, end: LogEnd) -> bool:
    """Whether this end, which lies below the position, is that of a leader from before the position."""
    epoch = start.epochs.get(partition, -1)
    return end.offset < start.offsets[partition] and 0 <= end.leader_epoch < epoch


def _position(
    start: StreamPosition,
    offsets: PartitionOffsets,
    snapshot: TopicsSnapshot,
    found: Mapping[TopicPartition, LogEnd],
) -> StreamPosition:
    """The position at these offsets. Partitions that stay where they are keep their epoch."""
    epochs: dict[TopicPartition, int] = {}
    for each, offset in offsets.items():
        stays = start.offsets.get(each) == offset and each.topic not in snapshot.recreated
        if stays and each in start.epochs:
            epochs[each] = start.epochs[each]
        elif not stays and each in found and found[each].leader_epoch >= 0:
            epochs[each] = found[each].leader_epoch
    return StreamPosition(offsets, snapshot.ids, epochs)
