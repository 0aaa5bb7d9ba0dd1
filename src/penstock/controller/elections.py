"""Who leads, and who is out of sync because its broker is gone.

`repaired` is the one rule, for fencing and for electing: of the in-sync replicas those count whose
brokers are admitted, and the first of them leads, in the order of the assignment. If none is left, an
eligible leader is (`metadata/durability.py`); if none of those, nobody leads, and the in-sync replicas
stay as they are: one of them has to come back. Where the topic allows it, anybody else may lead then,
and what he lacks is lost.

Rule 1: a broker that is not admitted leads nothing, and is in sync nowhere that another admitted
        broker is: the leader would wait for it.
Rule 2: a clean leader was in sync, or eligible, and is admitted, at the moment the decision commits.
Rule 3: who is being drained leads only what nobody else can.
Rule 4: while somebody who has the records is there and only waits to be admitted, nobody is elected
        who has not, unless a person asks for it.
Rule 5: a replica whose copy is damaged leaves the ISR and the ELR by its own decision (`withdraw`), as long
        as an admitted broker is left in one of them.
"""

from collections.abc import Iterable
from enum import IntEnum

import msgspec

from penstock.controller.decision import Decision, compare_sessions, compare_term
from penstock.controller.partitions import Partition, change_partition, existing_partition, with_isr
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.cluster_image import NO_NODE, ClusterImage, PartitionState, Topic, without
from penstock.metadata.durability import allows_unclean_election, eligible_leaders, has_acknowledged_records


