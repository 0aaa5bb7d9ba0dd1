"""A fault that waits for the moment that matters: a change of a partition is on its way to the store.

Whoever decides about a partition has to do with a store that may carry the decision out long after its answer
was waited for. What happens to the brokers meanwhile is what makes that dangerous, and by chance alone it
seldom happens just then. So here the two come together: the change arrives after its sender gave up, or
nobody is told that it did, and somebody whom it makes a leader or takes in is cut off, sleeps or dies.

Rule: only what may happen anyway is done. Whether anything is wrong with it say the same checks as always.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.host.metadata_store import Put, StoreChange
from penstock.metadata.cluster_image import NO_NODE
from penstock.metadata.image_builder import apply
from penstock.metadata.image_changes import changed_partitions
from penstock.metadata.keys import ClusterKeys
from penstock.sim.store import RequestFault

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster

CHANGE_SECONDS_MAX: Final = 20.0
ELECTIONS_SHARE: Final = 0.3
"""There are many more elections than brokers that join."""


class AmbushTarget(NamedTuple):
    leader: int
    """As it would be after the change."""
    victim: int
    """Who would lead from then on, or be in sync."""


class Ambush:
    def __init__(self, cluster: "SimCluster", random: Random) -> None:
        self._cluster = cluster
        self._random = random

    async def target(self) -> AmbushTarget | None:
        """Who has gone into it; None: nobody came, or another ambush is laid already."""
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
        # Mostly just after whoever asked has given up.
        waits_seconds = self._cluster.store.timeout_seconds
        return RequestFault(waits_seconds * self._random.choice((0.5, 1.1, 1.3, 1.6)), loses_reply=False)

    def _target_of(self, changes: Sequence[StoreChange]) -> AmbushTarget | None:
        image = self._cluster.truth.image
        prefix = f"{ClusterKeys(image.cluster_id).prefix}partitions/"
        puts = [change for change in changes if isinstance(change, Put) and change.key.startswith(prefix)]
        after = apply(image, puts, image.revision + 1)
        for _, was, now in changed_partitions(image, after):
            if was is None or now is None or now.leader == NO_NODE:
                continue
            joined = sorted(set(now.isr) - set(was.isr))
            if joined:
                return AmbushTarget(now.leader, joined[0])
            if now.leader != was.leader and self._random.random() < ELECTIONS_SHARE:
                return AmbushTarget(now.leader, now.leader)
        return None
