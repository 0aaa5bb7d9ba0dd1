"""From what the cluster says of a partition to the part that this broker has in it. Pure."""

from penstock.host.metadata_store import ABSENT
from penstock.log.partition_log import PartitionLog
from penstock.metadata.cluster_image import ClusterImage, PartitionState, Topic
from penstock.metadata.durability import eligible_leaders, min_isr
from penstock.replication.following import UNKNOWN_LEADER, FollowerRole
from penstock.replication.leaderships import Leaderships
from penstock.replication.leading import CommittedPartitionState, LeaderRole
from penstock.types import LeaderEpoch, Offset


def committed_state(image: ClusterImage, topic: Topic, state: PartitionState) -> CommittedPartitionState:
    minimum, elr = min_isr(image, topic, state), eligible_leaders(image, topic, state)
    return CommittedPartitionState(state.replicas, state.isr, state.partition_epoch, minimum, elr)


class Admission:
    """Whether the process that asks has been admitted to its cluster since it started, and is the last.

    Until then it leads nothing, whatever the image says: that speaks of the process before it, which
    may have given followers records under this leader epoch that are not in the log any more. Nobody is
    admitted before all that the earlier process led has had another leader, or none, and another epoch.

    And it leads nothing any more when another process was admitted under its id: that was started
    because this one, which slept, was taken for dead. What the image says is about that one then.
    """

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self.incarnation = ""
        """Of this process, as it registers itself; empty before that."""
        self.epoch = ABSENT
        """The latest broker epoch that was admitted."""
        self._deposed_at = ABSENT
        """The revision of the image then."""

    @property
    def is_deposed(self) -> bool:
        """Others say that our session is over, and the store has not been heard since."""
        return self._deposed_at != ABSENT

    def depose(self, image: ClusterImage) -> None:
        self._deposed_at = image.revision

    def reinstate(self) -> None:
        self._deposed_at = ABSENT

    def __call__(self, image: ClusterImage) -> bool:
        if image.revision > self._deposed_at:
            self.reinstate()  # the store was heard
        if self.is_deposed:
            return False
        broker = image.brokers.get(self._broker_id)
        if self.holds(image):
            assert broker is not None
            self.epoch = broker.broker_epoch
        elif broker is not None and broker.admitted_epoch > self.epoch:
            self.epoch = ABSENT
        return self.epoch != ABSENT

    def holds(self, image: ClusterImage) -> bool:
        """It is admitted now."""
        broker = image.brokers.get(self._broker_id)
        if broker is None or broker.live is None or not broker.is_admitted:
            return False
        return broker.live.incarnation == self.incarnation


def may_always_lead(image: ClusterImage) -> bool:
    """Of a broker that is alone."""
    return True


class Roles:
    """Of one broker, in the cluster as an image has it."""

    def __init__(
        self,
        broker_id: int,
        image: ClusterImage,
        now: float,
        leaderships: Leaderships,
        *,
        may_lead: bool = True,
    ) -> None:
        self._broker_id = broker_id
        self._leaderships = leaderships
        self.may_lead = may_lead
        self.image = image
        self.now = now

    def is_replica(self, state: PartitionState) -> bool:
        return self._broker_id in state.replicas

    def is_leader(self, state: PartitionState) -> bool:
        return state.leader == self._broker_id

    def role(
        self, topic: Topic, state: PartitionState, log: PartitionLog, high_watermark_before: Offset | None
    ) -> LeaderRole | FollowerRole | None:
        """For a new object over this log. `high_watermark_before`: the high watermark of the one before it.

        None: there is no other replica, and nobody to be waited for.
        """
        known = (
            log.log_start_offset
            if high_watermark_before is None
            else min(high_watermark_before, log.log_end_offset)
        )
        if self._leaderships.find(log, state.leader_epoch) is None:
            self._leaderships.end(log)  # of an earlier leader epoch
        if not self.is_leader(state) or not self.may_lead:
            leader = UNKNOWN_LEADER if self.is_leader(state) else state.leader
            return FollowerRole(leader, LeaderEpoch(state.leader_epoch), log, known)
        found = committed_state(self.image, topic, state)
        resumed = self._leaderships.resume(log, state.leader_epoch, found, self.now)
        if resumed is not None:
            return resumed
        if state.replicas == (self._broker_id,):
            return None
        return self._begin(
            log, state, LeaderRole(self._broker_id, found, log.log_end_offset, known, self.now)
        )

    def grown(
        self, topic: Topic, state: PartitionState, log: PartitionLog, high_watermark_before: Offset
    ) -> LeaderRole:
        """The role of a leader that was the only replica. All that it has shown was safe."""
        found = committed_state(self.image, topic, state)
        return self._begin(
            log,
            state,
            LeaderRole(self._broker_id, found, high_watermark_before, high_watermark_before, self.now),
        )

    def _begin(self, log: PartitionLog, state: PartitionState, leading: LeaderRole) -> LeaderRole:
        return self._leaderships.begin(log, state.leader_epoch, leading)
