"""A fault that is timed to a partition change on its way to the metadata store.

The store may carry out a change long after the broker that sent it stopped waiting for the reply. What
happens to brokers in the meantime makes that dangerous, and chance alone seldom combines the two. An ambush
combines them: the change arrives after its sender gave up, or its reply is lost, and a broker that the
change makes leader or adds to the ISR is partitioned, paused or killed.

Rule: An ambush only does what may happen anyway. The usual checks decide whether a result is wrong.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.host.metadata_store import Put, StoreChange
from penstock.metadata.cluster_image import NO_NODE, ClusterImage
from penstock.metadata.image_builder import apply
from penstock.metadata.image_changes import PartitionChange, changed_partitions
from penstock.metadata.keys import ClusterKeys
from penstock.sim.store import RequestFault

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

CHANGE_SECONDS_MAX: Final = 20.0
ELECTIONS_SHARE: Final = 0.3
"""The share of elections that are ambushed, because elections are much more frequent than joins of the
ISR.
"""


class AmbushTarget(NamedTuple):
    leader: int
    """The leader after the change."""
    victim: int
    """The broker that becomes leader, or joins the ISR, by the change."""


class Ambush:
    def __init__(self, cluster: "SimCluster", random: Random) -> None:
        self._cluster = cluster
        self._random = random

    async def target(self) -> AmbushTarget | None:
        """The brokers of the next intercepted change. None: no change came, or another ambush is active."""
        store = self._cluster.store
        if store.ambush is not None:
            return None
        caught: asyncio.Future[AmbushTarget] = self._cluster.loop.create_future()

        def intercept(changes: Sequence[StoreChange]) -> RequestFault | None:
            target = self._target_of(changes)
            if target is None:
                return None
            store.ambush = None
            caught.set_result(target)
            return self._request_fault()

        store.ambush = intercept
        try:
            async with asyncio.timeout(CHANGE_SECONDS_MAX):
                return await caught
        except TimeoutError:
            return None
        finally:
            if store.ambush is intercept:
                store.ambush = None

    def _request_fault(self) -> RequestFault:
        if self._random.random() < 0.2:
            return RequestFault(0.0, loses_reply=True)
        # Mostly just after the sender has given up.
        waits_seconds = self._cluster.store.timeout_seconds
        return RequestFault(waits_seconds * self._random.choice((0.5, 1.1, 1.3, 1.6)), loses_reply=False)

    def _target_of(self, changes: Sequence[StoreChange]) -> AmbushTarget | None:
        for _, was, now in requested_changes(self._cluster.truth.image, changes):
            if was is None or now is None or now.leader == NO_NODE:
                continue
            joined = sorted(set(now.isr) - set(was.isr))
            if joined:
                return AmbushTarget(now.leader, joined[0])
            if now.leader != was.leader and self._random.random() < ELECTIONS_SHARE:
                return AmbushTarget(now.leader, now.leader)
        return None


def requested_changes(image: ClusterImage, changes: Sequence[StoreChange]) -> list[PartitionChange]:
    """The changes of partitions that a transaction asks for."""
    prefix = f"{ClusterKeys(image.cluster_id).prefix}partitions/"
    puts = [change for change in changes if isinstance(change, Put) and change.key.startswith(prefix)]
    return changed_partitions(image, apply(image, puts, image.revision + 1))
