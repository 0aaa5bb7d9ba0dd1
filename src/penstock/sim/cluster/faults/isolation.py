"""A fault in which a leader does not reach the other brokers, while clients and the metadata store reach it.

Its session lives, so no broker is fenced. What it leads must be taken over all the same, and what it follows
must go on without it: while nothing else fails, every producer gets an acknowledgement again within a bound,
although the cut lasts.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.metadata.cluster_image import NO_NODE
from penstock.sim.cluster.node import SimNode

if TYPE_CHECKING:
    from penstock.sim.cluster.cluster import SimCluster
    from penstock.sim.cluster.faults.faults import Faults

ISOLATION_SECONDS: Final = 20.0
ISOLATED_SILENCE_SECONDS_MAX: Final = 8.0
"""The longest time without an acknowledgement that a producer may see while the cut lasts."""
POLL_SECONDS: Final = 0.1
CHECKED: Final = "isolate-checked"


class Isolation:
    def __init__(self, cluster: "SimCluster", random: Random, faults: "Faults") -> None:
        self._cluster = cluster
        self._random = random
        self._faults = faults

    async def inject(self) -> bool:
        leader = self._choose_leader()
        if leader is None:
            return False
        # Another fault, or a minimum of three in-sync replicas, may keep producers waiting as well.
        is_calm = self._faults.active == 1 and self._cluster.is_fully_replicated()
        is_checked = is_calm and not self._cluster.plan.changes_minimum
        self._cluster.trace(f"{leader} is isolated{', and producers are checked' if is_checked else ''}")
        links = [
            link
            for other in self._cluster.nodes.values()
            if other is not leader
            for link in ((leader.host, other.host), (other.host, leader.host))
        ]
        for link in links:
            self._cluster.network.cut(*link)
        try:
            await self._await_end(is_checked=is_checked)
        finally:
            for link in links:
                self._cluster.network.restore(*link)
        return True

    def _choose_leader(self) -> SimNode | None:
        cluster, image = self._cluster, self._cluster.truth.image
        leaders = {state.leader for name in cluster.topics for state in image.topics[name].partitions}
        chosen = self._random.choice(sorted(leaders - {NO_NODE}) or [NO_NODE])
        node = cluster.nodes.get(chosen)
        return node if node is not None and node.is_up else None

    async def _await_end(self, *, is_checked: bool) -> None:
        cluster, begun = self._cluster, self._faults.begun
        ends_at = cluster.loop.now + ISOLATION_SECONDS
        counts = {producer: producer.acknowledged for producer in cluster.producers}
        heard_at = dict.fromkeys(counts, cluster.loop.now)
        while cluster.loop.now < ends_at and not self._faults.is_over:
            await asyncio.sleep(POLL_SECONDS)
            is_checked = is_checked and self._faults.begun == begun and cluster.is_producing
            for producer, count in counts.items():
                if producer.acknowledged > count:
                    counts[producer], heard_at[producer] = producer.acknowledged, cluster.loop.now
                elif is_checked and cluster.loop.now - heard_at[producer] > ISOLATED_SILENCE_SECONDS_MAX:
                    cluster.violate(
                        f"{producer.name} has no acknowledgement since {heard_at[producer]:.1f} s"
                    )
        cluster.fault_counts[CHECKED] += is_checked
