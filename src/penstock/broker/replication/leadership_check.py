"""Leadership check before errors that most clients do not retry.

OUT_OF_ORDER_SEQUENCE_NUMBER ends a producer, and OFFSET_OUT_OF_RANGE makes a consumer reset its position.
Both errors may be wrong if the controller has elected another leader and this broker has not received that
image yet: the new leader has records that this broker lacks.

Strategy: the leader replies NOT_LEADER_OR_FOLLOWER to the first request that would get such an error (a
claim). The client then looks for the leader and retries. Meanwhile this broker reads the partition's leader
from the metadata store. If that read began after the claim was made, and names this broker, the retry gets
the real error.

Rule 1: every claim needs a read that began after it, separately for each client and again for each error. The
        read does not cover what the client received from a new leader between the claim and the retry:
        LEADERSHIP_CLAIM_MS_MAX keeps that interval short, and a later retry counts as a new claim.
Rule 2: at most LEADERSHIP_CLAIMS_MAX claims wait for a retry, because many clients never retry. Claims that
        wait are not evicted for new ones. A claim that does not fit is not recorded, so that its client is
        rejected again.
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
        """Claims, and when each was first made; oldest first."""
        self._confirmed: dict[Partition, float] = {}
        """When the read began that confirmed this broker as leader; oldest first. A Partition object lives
        for one leader epoch, so that a confirmation never applies to another epoch."""
        self._checking: set[Partition] = set()

    def leadership_confirmed(self, partition: Partition, claim: str) -> bool:
        """Check whether this broker may return a final error about a partition.

        `claim` identifies the error and the client.
        """
        now = self._clock.monotonic()
        _drop_before(now - LEADERSHIP_CLAIM_MS_MAX / 1000, self._unconfirmed)
        _drop_before(now - LEADERSHIP_CLAIM_MS_MAX / 1000, self._confirmed)
        doubted_at = self._unconfirmed.get((partition, claim))
        if doubted_at is None:
            if len(self._unconfirmed) < LEADERSHIP_CLAIMS_MAX:
                self._unconfirmed[partition, claim] = now
        elif self._confirmed.get(partition, -inf) >= doubted_at:
            # A read that began before the claim could have missed an election that the client has seen.
            del self._unconfirmed[partition, claim]
            return True
        self._begin_check(partition)
        return False

    def _begin_check(self, partition: Partition) -> None:
        """Start a check unless one is running. If too many run, the client's retry starts it."""
        if partition not in self._checking and len(self._checking) < LEADERSHIP_CHECKS_MAX:
            self._checking.add(partition)
            self._tasks.start(self._check(partition), f"who leads {partition.name}")

    async def _check(self, partition: Partition) -> None:
        began_at = self._clock.monotonic()  # before the read: the result is as old as the read's start
        try:
            leads = await self._cluster.leader_in_store(partition.topic_id, partition.name.partition)
        except (StoreUnavailable, StoreRejected):
            return  # without the store nothing is confirmed; the client's retry starts another check
        finally:
            self._checking.discard(partition)
        if leads == (self._cluster.config.node.node_id, partition.leader_epoch):
            self._confirmed.pop(partition, None)  # inserted again at the end: the dict stays in time order
            self._confirmed[partition] = began_at


def _drop_before(time: float, known: dict[K, float]) -> None:
    """Delete the entries that are older than `time`. `known` is ordered by time."""
    while known and next(iter(known.values())) < time:
        del known[next(iter(known))]
