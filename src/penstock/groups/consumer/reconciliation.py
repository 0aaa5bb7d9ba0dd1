"""The reconciliation of a member: the steps from its current assignment to its target, one per heartbeat.

    1  Partitions outside the target are revoked; the member must confirm that it stopped reading them.
    2  Then the member reaches the epoch of the target, and is assigned the free partitions of it.
    3  Partitions that other members hold follow when those members have revoked them.

Rule 1: a partition is never assigned while another member may still read it.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.groups.consumer.assignment import EMPTY, Assignment, difference, intersection, overlaps, union
from penstock.groups.consumer.consumer_member import MemberAssignment, MemberState
from penstock.types import TopicId

IsFree = Callable[[TopicId, int], bool]


class TargetAssignment(NamedTuple):
    epoch: int
    assignment: Assignment


def reconcile(
    current_assignment: MemberAssignment, target: TargetAssignment, owned: Assignment | None, is_free: IsFree
) -> MemberAssignment:
    """Compute the next assignment. `owned` is what the member reports to own; None: not reported."""
    match current_assignment.state:
        case MemberState.STABLE:
            if current_assignment.epoch == target.epoch:
                return current_assignment
            return _next_assignment(current_assignment, current_assignment.epoch, target, owned, is_free)
        case MemberState.UNREVOKED:
            if _may_still_own(owned, current_assignment.revoking):
                return current_assignment
            # All pending partitions are revoked: the member advances to the next epoch.
            return _next_assignment(current_assignment, current_assignment.epoch + 1, target, owned, is_free)
        case MemberState.UNRELEASED:
            return _next_assignment(current_assignment, current_assignment.epoch, target, owned, is_free)
        case MemberState.UNKNOWN:
            # The member has revoked everything; see `validate_member_epoch`.
            return _next_assignment(current_assignment, target.epoch, target, EMPTY, is_free)


def _may_still_own(owned: Assignment | None, partitions: Assignment) -> bool:
    return owned is None or overlaps(owned, partitions)


def _next_assignment(
    current_assignment: MemberAssignment,
    epoch: int,
    target: TargetAssignment,
    owned: Assignment | None,
    is_free: IsFree,
) -> MemberAssignment:
    kept = intersection(current_assignment.assigned, target.assignment)
    revoking = difference(current_assignment.assigned, kept)
    # Without a report of `owned` the member may still read, so the partitions stay in `revoking`.
    if revoking and _may_still_own(owned, revoking):
        return _moved(current_assignment, epoch, MemberState.UNREVOKED, kept, revoking)
    missing = difference(target.assignment, kept)
    free = _free(missing, is_free)
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED
    return _moved(current_assignment, target.epoch, state, union(kept, free), EMPTY)


def _free(missing: Assignment, is_free: IsFree) -> Assignment:
    free = (
        (topic_id, frozenset(partition for partition in partitions if is_free(topic_id, partition)))
        for topic_id, partitions in missing.items()
    )
    return {topic_id: partitions for topic_id, partitions in free if partitions}


def _moved(
    current_assignment: MemberAssignment,
    epoch: int,
    state: MemberState,
    assigned: Assignment,
    revoking: Assignment,
) -> MemberAssignment:
    has_moved = epoch != current_assignment.epoch
    previous = current_assignment.epoch if has_moved else current_assignment.previous_epoch
    return MemberAssignment(epoch, previous, state, assigned, revoking)