class ElectionType(IntEnum):
    """Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


def has_live_leader_and_isr(image: ClusterImage, state: PartitionState) -> bool:
    """Quick, and right for almost all partitions almost always. Otherwise see `repaired`."""
    return state.leader in image.admitted and image.admitted.issuperset(state.isr)


def repaired(image: ClusterImage, topic: Topic, state: PartitionState) -> PartitionState:
    """The draft of a partition as it should be, given who is admitted; the same if it is so."""
    present = [node for node in state.isr if node in image.admitted]
    if not present:
        return _elect_outside_isr(image, topic, state)
    draft = state if len(present) == len(state.isr) else _with_shrunk_isr(image, topic, state, present)
    return (
        draft if state.leader in present else _with_leader(draft, _first_in_assignment(image, draft, present))
    )


def repair_leadership(image: ClusterImage, partition: Partition) -> Decision | None:
    """None: it is as it should be, or nothing can be done."""
    topic, state = partition
    if has_live_leader_and_isr(image, state):
        return None
    draft = repaired(image, topic, state)
    return None if draft == state else change_partition(image, topic, state, draft, *compare_term(image))


def is_election_needed(image: ClusterImage, state: PartitionState, election: ElectionType) -> bool:
    """Whether ElectLeaders has anything to do; not whether it can be done."""
    if election is ElectionType.PREFERRED:
        return state.leader != state.replicas[0]
    return state.leader not in image.admitted


def elect(image: ClusterImage, name: str, index: int, election: ElectionType) -> Decision:
    """ElectLeaders. Compares the partition, the session of who is elected, and the term."""
    topic, state = existing_partition(image, name, index)
    if election is ElectionType.PREFERRED:
        draft = _preferred(image, name, state)
    else:
        draft = _unclean_election(image, topic, state)
    return change_partition(image, topic, state, draft, *compare_term(image))


def elect_preferred_leader(image: ClusterImage, partition: Partition) -> Decision | None:
    """Give a partition back to its preferred leader; None: it has it, or cannot."""
    topic, state = partition
    preferred = state.replicas[0]
    if state.leader == preferred or preferred not in state.isr or not _may_lead(image, preferred):
        return None
    return change_partition(image, topic, state, _with_leader(state, preferred), *compare_term(image))


def replace_draining_leader(image: ClusterImage, partition: Partition) -> Decision | None:
    """Take a partition from a leader that is being drained; None: it is not, or nobody else can lead."""
    topic, state = partition
    broker = image.brokers.get(state.leader)
    if broker is None or not broker.is_draining:
        return None
    others = [node for node in state.isr if _may_lead(image, node)]
    if not others:
        return None
    return change_partition(
        image,
        topic,
        state,
        _with_leader(state, _first_in_assignment(image, state, others)),
        *compare_term(image),
    )


def withdraw(
    image: ClusterImage, partition: Partition, broker_id: int, *, fetched_epoch: int
) -> Decision | None:
    """Take a replica whose copy is damaged out of sync, and let another lead if it leads; None: that is
    done, or nobody else who is admitted has what was committed. Then it stays: its copy is all there is.

    The broker decides it for itself, and compares its own session instead of the controller's term.

    `fetched_epoch`: the last leader epoch under which the broker may have fetched for this copy. The
    leader may see that fetch later than this decision, and would take the broker in again. So the
    partition gets another leader epoch, in which such a fetch is rejected.
    """
    topic, state = partition
    able = image.admitted - {broker_id}
    if broker_id not in image.admitted:
        return None  # it is admitted again when the controller has put right what rests on it
    if state.leader == broker_id:
        others = [node for node in state.isr if node in able]
        if not others:
            may_lead = [node for node in eligible_leaders(image, topic, state) if node in able]
            if not may_lead:
                return None
            others = [_first_in_assignment(image, state, may_lead)]
        draft = _with_leader(state, _first_in_assignment(image, state, others))
    elif state.leader in able:
        others = list(without(state.isr, (broker_id,)))
        draft = state
    else:
        return None  # the controller is about to elect somebody
    if broker_id in state.isr:
        draft = with_isr(image, topic, draft, others, ineligible=frozenset({broker_id}))
    elr = without(draft.elr, (broker_id,))
    draft = msgspec.structs.replace(
        draft,
        elr=elr,
        last_known_elr=without(draft.last_known_elr, (broker_id,)),
        min_isr_changes=draft.min_isr_changes if elr else 0,
    )
    if draft == state and state.leader_epoch > fetched_epoch:
        return None
    return change_partition(
        image, topic, state, draft, *compare_sessions(image, (broker_id,)), bumps_leader_epoch=True
    )


def is_withdrawn(image: ClusterImage, state: PartitionState, broker_id: int, *, fetched_epoch: int) -> bool:
    """Whether another leads, and nothing rests on the copy that this broker has."""
    return (
        state.leader in image.admitted
        and broker_id not in (state.leader, *state.isr, *state.elr)
        and state.leader_epoch > fetched_epoch
    )


def _preferred(image: ClusterImage, name: str, state: PartitionState) -> PartitionState:
    preferred = state.replicas[0]
    if not is_election_needed(image, state, ElectionType.PREFERRED):
        detail = f"Broker {preferred} leads partition {state.index} of topic {name} already."
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, detail)
    if preferred not in state.isr or not _may_lead(image, preferred):
        detail = f"Broker {preferred} is not in sync, or not there, or being drained."
        raise ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, detail)
    return _with_leader(state, preferred)


def _unclean_election(image: ClusterImage, topic: Topic, state: PartitionState) -> PartitionState:
    if not is_election_needed(image, state, ElectionType.UNCLEAN):
        detail = f"Partition {state.index} of topic {topic.name} is led by broker {state.leader}."
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, detail)
    clean = repaired(image, topic, state)
    if clean.leader != NO_NODE:
        return clean
    there = [node for node in state.replicas if node in image.admitted]
    if not there:
        detail = f"None of brokers {list(state.replicas)} is there to lead."
        raise ApiError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, detail)
    return _with_unclean_leader(image, state, there)


def _elect_outside_isr(image: ClusterImage, topic: Topic, state: PartitionState) -> PartitionState:
    """Nobody who is in sync is admitted."""
    may_lead = [node for node in eligible_leaders(image, topic, state) if node in image.admitted]
    if may_lead:
        leader = _first_in_assignment(image, state, may_lead)
        return _with_leader(_with_shrunk_isr(image, topic, state, [leader]), leader)
    there = [node for node in state.replicas if node in image.admitted]
    if there and allows_unclean_election(image, topic) and not _has_returning_leader(image, topic, state):
        return _with_unclean_leader(image, state, there)
    return _with_leader(state, NO_NODE)


def _with_shrunk_isr(
    image: ClusterImage, topic: Topic, state: PartitionState, isr: list[int]
) -> PartitionState:
    ineligible = frozenset(node for node in state.isr if _has_lost_records(image, topic, state.index, node))
    return with_isr(image, topic, state, isr, ineligible=ineligible)


def _with_unclean_leader(image: ClusterImage, state: PartitionState, there: list[int]) -> PartitionState:
    """Somebody leads who may lack what was acknowledged: best who had it all when last known."""
    known = [node for node in there if node in state.last_known_elr]
    leader = _first_in_assignment(image, state, known or there)
    return msgspec.structs.replace(
        state,
        leader=leader,
        isr=(leader,),
        elr=(),
        last_known_elr=(),
        is_recovering=True,
        min_isr_changes=0,
    )


def _with_leader(draft: PartitionState, leader: int) -> PartitionState:
    return msgspec.structs.replace(draft, leader=leader)


def _first_in_assignment(image: ClusterImage, state: PartitionState, candidates: Iterable[int]) -> int:
    chosen = set(candidates)
    in_order = [node for node in state.replicas if node in chosen]
    return min(in_order, key=lambda node: image.brokers[node].is_draining)


def _may_lead(image: ClusterImage, node: int) -> bool:
    return node in image.admitted and not image.brokers[node].is_draining


def _has_lost_records(image: ClusterImage, topic: Topic, index: int, node: int) -> bool:
    """It is there again, not admitted yet, and lacks what it had acknowledged."""
    broker = image.brokers.get(node)
    if broker is None or node in image.admitted or broker.live is None:
        return False
    return not has_acknowledged_records(image, topic, index, broker)


def _has_returning_leader(image: ClusterImage, topic: Topic, state: PartitionState) -> bool:
    for node in (*state.isr, *eligible_leaders(image, topic, state)):
        broker = image.brokers.get(node)
        if broker is None or broker.live is None:
            continue
        if not _has_lost_records(image, topic, state.index, node):
            return True
    return False
