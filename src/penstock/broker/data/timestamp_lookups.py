"""Offset lookups by timestamp for requests, run step by step in a thread of their own.

A step is short (log/reading/time_lookup.py). The thread alternates between the lookups of all requests after
every step, so a lookup over many segments delays the others little. Cold fetches, followers and coordinator
loading use other threads and are not delayed at all.

Rule 1: a lookup ends when its client disconnects or its request's time is up.
Rule 2: a lookup starts over when one of its segments was replaced meanwhile.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.broker.router import DeferredReply
from penstock.broker.storage.cold_reads import ColdReads, SegmentsChanged
from penstock.errors import ApiError, CorruptData, ErrorCode, StorageFailed, StorageFull
from penstock.host.clock import Clock
from penstock.host.tasks import Tasks
from penstock.host.worker import yield_gil
from penstock.limits import LOOKUP_MS_MAX
from penstock.log.reading.time_lookup import LOOKUP_LIMITS, LookupLimits, TimedOffset, TimeSearch
from penstock.protocol.messages.list_offsets import ListOffsetsPartitionResponse, ListOffsetsResponse
from penstock.replication.partition import Partition

NO_TIMEOUT: Final = 0


class Lookup(NamedTuple):
    entry: ListOffsetsPartitionResponse
    """The response entry that the lookup fills in."""
    partition: Partition
    timestamp: int | None
    """The timestamp to search for; None searches for the record with the largest timestamp."""
    is_committed: bool = False
    """Whether only records below the last stable offset count."""


class LookupEnded(Exception):
    """The client disconnected, or the request's time is up."""


class LookupDeadline:
    """Deadline of all lookups of one request. Worker threads check it, too."""

    def __init__(self, clock: Clock, timeout_ms: int = NO_TIMEOUT) -> None:
        limit_ms = min(timeout_ms, LOOKUP_MS_MAX) if timeout_ms > NO_TIMEOUT else LOOKUP_MS_MAX
        self._clock = clock
        self._ends_at = clock.monotonic() + limit_ms / 1000
        self._is_abandoned = False

    def abandon(self) -> None:
        """End the lookups: the client has disconnected."""
        self._is_abandoned = True

    def check(self) -> None:
        if self._is_abandoned or self._clock.monotonic() >= self._ends_at:
            raise LookupEnded


class TimeLookups:
    def __init__(
        self,
        reads: ColdReads,
        tasks: Tasks,
        clock: Clock,
        limits: LookupLimits = LOOKUP_LIMITS,
        yield_gil: Callable[[], None] = yield_gil,
    ) -> None:
        """`reads`: reads on a pool of one thread that only lookups use."""
        self._limits = limits
        self._give_way = yield_gil
        self._reads = reads
        self._tasks = tasks
        self._clock = clock

    def begin(self, lookups: list[Lookup], response: ListOffsetsResponse, timeout_ms: int) -> DeferredReply:
        """Start the lookups. The reply is finished when every lookup has filled in its entry."""
        deadline = LookupDeadline(self._clock, timeout_ms)
        later = DeferredReply(abandon=deadline.abandon)
        self._tasks.start(self._look_up(lookups, deadline, later, response), "lookup by time")
        return later

    async def _look_up(
        self,
        lookups: list[Lookup],
        deadline: LookupDeadline,
        later: DeferredReply,
        response: ListOffsetsResponse,
    ) -> None:
        try:
            for lookup in lookups:
                await self._fill_in(lookup, deadline)
        except BaseException:
            # Requests behind this one must not wait for ever, and the worker thread must stop searching.
            deadline.abandon()
            for entry, *_ in lookups:
                entry.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
            raise
        finally:
            later.finish(response)

    async def _fill_in(self, lookup: Lookup, deadline: LookupDeadline) -> None:
        entry, partition, *_ = lookup
        try:
            found = await self._find(lookup, deadline)
        except LookupEnded:
            entry.error_code = ErrorCode.REQUEST_TIMED_OUT
        except ApiError as rejection:
            entry.error_code = rejection.code
        except (CorruptData, StorageFailed, StorageFull):
            entry.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            if found is not None:
                entry.offset, entry.timestamp = found
                entry.leader_epoch = partition.log.epochs.epoch_at(found.offset)

    async def _find(self, lookup: Lookup, deadline: LookupDeadline) -> TimedOffset | None:
        _, partition, timestamp, is_committed = lookup

        def pause() -> None:
            self._give_way()
            deadline.check()

        while True:
            # The deadline is checked first: preparing a lookup visits every segment on the event loop,
            # without a pause.
            deadline.check()
            segments = partition.time_lookup(is_committed=is_committed)
            search = TimeSearch(segments, timestamp, pause, limits=self._limits)
            try:
                return await self._run(partition, search, deadline)
            except SegmentsChanged:
                continue  # rule 2: planned again from the segments that the log has now

    async def _run(
        self, partition: Partition, search: TimeSearch, deadline: LookupDeadline
    ) -> TimedOffset | None:
        while True:
            deadline.check()
            step = await self._reads.run(partition, search)
            if step.is_done:
                return step.found
