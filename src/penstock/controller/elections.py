"""Leader elections, and removal of fenced brokers from the ISR.

`repaired` is the one rule, for fencing and for electing. Of the in-sync replicas, only those on admitted
brokers count, and the first of these in the order of the assignment leads. If none is left, an eligible
leader leads (`metadata/durability.py`). If there is no eligible leader either, the partition has no leader,
and the ISR stays as it is: one of its members has to come back. Where the topic allows unclean elections, any
other replica may lead then, and the records that it lacks are lost.

Rule 1: a broker that is not admitted leads no partition, and is in no ISR that has another admitted member:
        the leader would wait for the fenced broker.
Rule 2: a clean leader was in sync, or eligible, and is admitted, at the moment the decision commits.
Rule 3: a draining broker leads only partitions that no other broker can lead.
Rule 4: while a broker that has the committed records has a session and only waits to be admitted, no broker
        without these records is elected, unless an operator requests it. This, and that the settings allow
        an unclean election, must hold at the moment the decision commits (`partitions.change_partition`).
Rule 5: a replica whose copy is damaged leaves the ISR and the ELR by its own decision (`withdraw`), as long
        as an admitted broker is left in one of them.
Rule 6: of several candidates the one leads that most replicas of the partition can reach
        (`reachability.py`). A broker that some of them cannot reach is not elected because it is preferred.
"""

from collections.abc import Iterable
from enum import IntEnum

import msgspec

from penstock.controller.decision import Decision, compare_sessions, compare_term
from penstock.controller.partitions import TopicPartitionState, change_partition, existing_partition, with_isr
from penstock.controller.reachability import has_stable_connections, out_of_reach
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.cluster_image import NO_NODE, ClusterImage, PartitionState, Topic, without
from penstock.metadata.durability import allows_unclean_election, eligible_leaders, has_acknowledged_records


class ElectionType(IntEnum):
    """Election types, with Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


def has_live_leader_and_isr(image: ClusterImage, state: PartitionState) -> bool:
    """Quick check that is true for almost all partitions almost always. If it is false, see `repaired`."""
    return state.leader in image.admitted and image.admitted.issuperset(state.isr)


def repaired(image: ClusterImage, topic: Topic, state: PartitionState) -> PartitionState:
    """The draft of a partition as it should be, given the admitted brokers; unchanged if nothing is to be
    done.
    """
    present = [node for node in state.isr if node in image.admitted]
    if not present:
        return _elect_outside_isr(image, topic, state)
    draft = state if len(present) == len(state.isr) else _with_isr_of(image, topic, state, present)
    return (
        draft if state.leader in present else _with_leader(draft, _first_in_assignment(image, draft, present))
    )


def repair_leadership(image: ClusterImage, partition: TopicPartitionState) -> Decision | None:
    """Elect a leader and shrink the ISR as needed; None: nothing is to be done, or nothing can be done."""
    topic, state = partition
    if has_live_leader_and_isr(image, state):
        return None
    draft = repaired(image, topic, state)
    return None if draft == state else change_partition(image, topic, state, draft, *compare_term(image))


def is_election_needed(image: ClusterImage, state: PartitionState, election: ElectionType) -> bool:
    """Whether ElectLeaders has anything to do; not whether the election is possible."""
    if election is ElectionType.PREFERRED:
        return state.leader != state.replicas[0]
    return state.leader not in image.admitted


def elect(image: ClusterImage, name: str, index: int, election: ElectionType) -> Decision:
    """ElectLeaders. Compares the partition, the session of the elected broker, and the term."""
    topic, state = existing_partition(image, name, index)
    if election is ElectionType.PREFERRED:
        draft = _preferred(image, name, state)
    else:
        draft = _unclean_election(image, topic, state)
    return change_partition(image, topic, state, draft, *compare_term(image))


def elect_preferred_leader(image: ClusterImage, partition: TopicPartitionState) -> Decision | None:
    """Return leadership to the preferred leader; None: it leads already, or cannot lead."""
    topic, state = partition
    preferred = state.replicas[0]
    if state.leader == preferred or preferred not in state.isr or not _may_lead(image, preferred):
        return None
    # Followers of the preferred leader could not fetch from it, and it would hand leadership over again.
    if not has_stable_connections(image, state, preferred):
        return None
    return change_partition(image, topic, state, _with_leader(state, preferred), *compare_term(image))


def replace_draining_leader(image: ClusterImage, partition: TopicPartitionState) -> Decision | None:
    """Elect another leader in place of a draining one; None: the leader is not draining, or no other can
    lead.
    """
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
    image: ClusterImage, partition: TopicPartitionState, broker_id: int, *, fetched_epoch: int
) -> Decision | None:
    """Remove a replica whose copy is damaged from the ISR, and elect another leader if it leads.

    None if that is done already, or if no other admitted broker has the committed records. In the second case
    the replica stays: its copy is the only one.

    The broker makes this decision about itself, and compares its own session instead of the controller's
    term.

    `fetched_epoch`: the last leader epoch in which the broker may have fetched for this copy. The leader may
    process that fetch after this decision, and would add the broker to the ISR again. So the partition gets a
    new leader epoch, in which such a fetch is rejected.
    """
    topic, state = partition
    other_admitted = image.admitted - {broker_id}
    if broker_id not in image.admitted:
        return None  # the controller first corrects what relies on this copy, then admits the broker again
    if state.leader == broker_id:
        others = [node for node in state.isr if node in other_admitted]
        if not others:
            may_lead = [node for node in eligible_leaders(image, topic, state) if node in other_admitted]
            if not may_lead:
                return None
            others = [_first_in_assignment(image, state, may_lead)]
        draft = _with_leader(state, _first_in_assignment(image, state, others))
    elif state.leader in other_admitted:
        others = list(without(state.isr, (broker_id,)))
        draft = state
    else:
        return None  # the controller is about to elect another leader
    if broker_id in state.isr:
        draft = with_isr(image, topic, draft, others, ineligible=frozenset({broker_id}))
    elr = without(draft.elr, (broker_id,))
    draft = msgspec.structs.replace(
        draft,
        elr=elr,
        last_known_elr=without(draft.last_known_elr, (broker_id,)),
        min_isr_changes=draft.min_isr_changes if elr else 0,
    )
    # Nothing to change, and fetches sent for the damaged copy are already fenced by a newer leader epoch.
    if draft == state and state.leader_epoch > fetched_epoch:
        return None
    return change_partition(
        image, topic, state, draft, *compare_sessions(image, (broker_id,)), bumps_leader_epoch=True
    )


def is_withdrawn(image: ClusterImage, state: PartitionState, broker_id: int, *, fetched_epoch: int) -> bool:
    """Whether another broker leads, and the partition no longer relies on this broker's copy."""
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
        detail = f"Broker {preferred} is not in sync, is fenced, or is being drained."
        raise ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, detail)
    if apart := out_of_reach(image, state, preferred):
        detail = f"Broker {preferred} and brokers {sorted(apart)} cannot reach each other."
        raise ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, detail)
    return _with_leader(state, preferred)


