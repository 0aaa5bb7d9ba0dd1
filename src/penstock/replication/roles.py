"""Derivation of this broker's role in a partition from the cluster image. Pure."""

from penstock.host.metadata_store import ABSENT
from penstock.log.partition_log import PartitionLog
from penstock.metadata.cluster_image import ClusterImage, PartitionState, Topic
from penstock.metadata.durability import eligible_leaders, min_isr
from penstock.replication.following import UNKNOWN_LEADER, FollowerRole
from penstock.replication.leading import CommittedPartitionState, LeaderRole
from penstock.types import LeaderEpoch, Offset


def committed_state(image: ClusterImage, topic: Topic, state: PartitionState) -> CommittedPartitionState:
    """Extract from an image the state that a leader needs."""
    minimum, elr = min_isr(image, topic, state), eligible_leaders(image, topic, state)
    return CommittedPartitionState(state.replicas, state.isr, state.partition_epoch, minimum, elr)


class Admission:
    """Check whether the cluster has admitted this process since it started, and no later process.

    Until it is admitted, this process leads nothing, whatever the image names as leader: the image describes
    the process before it, which may have given followers records under this leader epoch that are no longer
    in the log. A process is admitted only after every partition that the earlier process led has another
    leader or none, and another leader epoch.

    A process stops leading when another process is admitted under its broker id: that one was started because
    this one was paused and was taken for dead. From then on the image describes the other process.
    """

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self.incarnation = ""
        """Id with which this process registers itself; empty before that."""
        self.epoch = ABSENT
        """Latest broker epoch that was admitted."""
        self._deposed_at = ABSENT
        """Revision of the image when peers reported that the session is over."""

    @property
    def is_deposed(self) -> bool:
        """Whether peers reported the end of the session, and no newer image has arrived since."""
        return self._deposed_at != ABSENT

    def depose(self, image: ClusterImage) -> None:
        """Stop leading until a newer image arrives, or until `reinstate`."""
        self._deposed_at = image.revision

    def reinstate(self) -> None:
        self._deposed_at = ABSENT

    def may_lead(self, image: ClusterImage) -> bool:
        """Apply an image, and return whether this process may lead what the image says that it leads.

        A process that was admitted once may lead also after its session, until an image shows that a later
        process was admitted, or peers report the end of the session.
        """
        if image.revision > self._deposed_at:
            self.reinstate()  # a newer image from the store overrides the peers
        if self.is_deposed:
            return False
        broker = image.brokers.get(self._broker_id)
        if self.is_admitted_in(image):
            assert broker is not None
            self.epoch = broker.broker_epoch
        # Fence: a later process of the same broker id was admitted.
        elif broker is not None and broker.admitted_epoch > self.epoch:
            self.epoch = ABSENT
        return self.epoch != ABSENT

    def is_admitted_in(self, image: ClusterImage) -> bool:
        """Check whether the image shows this process with a session and admitted. Changes nothing."""
        broker = image.brokers.get(self._broker_id)
        if broker is None or broker.live is None or not broker.is_admitted:
            return False
        return broker.live.incarnation == self.incarnation


def may_always_lead(image: ClusterImage) -> bool:
    """Admission of a single broker: there is no cluster to admit it."""
    return True


class Leaderships:
    """The latest `LeaderRole` of each log, which lives as long as its leader epoch.

    A leader may have proposed an ISR whose outcome it does not know. Until the outcome is known, both sets
    count (replication/leading.py). So the leader must remember such a proposal for its whole leader epoch,
    even if it stops and resumes leading meanwhile: the pause does not change the partition in the metadata
    store, so the store may still commit the proposal late. `Partition` objects do not live that long. When
    other brokers depose this broker by mistake (broker/cluster/peer_lease_check.py) and it is reinstated, it
    makes new `Partition` objects under the same leader epoch, which use the same `LeaderRole`.

    Rule: at most one `LeaderRole` is made for a log and leader epoch (`begin` asserts it).
    """

    def __init__(self) -> None:
        self._latest: dict[PartitionLog, tuple[int, LeaderRole]] = {}

    def find(self, log: PartitionLog, leader_epoch: int) -> LeaderRole | None:
        epoch, leading = self._latest.get(log, (leader_epoch, None))
        return leading if epoch == leader_epoch else None

    def begin(self, log: PartitionLog, leader_epoch: int, leading: LeaderRole) -> LeaderRole:
        """Register the first `LeaderRole` of this leader epoch."""
        assert self.find(log, leader_epoch) is None, f"{log} is led in leader epoch {leader_epoch} already"
        self._latest[log] = (leader_epoch, leading)
        return leading

    def resume(
        self, log: PartitionLog, leader_epoch: int, state: CommittedPartitionState, now: float
    ) -> LeaderRole | None:
        """Resume the role with which this process led in the same epoch before; None: there is none."""
        leading = self.find(log, leader_epoch)
        if leading is not None:
            # No other broker leads in this epoch, so nothing can have truncated the log.
            assert leading.high_watermark <= log.log_end_offset, f"{log} lost records of its own leadership"
            leading.resumed(state, now)
        return leading

    def end(self, log: PartitionLog) -> None:
        """Drop the role: the leader epoch is over, or the replica was removed."""
        self._latest.pop(log, None)


class Roles:
    """Roles of one broker, in the cluster as one image describes it."""

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
        """Return the role for a new `Partition` over this log; None: this broker is the only replica.

        `high_watermark_before`: the high watermark of the `Partition` before it, if there was one.
        """
        known = (
            log.log_start_offset
            if high_watermark_before is None
            else min(high_watermark_before, log.log_end_offset)
        )
        if self._leaderships.find(log, state.leader_epoch) is None:
            self._leaderships.end(log)  # its role belongs to an earlier leader epoch
        if not self.is_leader(state) or not self.may_lead:
            # The image names this broker, but it is not admitted (yet, or any more): it follows and fetches
            # from no broker.
            leader = UNKNOWN_LEADER if self.is_leader(state) else state.leader
            return FollowerRole(leader, LeaderEpoch(state.leader_epoch), log, known)
        found = committed_state(self.image, topic, state)
        # Before the single-replica case: a role with a pending proposal must be resumed, not replaced.
        resumed = self._leaderships.resume(log, state.leader_epoch, found, self.now)
        if resumed is not None:
            return resumed
        if state.replicas == (self._broker_id,):
            return None
        leading = LeaderRole(self._broker_id, found, log.log_end_offset, known, self.now)
        return self._leaderships.begin(log, state.leader_epoch, leading)

    def grown(
        self, topic: Topic, state: PartitionState, log: PartitionLog, high_watermark_before: Offset
    ) -> LeaderRole:
        """Role of a leader that was the only replica until now. Everything visible on it is committed."""
        found = committed_state(self.image, topic, state)
        leading = LeaderRole(self._broker_id, found, high_watermark_before, high_watermark_before, self.now)
        return self._leaderships.begin(log, state.leader_epoch, leading)
