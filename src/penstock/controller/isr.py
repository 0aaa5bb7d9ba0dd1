"""Validation of ISR proposals, with the checks and the error codes of Kafka's AlterPartition. Pure.

In Kafka the controller validates; here the leader's own broker does, and the controller takes no part. The
leader proposes (replication/leading.py). This module validates the proposal against the broker's image, and
builds the compares of its commit. broker/replication/isr_updates.py commits it by one compare-and-swap, which
the metadata store accepts or rejects.

Rule 1: the decision compares the partition, which implies the leader and its epoch; the leader's own session;
        the session and the registration of each added broker, so that an old incarnation, a fenced broker or
        a draining broker is never added; and the topic and the cluster-wide default settings, which determine
        min.insync.replicas.
Rule 2: if the store's reply is lost, the caller has to find out whether the change was committed. Until then
        the caller counts the old and the new ISR (the maximal ISR).
"""

from typing import NamedTuple

import msgspec

from penstock.controller.decision import NOTHING_TO_DO, Decision
from penstock.controller.partitions import change_partition, compare_settings, with_isr
from penstock.errors import ApiError, ErrorCode
from penstock.host.metadata_store import Compare
from penstock.metadata.cluster_image import ClusterImage, PartitionState, Topic
from penstock.metadata.keys import ClusterKeys
from penstock.types import TopicId


class IsrMember(NamedTuple):
    broker_id: int
    broker_epoch: int
    """The broker epoch in the fetch that made the broker eligible."""


class AlterPartition(NamedTuple):
    """A leader's proposal for one partition, with the fields of Kafka's AlterPartition request."""

    topic_id: TopicId
    partition: int
    leader: IsrMember
    """The broker that proposes."""
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]
    """The whole new ISR, the leader included. For members that were in sync before, the epoch does not
    matter.
    """


def change_isr(image: ClusterImage, proposal: AlterPartition) -> Decision:
    """Validate a proposal. Returns its commit, without changes if the ISR is already as proposed."""
    topic, state = _current(image, proposal)
    proposed = {member.broker_id: member.broker_epoch for member in proposal.isr}
    _validate_proposal(state, proposal, proposed)
    added = [member for member in proposal.isr if member.broker_id not in state.isr]
    draft = msgspec.structs.replace(with_isr(image, topic, state, proposed), is_recovering=False)
    if draft == state:
        return NOTHING_TO_DO
    # The fetch that made a broker eligible came from one incarnation: only that one is compared and added.
    joining = [compare for member in added for compare in _require_eligible(image, member)]
    own = Compare(ClusterKeys(image.cluster_id).live(state.leader), proposal.leader.broker_epoch)
    return change_partition(image, topic, state, draft, own, *joining, *compare_settings(image, topic))


def _current(image: ClusterImage, proposal: AlterPartition) -> tuple[Topic, PartitionState]:
    topic = image.topics_by_id.get(proposal.topic_id)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "The topic is gone.")
    if not 0 <= proposal.partition < len(topic.partitions):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {proposal.partition}.")
    state = topic.partitions[proposal.partition]
    # Older epochs first: a leader that was replaced must get a fencing error and stop, not a retriable one.
    if proposal.leader_epoch < state.leader_epoch:
        detail = f"Leader epoch {proposal.leader_epoch} is over; it is {state.leader_epoch}."
        raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, detail)
    # The epochs are ahead of this image, so the image is stale, not the leader.
    if proposal.leader_epoch > state.leader_epoch or proposal.partition_epoch > state.partition_epoch:
        raise ApiError(ErrorCode.NOT_CONTROLLER, "This broker has not seen that epoch yet.")
    if proposal.leader.broker_id != state.leader:
        detail = f"Broker {proposal.leader.broker_id} does not lead; broker {state.leader} does."
        raise ApiError(ErrorCode.INVALID_REQUEST, detail)
    if proposal.partition_epoch < state.partition_epoch:
        detail = f"Partition epoch {proposal.partition_epoch} is over; it is {state.partition_epoch}."
        raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, detail)
    leader = image.brokers.get(state.leader)
    if leader is None or not leader.is_admitted or leader.broker_epoch != proposal.leader.broker_epoch:
        detail = f"Broker epoch {proposal.leader.broker_epoch} of broker {state.leader} is over."
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, detail)
    return topic, state


def _validate_proposal(state: PartitionState, proposal: AlterPartition, proposed: dict[int, int]) -> None:
    if len(proposed) != len(proposal.isr) or state.leader not in proposed:
        detail = "The proposed ISR must contain the leader, and no broker twice."
        raise ApiError(ErrorCode.INVALID_REQUEST, detail)
    strangers = proposed.keys() - set(state.replicas)
    if strangers:
        detail = f"Brokers {sorted(strangers)} hold no replica."
        raise ApiError(ErrorCode.INVALID_REQUEST, detail)


def _require_eligible(image: ClusterImage, member: IsrMember) -> tuple[Compare, Compare]:
    broker = image.brokers.get(member.broker_id)
    if broker is None or not broker.is_admitted or broker.broker_epoch != member.broker_epoch:
        detail = f"Broker {member.broker_id} is not admitted in epoch {member.broker_epoch}."
        raise ApiError(ErrorCode.INELIGIBLE_REPLICA, detail)
    if broker.is_draining:
        detail = f"Broker {member.broker_id} is being drained."
        raise ApiError(ErrorCode.INELIGIBLE_REPLICA, detail)
    # The registration is compared for its draining flag, the session for its epoch.
    keys = ClusterKeys(image.cluster_id)
    return (
        Compare(keys.live(broker.id), broker.broker_epoch),
        Compare(keys.broker(broker.id), broker.revision),
    )
