"""The leader's side of replication: follower fetches, and followers that lag.

The partition records each follower fetch (replication/leading.py). When a fetch is a reason to change the
ISR, or a follower has lagged for too long, the leader makes a proposal, and this module passes it on to
`isr_updates.py`, which commits it. That does not delay other work of this broker.

A leader that followers report as unreachable (controller/reachability.py) hands leadership over, or proposes
an ISR without them.

Rule 1: a broker that is draining, or is not admitted, is never proposed for an ISR.
Rule 2: a fetch counts only if the fetching process holds the broker's session, as the image shows it. A
        process that was suspended past its session continues to fetch under its old broker epoch. Its log
        proves nothing about the log of the process that is in sync under the same broker id now.
"""

import asyncio

from penstock.broker.cluster.controller_loop import commit_by_halves
from penstock.broker.cluster.metadata_service import MetadataService
from penstock.broker.data.fetch_reader import FetchParams
from penstock.broker.replication.follower_contacts import FollowerContacts
from penstock.broker.replication.isr_updates import IsrUpdates, OwnBrokerEpoch
from penstock.broker.replication.leadership_check import LeadershipCheck
from penstock.controller.decision import Decision, batched
from penstock.controller.partitions import TopicPartitionState
from penstock.controller.reachability import (
    FollowerContact,
    hand_over,
    removable_followers,
    reporters_of,
)
from penstock.errors import ApiError, ErrorCode
from penstock.host.clock import Clock
from penstock.host.metadata_store import StoreRejected, StoreUnavailable
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
        self._log = log
        self._contacts = FollowerContacts()
        self._isr_updates = IsrUpdates(cluster, partitions, own_epoch, tasks, log)
        self.leadership_confirmed = LeadershipCheck(cluster, tasks, clock).leadership_confirmed

    def require_session(self, sender: FetchParams) -> None:
        """Called when a fetch arrives."""
        require_session(self._cluster.image, sender.replica_id, sender.replica_epoch)
        self._contacts.fetched(sender.replica_id, self._clock.monotonic(), sender.wait_ms)

    def fetched(
        self, partition: Partition, params: FetchPartition, sender: FetchParams
    ) -> EpochEndOffset | None:
        image = self._cluster.image
        # Checked again: the fetch may have waited for records while the follower's session ended.
        require_session(image, sender.replica_id, sender.replica_epoch)
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
        """The task that proposes to remove lagging followers from ISRs, and hands leadership over."""
        while True:
            await asyncio.sleep(REPLICA_LAG_CHECK_MS / 1000)
            if self._cluster.store_unavailable_since is not None:
                continue  # no ISR can change without the store
            contact = self._check_contact()
            if contact.cut_off:
                await self._hand_over(contact)
            self._propose_shrinks(contact)

    def _propose_shrinks(self, contact: FollowerContact) -> None:
        now, lag_ms_max = self._clock.monotonic(), self._cluster.config.replication.lag_ms_max
        for partition in tuple(self._partitions):
            if partition.leading is None or partition.offline_error is not None:
                continue
            unreachable, known = frozenset[int](), self._known(partition) if contact.cut_off else None
            if known is not None:
                unreachable = removable_followers(self._cluster.image, known, contact)
            # Until this proposal has an outcome, the removed follower still counts (maximal ISR): the
            # high watermark does not advance without it before the store has committed the smaller ISR.
            proposal = partition.leading.propose_shrink(
                partition.log.log_end_offset, now, lag_ms_max, unreachable
            )
            if proposal is not None:
                self._isr_updates.propose(partition, proposal)

    # Followers that cannot reach this broker

    def _check_contact(self) -> FollowerContact:
        image, node_id = self._cluster.image, self._cluster.config.node.node_id
        reporters = reporters_of(image, node_id)
        return self._contacts.check(image.admitted - {node_id}, reporters, self._clock.monotonic())

    async def _hand_over(self, contact: FollowerContact) -> None:
        """Elect other leaders of the partitions that followers cannot fetch from this broker."""
        decisions = self._hand_over_decisions(contact)
        if not decisions:
            return
        self._log.warning(
            "leader.hands_over",
            partitions=len(decisions),
            cut_off_from=",".join(map(str, sorted(contact.cut_off))),
        )
        try:
            for group in batched(decisions, self._cluster.changes_max):
                await commit_by_halves(self._cluster.commit_once, group)
        except (StoreUnavailable, StoreRejected, ApiError) as problem:
            # The next check decides again, on what the image shows by then.
            self._log.warning("leader.not_handed_over", reason=str(problem))

    def _hand_over_decisions(self, contact: FollowerContact) -> list[Decision]:
        image, node_id = self._cluster.image, self._cluster.config.node.node_id
        led = [
            self._known(partition)
            for partition in tuple(self._partitions)
            if partition.leading is not None and partition.offline_error is None
        ]
        found = (hand_over(image, known, node_id, contact) for known in led if known is not None)
        return [decision for decision in found if decision is not None]

    def _known(self, partition: Partition) -> TopicPartitionState | None:
        """The partition in the image; None: it was deleted."""
        topic, index = self._cluster.image.topics_by_id.get(partition.topic_id), partition.name.partition
        return None if topic is None or index >= len(topic.partitions) else (topic, topic.partitions[index])


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
