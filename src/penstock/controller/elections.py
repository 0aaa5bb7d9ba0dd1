"""Who leads, and who is out of sync because its broker is gone.

`settled` is the one rule, for fencing and for electing: of the in-sync replicas those count whose
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

from penstock.controller.decision import Decision, alive, term_of
from penstock.controller.partitions import Partition, decided, existing_partition, with_isr
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.durability import allows_unclean_election, eligible, kept_its_records
from penstock.metadata.facts import NO_NODE, ClusterImage, PartitionState, Topic, without


class ElectionType(IntEnum):
    """Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


def is_settled(image: ClusterImage, state: PartitionState) -> bool:
    """Quick, and right for almost all partitions almost always. Otherwise see `settled`."""
    return state.leader in image.admitted and image.admitted.issuperset(state.isr)


def settled(image: ClusterImage, topic: Topic, state: PartitionState) -> PartitionState:
    """The draft of a partition as it should be, given who is admitted; the same if it is so."""
    present = [node for node in state.isr if node in image.admitted]
    if not present:
        return _without_isr(image, topic, state)
    draft = state if len(present) == len(state.isr) else _shrunk(image, topic, state, present)
    return draft if state.leader in present else _led_by(draft, _first(image, draft, present))


def settle(image: ClusterImage, partition: Partition) -> Decision | None:
    """None: it is as it should be, or nothing can be done."""
    topic, state = partition
    if is_settled(image, state):
        return None
    draft = settled(image, topic, state)
    return None if draft == state else decided(image, topic, state, draft, *term_of(image))


def is_needed(image: ClusterImage, state: PartitionState, election: ElectionType) -> bool:
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
        draft = _anybody(image, topic, state)
    return decided(image, topic, state, draft, *term_of(image))


def prefer(image: ClusterImage, partition: Partition) -> Decision | None:
    """Give a partition back to its preferred leader; None: it has it, or cannot."""
    topic, state = partition
    preferred = state.replicas[0]
    if state.leader == preferred or preferred not in state.isr or not _may_lead(image, preferred):
        return None
    return decided(image, topic, state, _led_by(state, preferred), *term_of(image))


def relieve(image: ClusterImage, partition: Partition) -> Decision | None:
    """Take a partition from a leader that is being drained; None: it is not, or nobody else can lead."""
    topic, state = partition
    broker = image.brokers.get(state.leader)
    if broker is None or not broker.is_draining:
        return None
    others = [node for node in state.isr if _may_lead(image, node)]
    if not others:
        return None
    return decided(image, topic, state, _led_by(state, _first(image, state, others)), *term_of(image))


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
            may_lead = [node for node in eligible(image, topic, state) if node in able]
            if not may_lead:
                return None
            others = [_first(image, state, may_lead)]
        draft = _led_by(state, _first(image, state, others))
    elif state.leader in able:
        others = list(without(state.isr, (broker_id,)))
        draft = state
    else:
        return None  # the controller is about to elect somebody
    if broker_id in state.isr:
        draft = with_isr(image, topic, draft, others, barred=frozenset({broker_id}))
    elr = without(draft.elr, (broker_id,))
    draft = msgspec.structs.replace(
        draft,
        elr=elr,
        last_known_elr=without(draft.last_known_elr, (broker_id,)),
        min_isr_changes=draft.min_isr_changes if elr else 0,
    )
    if draft == state and state.leader_epoch > fetched_epoch:
        return None
    return decided(image, topic, state, draft, *alive(image, (broker_id,)), begins_epoch=True)


def is_withdrawn(image: ClusterImage, state: PartitionState, broker_id: int, *, fetched_epoch: int) -> bool:
    """Whether another leads, and nothing rests on the copy that this broker has."""
    return (
        state.leader in image.admitted
        and broker_id not in (state.leader, *state.isr, *state.elr)
        and state.leader_epoch > fetched_epoch
    )


def _preferred(image: ClusterImage, name: str, state: PartitionState) -> PartitionState:
    preferred = state.replicas[0]
    if not is_needed(image, state, ElectionType.PREFERRED):
        detail = f"Broker {preferred} leads partition {state.index} of topic {name} already."
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, detail)
    if preferred not in state.isr or not _may_lead(image, preferred):
        detail = f"Broker {preferred} is not in sync, or not there, or being drained."
        raise ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, detail)
    return _led_by(state, preferred)


def _anybody(image: ClusterImage, topic: Topic, state: PartitionState) -> PartitionState:
    if not is_needed(image, state, ElectionType.UNCLEAN):
        detail = f"Partition {state.index} of topic {topic.name} is led by broker {state.leader}."
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, detail)
    clean = settled(image, topic, state)
    if clean.leader != NO_NODE:
        return clean
    there = [node for node in state.replicas if node in image.admitted]
    if not there:
        detail = f"None of brokers {list(state.replicas)} is there to lead."
        raise ApiError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, detail)
    return _unclean(image, state, there)


def _without_isr(image: ClusterImage, topic: Topic, state: PartitionState) -> PartitionState:
    """Nobody who is in sync is admitted."""
    may_lead = [node for node in eligible(image, topic, state) if node in image.admitted]
    if may_lead:
        leader = _first(image, state, may_lead)
        return _led_by(_shrunk(image, topic, state, [leader]), leader)
    there = [node for node in state.replicas if node in image.admitted]
    if there and allows_unclean_election(image, topic) and not _somebody_waits(image, topic, state):
        return _unclean(image, state, there)
    return _led_by(state, NO_NODE)


def _shrunk(image: ClusterImage, topic: Topic, state: PartitionState, isr: list[int]) -> PartitionState:
    barred = frozenset(node for node in state.isr if _has_lost_records(image, topic, state.index, node))
    return with_isr(image, topic, state, isr, barred=barred)


def _unclean(image: ClusterImage, state: PartitionState, there: list[int]) -> PartitionState:
    """Somebody leads who may lack what was acknowledged: best who had it all when last known."""
    known = [node for node in there if node in state.last_known_elr]
    leader = _first(image, state, known or there)
    return msgspec.structs.replace(
        state,
        leader=leader,
        isr=(leader,),
        elr=(),
        last_known_elr=(),
        is_recovering=True,
        min_isr_changes=0,
    )


def _led_by(draft: PartitionState, leader: int) -> PartitionState:
    return msgspec.structs.replace(draft, leader=leader)


def _first(image: ClusterImage, state: PartitionState, candidates: Iterable[int]) -> int:
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
    return not kept_its_records(image, topic, index, broker)


def _somebody_waits(image: ClusterImage, topic: Topic, state: PartitionState) -> bool:
    for node in (*state.isr, *eligible(image, topic, state)):
        broker = image.brokers.get(node)
        if broker is None or broker.live is None:
            continue
        if not _has_lost_records(image, topic, state.index, node):
            return True
    return False
