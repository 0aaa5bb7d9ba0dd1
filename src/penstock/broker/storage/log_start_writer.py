"""Stores log start offsets durably as soon as they move: DeleteRecords waits for that.

The leader stores the new start before it confirms a deletion. A follower receives the new start in the reply
to its fetch, stores the start in the background, and reports the stored start with its next fetches
(`FollowerRole.ask`). Many starts that move together, for example after retention, are stored together.

Rule 1: the start in a log's start file never decreases. Checkpoints write that file too, so every writer
        holds one lock from the moment it decides what to write until that is on disk: a checkpoint that was
        planned with an older start is never written after a newer start.
Rule 2: a truncation replaces the log's files, including the start file. No truncation begins while a start is
        being stored (log/file_uses.py).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice

from penstock.errors import StorageFailed, StorageFull
from penstock.host.disk import SmallFile
from penstock.limits import CHECKPOINT_PARTITIONS_AT_ONCE, LOG_START_PAUSE_MS
from penstock.log.file_uses import FileUse
from penstock.log.partition_log import PartitionLog
from penstock.observability.logs import Log
from penstock.types import Offset

Store = Callable[[Sequence[SmallFile]], Awaitable[None]]
"""Replaces small files in the storage worker. It may use the reserved space, because deleting frees space."""


class LogStartWriter:
    def __init__(
        self, store: Store, lock: asyncio.Lock, on_failure: Callable[[StorageFailed], None], log: Log
    ) -> None:
        self._store = store
        self._lock = lock
        """The lock that checkpoints hold too (rule 1)."""
        self._on_failure = on_failure
        self._log = log
        self._due: dict[PartitionLog, None] = {}
        self._wakeup = asyncio.Event()

    def request(self, log: PartitionLog) -> None:
        """Store the current start of a log soon."""
        log.file_uses.begin(FileUse.START_FILE)
        self._due[log] = None
        self._wakeup.set()

    async def run(self) -> None:
        """Store requested starts. The background task of this class."""
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
            await self.store({log: log.log_start_offset for log in logs})
        except StorageFull as full:
            self._log.warning("log_start.postponed", reason=str(full))
            await asyncio.sleep(LOG_START_PAUSE_MS / 1000)
            # Not a use of the file while it waits, so that a truncation that would free space need not wait.
            self._due.update(dict.fromkeys(logs))
        except StorageFailed as failure:
            self._on_failure(failure)

    async def store(self, starts: Mapping[PartitionLog, Offset]) -> None:
        """Return once each log begins at its new start or later, also after a crash.

        StorageFull, StorageFailed: the logs keep their previous starts.
        """
        try:
            async with self._lock:
                # Checked under the lock: while this call waited for it, a log may have been closed or
                # truncated.
                due = {log: start for log, start in starts.items() if _is_due(log, start)}
                for log in due:
                    log.file_uses.begin(FileUse.START_FILE)
                if due:
                    await self._store([log.start_file(offset) for log, offset in due.items()])
                # Only after the fsync: a start that is reported as stored must survive a crash.
                for log, offset in due.items():
                    log.start_stored(offset)
        finally:
            for log in starts:
                log.file_uses.end(FileUse.START_FILE)


def _is_due(log: PartitionLog, offset: Offset) -> bool:
    may_store = log.file_uses.may_begin(FileUse.START_FILE)
    return may_store and log.stored_start < offset <= log.log_end_offset
