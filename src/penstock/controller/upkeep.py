"""Upkeep: what the controller should do next, given the current image.

Strategy: the controller is a loop without state. It checks an image, does the most urgent thing, and checks
the image that results. So a newly elected controller continues where the last one stopped, and a decision
that met a conflict is simply made again.

The order of urgency: partitions that have no leader and could have one; fenced brokers that other brokers
wait for; brokers that wait for admission; completed reassignments; leaders on draining brokers; then, if
nothing else is left, whatever makes the cluster safer and more even; and last the deletion of stale prepared
partitions.

Rule 1: the result is a list of decisions about different keys, at most a few transactions, most urgent first.
        `decision.batched` groups them; each of them may fail alone.
Rule 2: a check visits every given partition once. `partitions_to_check` returns the partitions to check
        again: those that changed, or all if a broker or the controller changed.
Rule 3: decisions that copy data are held back while the allowed number of reassignments is under way.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from penstock.config.broker import ReplicationConfig
from penstock.controller.balance import balancing_moves, replication_factor_moves
from penstock.controller.broker_lifecycle import admit, awaits_admission, finish_joining, prepare_admission
from penstock.controller.decision import Decision, compare_term
from penstock.controller.elections import (
    elect_preferred_leader,
    has_live_leader_and_isr,
    repair_leadership,
    replace_draining_leader,
)
from penstock.controller.partitions import TopicPartitionState, every_partition
from penstock.controller.reassignment import complete, reassign
from penstock.host.metadata_store import Compare, Delete
from penstock.limits import REASSIGNMENTS_AT_ONCE, UPKEEP_DECISIONS_MAX
from penstock.metadata.cluster_image import NO_NODE, BrokerRegistration, ClusterImage
from penstock.metadata.image_changes import changed_partitions, changed_topics
from penstock.metadata.keys import ClusterKeys


class Task(StrEnum):
    REPAIR_LEADERSHIP = "repair_leadership"
    PREPARE_ADMISSION = "prepare_admission"
    ADMIT = "admit"
    COMPLETE = "complete"
    REPLACE_DRAINING_LEADER = "replace_draining_leader"
    RAISE_REPLICATION_FACTOR = "raise_replication_factor"
    BALANCE = "balance"
    FINISH_JOINING = "finish_joining"
    ELECT_PREFERRED = "elect_preferred_leader"
    DELETE_STALE = "delete_stale"


class UpkeepStep(NamedTuple):
    task: Task
    decisions: list[Decision]


def partitions_to_check(before: ClusterImage, after: ClusterImage) -> list[TopicPartitionState] | None:
    """The partitions to check again; None: all of them."""
    # A broker, the controller or a broker setting can affect any partition. Identity suffices:
    # unchanged mappings are shared between images.
    if (
        before.brokers is not after.brokers
        or before.controller != after.controller
        or before.broker_overrides is not after.broker_overrides
    ):
        return None
    reconfigured = changed_topics(before, after).reconfigured
    found = [(topic, state) for topic in reconfigured for state in topic.partitions]
    names = {topic.name for topic in reconfigured}
    return found + [
        (change.topic, change.after)
        for change in changed_partitions(before, after)
        if change.after is not None and change.topic.name not in names
    ]


def urgent_work(
    image: ClusterImage, partitions: Iterable[TopicPartitionState] | None = None
) -> UpkeepStep | None:
    """Work that cannot wait, for these partitions (None: all)."""
    looked_at = list(every_partition(image) if partitions is None else partitions)
    return (
        _leadership_repairs(image, looked_at)
        or _admissions(image)
        or _each(Task.COMPLETE, (complete(image, partition) for partition in looked_at))
        or _draining_leader_replacements(image, looked_at)
    )


def deferrable_work(
    image: ClusterImage, config: ReplicationConfig, reassignments_at_once: int = REASSIGNMENTS_AT_ONCE
) -> UpkeepStep | None:
    """Work that can wait. Checks every partition, so the controller loop calls it only now and then, when
    nothing is urgent.
    """
    room = reassignments_at_once - sum(state.is_reassigning for _, state in every_partition(image))
    if room > 0:
        safer = [reassign(image, wanted) for wanted in replication_factor_moves(image, room)]
        if safer:
            return UpkeepStep(Task.RAISE_REPLICATION_FACTOR, safer)
        evener = _balancing_decisions(image, room) if config.auto_balance else []
        if evener:
            return UpkeepStep(Task.BALANCE, evener)
    if config.auto_leader_rebalance:
        work = _preferred_elections(image, config.imbalance_percentage_max)
        if work is not None:
            return work
    return _stale_deletions(image) or (_finished_joins(image) if config.auto_balance else None)


def _leadership_repairs(image: ClusterImage, partitions: Sequence[TopicPartitionState]) -> UpkeepStep | None:
    unsettled = [partition for partition in partitions if not has_live_leader_and_isr(image, partition[1])]
    if not unsettled:
        return None
    # Partitions without an admitted leader come first: they can be neither written nor read.
    unsettled.sort(key=lambda partition: partition[1].leader in image.admitted)
    return _each(Task.REPAIR_LEADERSHIP, (repair_leadership(image, partition) for partition in unsettled))


def _admissions(image: ClusterImage) -> UpkeepStep | None:
    for broker in sorted(image.brokers.values(), key=lambda broker: broker.id):
        if not awaits_admission(broker):
            continue
        first = _each(
            Task.PREPARE_ADMISSION,
            (prepare_admission(image, broker, partition) for partition in every_partition(image)),
        )
        # Admission comes last: no state may still rely on records that the broker may lack.
        return first or UpkeepStep(Task.ADMIT, [admit(image, broker)])
    return None


def _draining_leader_replacements(
    image: ClusterImage, partitions: Iterable[TopicPartitionState]
) -> UpkeepStep | None:
    if not any(broker.is_draining for broker in image.brokers.values()):
        return None
    return _each(
        Task.REPLACE_DRAINING_LEADER, (replace_draining_leader(image, partition) for partition in partitions)
    )


def _new_brokers(image: ClusterImage) -> list[BrokerRegistration]:
    return [image.brokers[node] for node in sorted(image.admitted) if image.brokers[node].is_new]


def _balancing_decisions(image: ClusterImage, room: int) -> list[Decision]:
    """Moves towards brokers that have joined. Once those have their share, operators decide, and their moves
    are kept.
    """
    return [reassign(image, wanted) for wanted in balancing_moves(image, room)] if _new_brokers(image) else []


def _finished_joins(image: ClusterImage) -> UpkeepStep | None:
    """End the joins of new brokers: the cluster is even, and no replica is on its way to them."""
    if any(state.is_reassigning for _, state in every_partition(image)):
        return None
    return _each(Task.FINISH_JOINING, (finish_joining(image, broker) for broker in _new_brokers(image)))


def _preferred_elections(image: ClusterImage, percentage_max: int) -> UpkeepStep | None:
    wanted: dict[int, int] = {}
    missing: dict[int, int] = {}
    for _, state in every_partition(image):
        preferred = state.replicas[0]
        wanted[preferred] = wanted.get(preferred, 0) + 1
        if state.leader not in (preferred, NO_NODE):
            missing[preferred] = missing.get(preferred, 0) + 1
    # Only above the threshold: every change of leader interrupts clients for a moment.
    uneven = {node for node, count in missing.items() if count * 100 > wanted[node] * percentage_max}
    if not uneven:
        return None
    theirs = (partition for partition in every_partition(image) if partition[1].replicas[0] in uneven)
    return _each(Task.ELECT_PREFERRED, (elect_preferred_leader(image, partition) for partition in theirs))


def _stale_deletions(image: ClusterImage) -> UpkeepStep | None:
    """Delete partitions that were prepared under an earlier term: no decision can make them count any more.

    Compares each of them, and the term.
    """
    if image.controller is None:
        return None
    keys, term = ClusterKeys(image.cluster_id), image.controller.term
    stale = (
        Compare(keys.partition(topic_id, index), state.revision)
        for topic_id, states in image.prepared.items()
        for index, state in states.items()
        # Revisions only grow, so a revision below the term was written before the term began.
        if state.revision < term
    )
    compares = compare_term(image)
    return _each(Task.DELETE_STALE, (Decision((*compares, found), (Delete(found.key),)) for found in stale))


def _each(task: Task, found: Iterable[Decision | None]) -> UpkeepStep | None:
    decisions: list[Decision] = []
    for decision in found:
        if decision is not None:
            decisions.append(decision)
            if len(decisions) == UPKEEP_DECISIONS_MAX:
                break
    return UpkeepStep(task, decisions) if decisions else None
