"""The planner of a stream: what the next batch is, and which tasks read it.

Topics and partitions that appear are found while the query runs (partition.metadata.cache.ttl.ms) and
read from their beginning. Topics that are deleted or made anew, and partitions that begin above 0 or whose
end goes back, are lost data: the query ends, or goes on if the user wants it so.

Rule 1: what one answer of the cluster lacks stays where it is in the position (known_topics.py). A
        partition never leaves a position.
Rule 2: a topic is read from its beginning again only if its id in the position is another one now. An end
        below the position under the same id is where the query goes on.
Rule 3: data that is lost for certain ends the query before Spark writes the batch to its checkpoint, so that
        the next start does not find a batch that cannot be read.
"""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Final

from pyspark.sql.datasource import InputPartition

from penstock.spark.options.client import client_settings
from penstock.spark.options.options import Pattern, ReadSettings, Topics, may_move
from penstock.spark.pool import borrowed
from penstock.spark.source.discovery import (
    discover,
    earliest_of,
    latest_of,
    report_losses,
    required,
    resolve,
)
from penstock.spark.source.known_topics import KnownTopics, Look, changed_ids
from penstock.spark.source.mirror import Duty, Mirror
from penstock.spark.source.offsets import (
    Mark,
    Position,
    Range,
    available,
    first_start,
    limited,
    limited_by_bytes,
    plan,
    split,
    went_back,
    with_ids,
)
from penstock.spark.source.reading import record_bytes
from penstock.spark.source.source import RangePartition
from penstock.types import TopicPartition
from penstock.wire.cluster import ClusterClient
from penstock.wire.errors import TopicUnknown
from penstock.wire.retrying import gone_after_s

_ABSENT_PAUSE_S: Final = 0.2

Borrow = Callable[[], AbstractContextManager[ClusterClient]]


class FirstPartition(RangePartition):
    """The task that also shows the query's position, while the planner cannot."""

    def __init__(self, wanted: Range, count: int, duty: Duty) -> None:
        super().__init__(wanted, count)
        self.duty = duty