def _unclean_election(image: ClusterImage, topic: Topic, state: PartitionState) -> PartitionState:
    if not is_election_needed(image, state, ElectionType.UNCLEAN):
        detail = f"Partition {state.index} of topic {topic.name} is led by broker {state.leader}."
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, detail)
    # If a clean leader is possible after all, no record need be lost.
    clean = repaired(image, topic, state)
    if clean.leader != NO_NODE:
        return clean
    admitted = [node for node in state.replicas if node in image.admitted]
    if not admitted:
        detail = f"All of brokers {list(state.replicas)} are fenced, so none can lead."
        raise ApiError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, detail)
    return _with_unclean_leader(image, state, admitted)


def _elect_outside_isr(image: ClusterImage, topic: Topic, state: PartitionState) -> PartitionState:
    """Elect a leader while no in-sync replica is admitted. An unclean leader is the last resort."""
    may_lead = [node for node in eligible_leaders(image, topic, state) if node in image.admitted]
    if may_lead:
        leader = _first_in_assignment(image, state, may_lead)
        # The eligible leader was outside of the ISR, and is its only member from now on.
        return _with_leader(_with_isr_of(image, topic, state, [leader]), leader)
    admitted = [node for node in state.replicas if node in image.admitted]
    if admitted and allows_unclean_election(image, topic) and not _has_returning_leader(image, topic, state):
        return _with_unclean_leader(image, state, admitted)
    # The ISR stays as it is: its members are the only brokers known to have the committed records.
    return _with_leader(state, NO_NODE)


def _with_isr_of(image: ClusterImage, topic: Topic, state: PartitionState, isr: list[int]) -> PartitionState:
    """Replace the ISR, as `with_isr` does: a member that has lost records becomes no eligible leader."""
    ineligible = frozenset(node for node in state.isr if _has_lost_records(image, topic, state.index, node))
    return with_isr(image, topic, state, isr, ineligible=ineligible)


def _with_unclean_leader(image: ClusterImage, state: PartitionState, admitted: list[int]) -> PartitionState:
    """Elect a leader that may lack acknowledged records, preferably one last known to have them all."""
    known = [node for node in admitted if node in state.last_known_elr]
    leader = _first_in_assignment(image, state, known or admitted)
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
    # Draining brokers last, then those that other replicas cannot reach. `min` keeps the order of the
    # assignment among the rest.
    in_order = [node for node in state.replicas if node in chosen]
    return min(
        in_order,
        key=lambda node: (image.brokers[node].is_draining, len(out_of_reach(image, state, node))),
    )


def _may_lead(image: ClusterImage, node: int) -> bool:
    return node in image.admitted and not image.brokers[node].is_draining


def _has_lost_records(image: ClusterImage, topic: Topic, index: int, node: int) -> bool:
    """Whether the broker has a session, is not admitted yet, and lacks records that it had acknowledged."""
    broker = image.brokers.get(node)
    if broker is None or node in image.admitted or broker.live is None:
        return False
    return not has_acknowledged_records(image, topic, index, broker)


def _has_returning_leader(image: ClusterImage, topic: Topic, state: PartitionState) -> bool:
    """Whether a broker with all committed records has a session and only waits for its admission (rule 4)."""
    for node in (*state.isr, *eligible_leaders(image, topic, state)):
        broker = image.brokers.get(node)
        if broker is None or broker.live is None:
            continue
        if not _has_lost_records(image, topic, state.index, node):
            return True
    return False
