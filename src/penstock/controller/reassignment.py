"""Reassignment: moving replicas from brokers to brokers.

Strategy: the replicas of a partition become the target replicas (the preferred leader first) followed by the
replicas to be removed. When the whole target is in sync, the others are removed. If the leader is among them,
the first admitted replica of the target takes over. The target is therefore never stored twice.

Rule 1: no replica leaves the ISR before the target is in sync. A reassignment that replaces or cancels
        another starts from the replicas before that one. It is rejected if it would remove every in-sync
        replica that could lead.
Rule 2: a reassignment compares the partition and the term. Brokers of the target need not be up now.
"""

from typing import NamedTuple

import msgspec

from penstock.controller.decision import NOTHING_TO_DO, Decision, compare_term
from penstock.controller.elections import repaired
from penstock.controller.partitions import (
    Partition,
    change_partition,
    every_partition,
    existing_partition,
    with_isr,
)
from penstock.controller.placement import Replicas, validate_replicas
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.cluster_image import NO_NODE, ClusterImage, PartitionState, Topic, without


class Reassignment(NamedTuple):
    topic: str
    partition: int
    target: Replicas


def reassign(
    image: ClusterImage, reassignment: Reassignment, *, allow_factor_change: bool = True
) -> Decision:
    """AlterPartitionReassignments with replicas. No changes if the replicas are already as requested."""
    topic, state = existing_partition(image, reassignment.topic, reassignment.partition)
    validate_replicas(image, [reassignment.target], size=len(reassignment.target))
    # Replicas still being added by an earlier reassignment do not count as existing ones: this one replaces
    # it.
    before = without(state.replicas, state.adding)
    if not allow_factor_change and len(reassignment.target) != len(before):
        detail = f"The partition has {len(before)} replicas; {len(reassignment.target)} were given."
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, detail)
    return _reassign_to(image, (topic, state), reassignment.target)


def cancel(image: ClusterImage, name: str, index: int) -> Decision:
    """AlterPartitionReassignments without replicas: return to the replicas before the reassignment."""
    topic, state = existing_partition(image, name, index)
    if not state.is_reassigning:
        detail = f"Partition {index} of topic {name} is not being reassigned."
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, detail)
    before = without(state.replicas, state.adding)
    return _reassign_to(image, (topic, state), before)


def complete(image: ClusterImage, partition: Partition) -> Decision | None:
    """End a reassignment whose target is in sync; None: there is none, or the target is not in sync yet."""
    topic, state = partition
    if not state.is_reassigning:
        return None
    draft = _completed(image, topic, state)
    return None if draft is state else change_partition(image, topic, state, draft, *compare_term(image))


def reassigning_partitions(image: ClusterImage) -> list[Partition]:
    return [(topic, state) for topic, state in every_partition(image) if state.is_reassigning]


def _reassign_to(image: ClusterImage, partition: Partition, target: Replicas) -> Decision:
    topic, state = partition
    before = without(state.replicas, state.adding)
    removing = without(before, target)
    draft = msgspec.structs.replace(
        state, replicas=(*target, *removing), adding=without(target, before), removing=removing
    )
    draft = _completed(image, topic, _without_cancelled_additions(image, topic, state, draft))
    if draft == state:
        return NOTHING_TO_DO
    return change_partition(image, topic, state, draft, *compare_term(image))


def _without_cancelled_additions(
    image: ClusterImage, topic: Topic, state: PartitionState, draft: PartitionState
) -> PartitionState:
    """The draft without the replicas whose addition the new target cancels."""
    isr = [node for node in draft.replicas if node in state.isr]
    has_leader = state.leader in image.admitted
    if state.isr and (not isr or (has_leader and image.admitted.isdisjoint(isr))):
        detail = (
            "No unfenced broker with an in-sync replica would be left. Wait until more replicas are in sync."
        )
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
    draft = with_isr(image, topic, draft, isr)
    if draft.leader != NO_NODE and draft.leader not in isr:
        draft = repaired(image, topic, draft)
    return draft


def _completed(image: ClusterImage, topic: Topic, state: PartitionState) -> PartitionState:
    """The draft of the ended reassignment; unchanged if the target is not in sync, or has no admitted broker
    to take over.
    """
    target = state.target
    if not state.is_reassigning or not set(target) <= set(state.isr):
        return state
    # Dropping the leader now would leave a partition that no admitted broker can lead.
    if state.leader not in target and image.admitted.isdisjoint(target):
        return state
    draft = msgspec.structs.replace(state, replicas=target, adding=(), removing=())
    draft = with_isr(image, topic, draft, target)
    return draft if state.leader in target else repaired(image, topic, draft)