class Planner:
    """Looks for news, and cuts it into tasks.

    Spark writes down where each batch ends, and for the very first one nobody writes down where it
    starts: Spark asks for that again, several times and also after a crash. An answer that has moved
    meanwhile would leave records out. So it is looked up once, and if it can move, the first batch is
    empty: its end, in the checkpoint, is the start.
    """

    def __init__(
        self,
        settings: ReadSettings,
        borrow: Borrow | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._borrow = borrow or (lambda: borrowed(client_settings(settings.access)))
        self._monotonic = monotonic
        self._sleep = sleep
        self._may_move = may_move(settings.start, latest_if_no_match=settings.latest_if_no_match)
        self._initial: Mark | None = None
        self._has_begun = False
        self._mirror = Mirror(settings) if settings.mirror else None
        self._topics = KnownTopics(gone_after_s(settings.access.timeout_s))
        self._asked_at: float | None = None
        self._told_gone: set[str] = set()
        self._target: Position | None = None
        self._triggered_at: float | None = None
        self.latest: Position = {}

    def initial(self) -> Mark:
        settings = self._settings
        if self._initial is None:
            with self._borrow() as client:
                found = discover(client, settings.subscription)
                partitions = required(found, settings.subscription)
                look = self._topics.learn(found.partitions, found.ids, self._monotonic())
                self._initial = Mark(resolve(client, settings, settings.start, partitions), look.ids)
        return self._initial

    def stop_at_what_is_there(self) -> None:
        with self._borrow() as client:
            self._target = latest_of(client, self._look(client).present, self._settings)

    def next_end(self, start: Mark, *, takes_all: bool) -> Mark:
        """Where the next batch ends; `start` itself if there shall be none yet."""
        self._topics.expect({partition.topic for partition in start.offsets}, start.ids)
        with self._borrow() as client:
            look, ends = self._ends(client, start)
            self.latest = ends
            if self._mirror is not None:
                self._mirror.follow(start.offsets, ends)
            if start == self._initial and self._may_move and not self._has_begun:
                self._has_begun = True
                return start
            if takes_all or not self._settings.limits.are_any:
                return Mark(ends, look.ids)
            # Positions in topics that were made anew are of the old ones: all of the new ones waits.
            begun = {each: at for each, at in start.offsets.items() if each.topic not in look.made_anew}
            new = [each for each in ends.keys() - begun.keys() if each in look.present]
            waiting = available(begun, ends, earliest_of(client, new, self._settings))
            within = self._within_limits(client, begun, ends, waiting)
            return start if within is None else Mark(within, look.ids)

    def tasks(self, start: Mark, end: Mark) -> list[InputPartition]:
        settings = self._settings
        self._has_begun = True
        begin = start.offsets
        if start == self._initial:
            begin = first_start(begin, end.offsets, may_move=self._may_move)
        made_anew = changed_ids(start.ids, end.ids)
        self._topics.expect({partition.topic for partition in end.offsets}, end.ids)
        with self._borrow() as client:
            wanted = {
                each.topic
                for each, until in end.offsets.items()
                if each.topic in made_anew or begin.get(each, 0) < until
            }
            gone = self._await(client, wanted).gone & wanted
            there = {each: until for each, until in end.offsets.items() if each.topic not in gone}
            present = self._look(client).present
            # A topic made anew may have fewer partitions. Others were there when the batch was planned: that
            # a leader cannot be asked for their beginning fails the batch, which is then run again.
            unsure = [
                each for each in there if (each in present if each.topic in made_anew else each not in begin)
            ]
            earliest = earliest_of(client, unsure, settings)
        report_losses([f"topic {topic} has been deleted" for topic in sorted(gone)], settings)
        known = {each: offset for each, offset in begin.items() if each.topic not in gone}
        planned = plan(known, there, earliest, from_earliest=made_anew)
        report_losses(planned.losses, settings)
        ranges = split(
            with_ids(planned.ranges, end.ids),
            tasks_min=settings.tasks_min,
            records_max=settings.records_per_task_max,
        )
        return self._with_duty(ranges, begin)

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()

    def _with_duty(self, ranges: list[Range], start: Position) -> list[InputPartition]:
        tasks: list[InputPartition] = [RangePartition(each, len(ranges)) for each in ranges]
        duty = None if self._mirror is None else self._mirror.duty(start)
        if duty is not None and ranges:
            tasks[0] = FirstPartition(ranges[0], len(ranges), duty)
        return tasks

    # What there is

    def _ends(self, client: ClusterClient, start: Mark) -> tuple[Look, dict[TopicPartition, int]]:
        """The topics, and where each partition of the query ends now. DataLost unless that is allowed."""
        if self._target is None:
            look = self._look(client)
            try:
                found = latest_of(client, look.present, self._settings)
            except TopicUnknown:
                # Deleted between the two questions, or the leader has forgotten it for a moment.
                look = self._look(client, again=True)
                found = latest_of(client, look.present, self._settings)
        else:
            # The run ends when the target is reached, so what is absent is waited for.
            look = self._await(client, {each.topic for each in start.offsets})
            late = [each for each in start.offsets if each in look.present and each not in self._target]
            found = {**self._target, **latest_of(client, late, self._settings)}
            self._target = found
        self._report_gone(look)
        begun = {each: at for each, at in start.offsets.items() if each.topic not in look.made_anew}
        held = {each: at for each, at in begun.items() if each not in look.present}
        # A topic that was made anew with fewer partitions may get more: their records begin at 0 then.
        dropped = {each: 0 for each in start.offsets.keys() - begun.keys() if each not in look.present}
        ends = dropped | {each: found.get(each, at) for each, at in begun.items()} | found | held
        back = {each: at for each, at in begun.items() if ends[each] < at}
        if back and self._settings.read_committed:
            back = self._without_waiting(client, back, ends)
        if self._settings.fail_on_data_loss:
            report_losses(went_back(back, ends), self._settings)
        return look, ends

    def _without_waiting(
        self, client: ClusterClient, back: Position, ends: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Without those whose end is that of an open transaction: no record of theirs is lost.

        Their last stable offset lies below a position that was reached with another isolation level. They
        wait where they are.
        """
        uncommitted = self._settings._replace(read_committed=False)
        written = latest_of(client, back, uncommitted)
        waiting = {each: at for each, at in back.items() if written[each] >= at}
        ends |= waiting
        return {each: at for each, at in back.items() if each not in waiting}

    def _look(self, client: ClusterClient, *, again: bool = False) -> Look:
        """Asked again now and then only: triggers may come every few milliseconds."""
        now = self._monotonic()
        known = self._topics.look(now)
        wait_s = self._settings.discovery_ms / 1000
        if known.absent:
            wait_s = min(wait_s, _ABSENT_PAUSE_S)  # what is not decided yet is asked about soon
        if self._asked_at is not None and now - self._asked_at < wait_s and not again:
            return known
        found = discover(client, self._settings.subscription, self._topics.ids())
        self._asked_at = self._monotonic()
        look = self._topics.learn(found.partitions, found.ids, self._asked_at)
        if look.absent and isinstance(self._settings.subscription, Pattern):
            # A question for all topics goes to one broker; one that names them goes to others too.
            more = discover(client, Topics(tuple(sorted(look.absent))), self._topics.ids())
            ids = {**found.ids, **more.ids}
            look = self._topics.learn(found.partitions | more.partitions, ids, self._asked_at)
        return look

    def _await(self, client: ClusterClient, topics: Collection[str]) -> Look:
        """The topics, once each of these is there or is gone for certain."""
        self._topics.expect(topics, {})
        look = self._look(client)
        while look.absent.intersection(topics):
            self._sleep(_ABSENT_PAUSE_S)
            look = self._look(client, again=True)
        return look

    def _report_gone(self, look: Look) -> None:
        news = sorted(look.gone - self._told_gone)
        for topic in news:
            what = "deleted and made anew" if topic in look.made_anew else "deleted"
            report_losses([f"topic {topic} has been {what}"], self._settings)
        self._told_gone = set(look.gone)  # one that comes back and is deleted again is reported again

    # How much of it

    def _within_limits(
        self, client: ClusterClient, start: Position, ends: Position, waiting: Mapping[TopicPartition, int]
    ) -> Position | None:
        """None: too little waits for a batch."""
        limits = self._settings.limits
        if self._target is None and self._shall_wait(sum(waiting.values())):
            return None
        most = sum(waiting.values()) if limits.offsets_max is None else limits.offsets_max
        if limits.bytes_max is not None:
            weights = record_bytes(client, self._settings, ends, waiting)
            most = min(most, limited_by_bytes(waiting, weights, limits.bytes_max))
        return limited(start, ends, waiting, most)

    def _shall_wait(self, count: int) -> bool:
        """minOffsetsPerTrigger, for at most maxTriggerDelay."""
        limits, now = self._settings.limits, self._monotonic()
        if limits.offsets_min is None:
            return False
        is_due = self._triggered_at is None or (now - self._triggered_at) * 1000 >= limits.delay_ms_max
        if count < limits.offsets_min and not is_due:
            return True
        self._triggered_at = now
        return False
