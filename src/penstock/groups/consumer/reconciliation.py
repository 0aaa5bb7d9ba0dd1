"""How a member comes to what it shall read, one heartbeat at a time.

    1  what it reads and shall not read is taken from it: it is told, and must say that it stopped
    2  then it comes to the epoch of the target, and gets what is free of it
    3  what others still hold it gets when they have given it up

Rule 1: a partition is given to nobody while somebody else may still read it.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.groups.consumer.assignment import EMPTY, Assignment, common, joined, overlaps, without
from penstock.groups.consumer.consumer_member import MemberState, Position
from penstock.types import TopicId

IsFree = Callable[[TopicId, int], bool]


class Target(NamedTuple):
    epoch: int
    assignment: Assignment


def reconcile(position: Position, target: Target, owned: Assignment | None, is_free: IsFree) -> Position:
    """The next position. `owned` is what the member says it reads; None: it did not say."""
    match position.state:
        case MemberState.STABLE:
            if position.epoch == target.epoch:
                return position
            return _next(position, position.epoch, target, owned, is_free)
        case MemberState.UNREVOKED:
            if _may_own(owned, position.revoking):
                return position
            return _next(position, position.epoch + 1, target, owned, is_free)
        case MemberState.UNRELEASED:
            return _next(position, position.epoch, target, owned, is_free)
        case MemberState.UNKNOWN:
            # It was made to give up everything; see `check_epoch`.
            return _next(position, target.epoch, target, EMPTY, is_free)


def _may_own(owned: Assignment | None, partitions: Assignment) -> bool:
    return owned is None or overlaps(owned, partitions)


def _next(
    position: Position, epoch: int, target: Target, owned: Assignment | None, is_free: IsFree
) -> Position:
    kept = common(position.assigned, target.assignment)
    revoking = without(position.assigned, kept)
    if revoking and _may_own(owned, revoking):
        return _moved(position, epoch, MemberState.UNREVOKED, kept, revoking)
    wanted = without(target.assignment, kept)
    free = _free(wanted, is_free)
    state = MemberState.STABLE if free == wanted else MemberState.UNRELEASED
    return _moved(position, target.epoch, state, joined(kept, free), EMPTY)


def _free(wanted: Assignment, is_free: IsFree) -> Assignment:
    free = (
        (topic_id, frozenset(partition for partition in partitions if is_free(topic_id, partition)))
        for topic_id, partitions in wanted.items()
    )
    return {topic_id: partitions for topic_id, partitions in free if partitions}


def _moved(
    position: Position, epoch: int, state: MemberState, assigned: Assignment, revoking: Assignment
) -> Position:
    previous = position.previous_epoch if epoch == position.epoch else position.epoch
    return Position(epoch, previous, state, assigned, revoking)
