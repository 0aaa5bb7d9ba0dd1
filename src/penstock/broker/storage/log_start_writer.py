"""Makes the start of a log survive a crash as soon as it moves: DeleteRecords waits for that.

The leader stores the new start before it confirms anything. A follower learns the new start from the answer
to its fetch, stores it in the background, and reports what is stored with its fetches (`FollowerRole.ask`).
Many starts that move together, after retention for example, are stored together.

Rule 1: what the start file of a log says never goes back. Checkpoints write that file too, so every writer
        holds one lock from the moment it decides what to write until that is on disk: a checkpoint that
        was planned with an older start is never carried out after a newer start was stored.
Rule 2: a truncation replaces the log's files, the start file too. None begins while a start is being stored
        (`PartitionLog.is_busy`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import NamedTuple

from penstock.errors import StorageFailed, StorageFull
from penstock.host.disk import SmallFile
from penstock.limits import CHECKPOINT_PARTITIONS_AT_ONCE, LOG_START_PAUSE_MS
from penstock.log.partition_log import PartitionLog
from penstock.observability.logs import Log
from penstock.types import Offset

Store = Callable[[Sequence[SmallFile]], Awaitable[None]]
"""Replaces small files in the storage worker. It may use the reserved space: deleting makes room."""


class NewStart(NamedTuple):
    log: PartitionLog
    offset: Offset


class LogStartWriter:
    def __init__(
        self, store: Store, lock: asyncio.Lock, on_failure: Callable[[StorageFailed], None], log: Log
    ) -> None:
        self._store = store
        self._lock = lock
        """The lock of checkpoints."""
        self._on_failure = on_failure
        self._log = log
        self._due: dict[PartitionLog, None] = {}
        self._wakeup = asyncio.Event()

    def request(self, log: PartitionLog) -> None:
        """Store where the log begins now, soon."""
        log.is_storing_start = True
        self._due[log] = None
        self._wakeup.set()

    async def run(self) -> None:
        """Store what was requested. The background task of this class."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._due:
                await self._store_next()

    async def _store_next(self) -> None:
        logs = list(islice(self._due, CHECKPOINT_PARTITIONS_AT_ONCE))
        for log in logs:
            del self._due[log]
        try:
            await self.store([NewStart(log, log.log_start_offset) for log in logs])
        except StorageFull as full:
            self._log.warning("log_start.postponed", reason=str(full))
            await asyncio.sleep(LOG_START_PAUSE_MS / 1000)
            # `is_storing_start` stays False: a truncation that would make room need not wait for this.
            self._due.update(dict.fromkeys(logs))
        except StorageFailed as failure:
            self._on_failure(failure)

    async def store(self, starts: Sequence[NewStart]) -> None:
        """Return once these logs begin there, if not later, and will after a crash.

        StorageFull or StorageFailed: they begin where they did.
        """
        try:
            async with self._lock:
                # What was known before the lock was taken may be over: the log may be closed, or shorter.
                due = [start for start in starts if _is_due(start)]
                for log, _ in due:
                    log.is_storing_start = True
                if due:
                    await self._store([log.start_file(offset) for log, offset in due])
                for log, offset in due:
                    log.start_stored(offset)
        finally:
            for log, _ in starts:
                log.is_storing_start = False


def _is_due(start: NewStart) -> bool:
    log, offset = start
    return (
        not (log.is_closed or log.is_truncating)
        and offset <= log.log_end_offset
        and offset > log.stored_start
    )
