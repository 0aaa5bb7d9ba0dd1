"""The leader's side of replication: follower fetches, and followers that lag.

The partition records each follower fetch (replication/leading.py). When a fetch is a reason to change the
ISR, or a follower has lagged for too long, the leader makes a proposal, and this module passes it on to
`isr_updates.py`, which commits it. That does not delay other work of this broker.

Rule 1: a broker that is draining, or is not admitted, is never proposed for an ISR.
Rule 2: a fetch counts only if the fetching process holds the broker's session, as the image shows it. A
        process that was suspended past its session continues to fetch under its old broker epoch. Its log
        proves nothing about the log of the process that is in sync under the same broker id now.
"""

import asyncio

from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.data.fetch_reader import FetchParams
from penstock.broker.replication.isr_updates import IsrUpdates, OwnBrokerEpoch
from penstock.broker.replication.leadership_check import LeadershipCheck
from penstock.errors import ApiError, ErrorCode
from penstock.host.clock import Clock
from penstock.host.tasks import Tasks
from penstock.limits import REPLICA_LAG_CHECK_MS
from penstock.metadata.cluster_image import NO_NODE, ClusterImage
from penstock.observability.logs import Log
from penstock.protocol.messages.fetch import EpochEndOffset, FetchPartition
from penstock.replication.leading import NO_BROKER_EPOCH, FollowerFetchState
from penstock.replication.partition import Partition
from penstock.replication.replica_manager import ReplicaManager
from penstock.types import Offset


class ClusterFollowers:
    def __init__(
        self,
        cluster: MetadataService,
        partitions: ReplicaManager,
        own_epoch: OwnBrokerEpoch,
        tasks: Tasks,
        clock: Clock,
        log: Log,
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._clock = clock
        self._isr_updates = IsrUpdates(cluster, partitions, own_epoch, tasks, log)
        self.leadership_confirmed = LeadershipCheck(cluster, tasks, clock).leadership_confirmed

    def require_session(self, broker_id: int, broker_epoch: int) -> None:
        require_session(self._cluster.image, broker_id, broker_epoch)

    def fetched(
        self, partition: Partition, params: FetchPartition, sender: FetchParams
    ) -> EpochEndOffset | None:
        image = self._cluster.image
        # Checked again: the fetch may have waited for records while the follower's session ended.
        self.require_session(sender.replica_id, sender.replica_epoch)
        fetched = FollowerFetchState(
            sender.replica_id,
            sender.replica_epoch,
            Offset(params.fetch_offset),
            _epoch_to_join_with(image, sender.replica_id),
            Offset(params.log_start_offset),
        )
        # May advance the high watermark. The partition counts acknowledgements over the maximal ISR
        # (committed plus proposed), so it is safe that the proposal below has an unknown outcome for a while.
        outcome = partition.follower_fetched(params, fetched, self._clock.monotonic())
        if outcome.proposal is not None:
            self._isr_updates.propose(partition, outcome.proposal)
        return outcome.diverging

    @property
    def is_rack_aware(self) -> bool:
        return self._cluster.config.replication.is_rack_aware

    def nearest(self, partition: Partition, rack: str, offset: Offset) -> int:
        """Find the replica that a consumer of this rack should read from, or NO_NODE (the leader).

        The replica is in sync, in this rack, and has records at that offset. Of several such replicas, the
        one with the highest acknowledged end is returned.
        """
        leading, brokers = partition.leading, self._cluster.image.brokers
        if leading is None or rack == self._cluster.config.node.rack:
            return NO_NODE
        near = [
            member
            for member in leading.isr
            if (broker := brokers.get(member)) is not None
            and broker.rack == rack
            and leading.acknowledged_end(member) >= offset >= partition.log.log_start_offset
        ]
        return max(near, key=leading.acknowledged_end, default=NO_NODE)

    async def run(self) -> None:
        """The task that proposes to remove lagging followers from ISRs."""
        while True:
            await asyncio.sleep(REPLICA_LAG_CHECK_MS / 1000)
            if self._cluster.store_unavailable_since is not None:
                continue  # no ISR can change without the store
            now, lag_ms_max = self._clock.monotonic(), self._cluster.config.replication.lag_ms_max
            for partition in tuple(self._partitions):
                if partition.leading is None or partition.offline_error is not None:
                    continue
                # Until this proposal has an outcome, the removed follower still counts (maximal ISR): the
                # high watermark does not advance without it before the store has committed the smaller ISR.
                proposal = partition.leading.propose_shrink(partition.log.log_end_offset, now, lag_ms_max)
                if proposal is not None:
                    self._isr_updates.propose(partition, proposal)


def require_session(image: ClusterImage, broker_id: int, broker_epoch: int) -> None:
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"there is no broker {broker_id}")
    if broker.live is None or broker.live.epoch != broker_epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH, f"broker epoch {broker_epoch} of broker {broker_id} has no session"
        )


def _epoch_to_join_with(image: ClusterImage, broker_id: int) -> int:
    """The broker epoch to propose this follower with; NO_BROKER_EPOCH if it may not join an ISR."""
    broker = image.brokers.get(broker_id)
    if broker is None or not broker.is_admitted or broker.is_draining:
        return NO_BROKER_EPOCH
    return broker.broker_epoch
