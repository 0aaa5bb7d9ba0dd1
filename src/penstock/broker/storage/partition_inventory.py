"""Records for the next start which partitions are on this disk, and how far the broker has read the metadata
store.

A missing folder looks like the folder of a partition that was never written. A broker that confused the two
would lead an empty partition, and its followers would truncate their copies to nothing. So the broker keeps a
list of its partitions, and the next start compares the list with the folders on disk
(`ReplicaManager.open_all`).

A metadata store that was restored from an older backup lacks the topics that were created since, and names
replicas as in sync that have fallen behind. A broker that starts with such a store detects it by the recorded
progress (store_identity.py). A clean shutdown writes both records as well (`Storage.close`).

Rule 1: a partition is listed only when its folder survives a crash. So a folder that was never durable is
        never missed.
Rule 2: until this process is admitted to the cluster, the list of the previous process stands: the cluster
        has yet to learn which partitions are missing, also if this process crashes before that.
"""

import asyncio
from itertools import count
from typing import Final

from penstock.broker.storage.partition_storage import Storage
from penstock.errors import StorageFailed, StorageFull
from penstock.log.data_directory import NOT_ADMITTED, DataDirectory, StoreProgress
from penstock.observability.logs import Log

INVENTORY_LOOK_MS: Final = 250
STORE_LOOKS: Final = 4
"""The progress in the store changes all the time, so it is recorded only at every fourth check."""
INVENTORY_PAUSE_MS: Final = 5_000
"""The pause after the disk failed a write."""


class InventoryKeeper:
    def __init__(self, directory: DataDirectory, storage: Storage, log: Log) -> None:
        self._directory = directory
        self._storage = storage
        self._log = log
        self._recorded_partition_files = -1
        self._seen: StoreProgress | None = None
        """The progress as it was last written."""

    async def run(self) -> None:
        """Task that keeps both records up to date."""
        for look in count(1):
            await asyncio.sleep(INVENTORY_LOOK_MS / 1000)
            if self._directory.broker_epoch == NOT_ADMITTED or not self._is_due(look):
                continue
            try:
                await self.write_inventory()
            except (StorageFull, StorageFailed) as problem:
                self._log.warning("storage.no_inventory", reason=str(problem))
                await asyncio.sleep(INVENTORY_PAUSE_MS / 1000)

    async def write_inventory(self) -> None:
        new_partition_files = self._storage.partitions.new_partition_files
        # The list may use the reserved space: a missing folder that is not listed goes unnoticed.
        if new_partition_files != self._recorded_partition_files:
            inventory = self._directory.inventory_file(self._storage.partitions.inventory())
            await self._storage.with_reserve(lambda: self._directory.disk.store([inventory]))
            self._recorded_partition_files = new_partition_files
        # Read together before the write: the progress may advance while the worker writes.
        store_progress, note = self._directory.store_progress, self._directory.store_progress_file()
        await self._storage.store([note])
        self._seen = store_progress

    def _is_due(self, look: int) -> bool:
        if self._storage.partitions.new_partition_files != self._recorded_partition_files:
            return True
        return look % STORE_LOOKS == 0 and self._directory.store_progress != self._seen
