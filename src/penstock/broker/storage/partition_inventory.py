"""Which partitions are on this disk, and how far its broker has seen the metadata store, for the next start.

A folder that is gone looks like that of a partition which was never written. A broker that took the one for
the other would lead an empty partition, and its followers would cut theirs to the same. So it keeps a list,
which the next start compares with what is there (`ReplicaManager.open_all`).

A metadata store that is put back from an older copy knows nothing of the topics that were made since, and
names replicas as in sync that have fallen behind. A broker that starts with it notices (`history`). A clean
stop writes both as well (`Storage.close`).

Rule 1: what is listed has a folder that survives a crash. So nothing is missed that was never there.
Rule 2: until this process is admitted, the list of the one before it stands: the cluster has yet to be told
        what of it is missing, also if this process does not live to do so.
"""

import asyncio
from itertools import count
from typing import Final

from penstock.broker.storage.partition_storage import Storage
from penstock.errors import StorageFailed, StorageFull
from penstock.log.data_directory import NO_BROKER_EPOCH, DataDirectory, StoreProgress
from penstock.observability.logs import Log

INVENTORY_LOOK_MS: Final = 250
STORE_LOOKS: Final = 4
"""What was seen of the store is noted at every so many looks only: it may change all the time."""
INVENTORY_PAUSE_MS: Final = 5_000
"""After the disk refused it."""


class InventoryKeeper:
    def __init__(self, directory: DataDirectory, storage: Storage, log: Log) -> None:
        self._directory = directory
        self._storage = storage
        self._log = log
        self._recorded_partition_files = -1
        self._seen: StoreProgress | None = None
        """As they were when they were last written."""

    async def run(self) -> None:
        """The task."""
        for look in count(1):
            await asyncio.sleep(INVENTORY_LOOK_MS / 1000)
            if self._directory.broker_epoch == NO_BROKER_EPOCH or not self._is_due(look):
                continue
            try:
                await self._write_inventory()
            except (StorageFull, StorageFailed) as problem:
                self._log.warning("storage.no_inventory", reason=str(problem))
                await asyncio.sleep(INVENTORY_PAUSE_MS / 1000)

    async def _write_inventory(self) -> None:
        new_partition_files = self._storage.partitions.new_partition_files
        if new_partition_files != self._recorded_partition_files:
            inventory = self._directory.inventory_file(self._storage.partitions.inventory())
            await self._storage.with_reserve(lambda: self._directory.disk.store([inventory]))
            self._recorded_partition_files = new_partition_files
        store_progress, note = self._directory.store_progress, self._directory.store_progress_file()
        await self._storage.store([note])
        self._seen = store_progress

    def _is_due(self, look: int) -> bool:
        if self._storage.partitions.new_partition_files != self._recorded_partition_files:
            return True
        return look % STORE_LOOKS == 0 and self._directory.store_progress != self._seen
