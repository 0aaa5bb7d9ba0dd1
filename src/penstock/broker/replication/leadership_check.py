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

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.host.clock import Clock
from penstock.host.metadata_store import StoreRejected, StoreUnavailable
from penstock.host.tasks import Tasks
from penstock.limits import LEADERSHIP_CHECKS_MAX, LEADERSHIP_CLAIM_MS_MAX, LEADERSHIP_CLAIMS_MAX
from penstock.replication.partition import Partition

K = TypeVar("K")


class LeadershipCheck:
    def __init__(self, cluster: MetadataService, tasks: Tasks, clock: Clock) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._clock = clock
        self._unconfirmed: dict[tuple[Partition, str], float] = {}
        """Claims, and when they were doubted. In that order."""
        self._confirmed: dict[Partition, float] = {}
        """When it was asked what was answered with us. A partition is of one leader epoch."""
        self._checking: set[Partition] = set()

    def leadership_confirmed(self, partition: Partition, claim: str) -> bool:
        """Whether a client may be told this of a partition. `claim`: also says of which client it is."""
        now = self._clock.monotonic()
        self._forget_old(now)
        doubted_at = self._unconfirmed.get((partition, claim))
        if doubted_at is None:
            if len(self._unconfirmed) < LEADERSHIP_CLAIMS_MAX:
                self._unconfirmed[partition, claim] = now
        elif self._confirmed.get(partition, -inf) >= doubted_at:
            del self._unconfirmed[partition, claim]
            return True
        self._begin_check(partition)
        return False

    def _forget_old(self, now: float) -> None:
        _drop_before(now - LEADERSHIP_CLAIM_MS_MAX / 1000, self._unconfirmed)
        _drop_before(now - LEADERSHIP_CLAIM_MS_MAX / 1000, self._confirmed)

    def _begin_check(self, partition: Partition) -> None:
        """If that is not being asked. Whoever is doubted comes again, and so does the question."""
        if partition not in self._checking and len(self._checking) < LEADERSHIP_CHECKS_MAX:
            self._checking.add(partition)
            self._tasks.start(self._check(partition), f"who leads {partition.name}")

    async def _check(self, partition: Partition) -> None:
        began_at = self._clock.monotonic()
        try:
            leads = await self._cluster.leader_in_store(partition.topic_id, partition.name.partition)
        except (StoreUnavailable, StoreRejected):
            return  # nothing is certain without it
        finally:
            self._checking.discard(partition)
        if leads == (self._cluster.config.node.node_id, partition.leader_epoch):
            self._confirmed.pop(partition, None)
            self._confirmed[partition] = began_at


def _drop_before(time: float, known: dict[K, float]) -> None:
    """`known`: in the order of their times."""
    while known and next(iter(known.values())) < time:
        del known[next(iter(known))]
