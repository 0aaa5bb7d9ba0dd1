"""What would make a client give up is said by a leader only if it leads for certain.

A producer that is told that its sequence is out of order ends, and a consumer whose place is out of range
begins anew. Where another has been elected, and this broker has not heard of it, both may be untrue: the new
leader has what this one lacks.

Strategy: whoever is to be told is first told that this broker does not lead. It looks for the leader, and
asks again. Meanwhile the metadata store is asked who leads. Once it has said, to a question that was asked
after the client was doubted, that it is this broker, the client is told.

Rule 1: a claim is doubted anew each time it is made, and each client for itself. Only what it relied on
        before it was doubted is covered: what it learned from a successor in the moments until it asked again
        is not. So those are few, and who comes later is doubted anew.
Rule 2: of claims that nobody has made again in time there may be many. The others are kept; who finds no room
        is doubted again.
"""

from math import inf
from typing import TypeVar

from penstock.broker.cluster.metadata_service import Cluster
from penstock.host.clock import Clock
from penstock.host.metadata_store import StoreAway, StoreRefuses
from penstock.host.tasks import Tasks
from penstock.limits import DOUBT_MS_MAX, DOUBTS_ASKED_MAX, DOUBTS_MAX
from penstock.replication.partition import Partition

K = TypeVar("K")


class Doubts:
    def __init__(self, cluster: Cluster, tasks: Tasks, clock: Clock) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._clock = clock
        self._doubted: dict[tuple[Partition, str], float] = {}
        """Claims, and when they were doubted. In that order."""
        self._confirmed: dict[Partition, float] = {}
        """When it was asked what was answered with us. A partition is of one leader epoch."""
        self._asking: set[Partition] = set()

    def is_certain(self, partition: Partition, claim: str) -> bool:
        """Whether a client may be told this of a partition. `claim`: also says of which client it is."""
        now = self._clock.monotonic()
        self._forget_old(now)
        doubted_at = self._doubted.get((partition, claim))
        if doubted_at is None:
            if len(self._doubted) < DOUBTS_MAX:
                self._doubted[partition, claim] = now
        elif self._confirmed.get(partition, -inf) >= doubted_at:
            del self._doubted[partition, claim]
            return True
        self._ask_about(partition)
        return False

    def _forget_old(self, now: float) -> None:
        _drop_before(now - DOUBT_MS_MAX / 1000, self._doubted)
        _drop_before(now - DOUBT_MS_MAX / 1000, self._confirmed)

    def _ask_about(self, partition: Partition) -> None:
        """If that is not being asked. Whoever is doubted comes again, and so does the question."""
        if partition not in self._asking and len(self._asking) < DOUBTS_ASKED_MAX:
            self._asking.add(partition)
            self._tasks.start(self._ask(partition), f"who leads {partition.name}")

    async def _ask(self, partition: Partition) -> None:
        asked_at = self._clock.monotonic()
        try:
            leads = await self._cluster.leader_in_store(partition.topic_id, partition.name.partition)
        except (StoreAway, StoreRefuses):
            return  # nothing is certain without it
        finally:
            self._asking.discard(partition)
        if leads == (self._cluster.config.node.node_id, partition.leader_epoch):
            self._confirmed.pop(partition, None)
            self._confirmed[partition] = asked_at


def _drop_before(time: float, known: dict[K, float]) -> None:
    """`known`: in the order of their times."""
    while known and next(iter(known.values())) < time:
        del known[next(iter(known))]
