"""Resources that all logs of a broker share, each limited in number or size.

Its settings limit a single log; these resources limit thousands of logs together.
"""

from typing import NamedTuple

from penstock.host.disk import Disk
from penstock.limits import INDEX_BYTES_KEPT_MAX
from penstock.log.index.index_cache import IndexCache
from penstock.log.open_files import OpenFiles
from penstock.log.producer_state import PRODUCER_LIMITS, ProducerLimits, ProducerRegistry


class SharedLogResources(NamedTuple):
    """Index cache, open files and producers of all logs."""

    indexes: IndexCache
    files: OpenFiles
    producers: ProducerRegistry

    @classmethod
    def on(cls, disk: Disk, producers: ProducerLimits = PRODUCER_LIMITS) -> "SharedLogResources":
        return cls(
            IndexCache(INDEX_BYTES_KEPT_MAX), OpenFiles(disk.open_files_max), ProducerRegistry(producers)
        )
