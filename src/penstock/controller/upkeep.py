"""What the controller should do next, given the cluster as it is.

Strategy: the controller is a loop without memory. It looks at an image, does the most urgent thing there
is to do, and looks again at the image that follows. So a controller that has just been elected goes on
where the last one stopped, and a decision that met a conflict is simply made again.

The order of urgency: partitions without a leader that could have one; brokers that are gone and hold up
others; brokers that want in; reassignments that are done; leaders that want out; then, if there is
nothing else, what makes the cluster safer and more even; and at last what was left behind.

Rule 1: what is returned is a list of decisions about different keys, not more than fit a few
        transactions, most urgent first. `decision.packed` groups them; any of them may fail alone.
Rule 2: looking costs one look at every partition that is given. Which ones have to be looked at again
        is `suspects`: those that changed, or all if a broker or the controller did.
Rule 3: what copies data is held back while as much is under way as is allowed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from penstock.controller.balance import even_out, raise_factor
from penstock.controller.brokers import admit, awaits_admission, make_ready, settle_in
from penstock.controller.decision import Decision, term_of
from penstock.controller.elections import is_settled, prefer, relieve, settle
from penstock.controller.partitions import Partition, every_partition
from penstock.controller.reassignment import complete, reassign
from penstock.host.metadata_store import Compare, Delete
from penstock.limits import REASSIGNMENTS_AT_ONCE, UPKEEP_DECISIONS_MAX
from penstock.metadata.facts import NO_NODE, Broker, ClusterImage
from penstock.metadata.image_changes import changed_partitions, changed_topics
from penstock.metadata.keys import Keys


class Task(StrEnum):
    SETTLE = "settle"
    MAKE_READY = "make ready"
    ADMIT = "admit"
    COMPLETE = "complete"
    RELIEVE = "relieve"
    RAISE_FACTOR = "raise factor"
    BALANCE = "balance"
    SETTLE_IN = "settle in"
    PREFER = "prefer"
    SWEEP = "sweep"


class Work(NamedTuple):
    task: Task
    decisions: list[Decision]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepSettings:
    auto_balance: bool = True
    auto_leader_rebalance: bool = True
    imbalance_percentage_max: int = 10
    """Of the partitions that a broker is preferred to lead, how many others may lead."""
    reassignments_at_once: int = REASSIGNMENTS_AT_ONCE


def suspects(before: ClusterImage, after: ClusterImage) -> list[Partition] | None:
    """The partitions to look at again; None: all of them."""
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


def urgent(image: ClusterImage, partitions: Iterable[Partition] | None = None) -> Work | None:
    """What cannot wait, as far as it concerns these partitions (all, for None)."""
    looked_at = list(every_partition(image) if partitions is None else partitions)
    return (
        _settling(image, looked_at)
        or _admitting(image)
        or _each(Task.COMPLETE, (complete(image, partition) for partition in looked_at))
        or _relieving(image, looked_at)
    )


def idle(image: ClusterImage, settings: UpkeepSettings) -> Work | None:
    """What can wait. Looks at every partition: the shell calls it now and then, when nothing is urgent."""
    room = settings.reassignments_at_once - sum(state.is_reassigning for _, state in every_partition(image))
    if room > 0:
        safer = [reassign(image, wanted) for wanted in raise_factor(image, room)]
        if safer:
            return Work(Task.RAISE_FACTOR, safer)
        evener = _shares(image, room) if settings.auto_balance else []
        if evener:
            return Work(Task.BALANCE, evener)
    if settings.auto_leader_rebalance:
        work = _preferring(image, settings.imbalance_percentage_max)
        if work is not None:
            return work
    return _sweeping(image) or (_settling_in(image) if settings.auto_balance else None)


def _settling(image: ClusterImage, partitions: Sequence[Partition]) -> Work | None:
    unsettled = [partition for partition in partitions if not is_settled(image, partition[1])]
    if not unsettled:
        return None
    # Whoever has no leader that is there can neither be written nor read.
    unsettled.sort(key=lambda partition: partition[1].leader in image.admitted)
    return _each(Task.SETTLE, (settle(image, partition) for partition in unsettled))


def _admitting(image: ClusterImage) -> Work | None:
    for broker in sorted(image.brokers.values(), key=lambda broker: broker.id):
        if not awaits_admission(broker):
            continue
        first = _each(
            Task.MAKE_READY,
            (make_ready(image, broker, partition) for partition in every_partition(image)),
        )
        return first or Work(Task.ADMIT, [admit(image, broker)])
    return None


def _relieving(image: ClusterImage, partitions: Iterable[Partition]) -> Work | None:
    if not any(broker.is_draining for broker in image.brokers.values()):
        return None
    return _each(Task.RELIEVE, (relieve(image, partition) for partition in partitions))


def _new(image: ClusterImage) -> list[Broker]:
    return [image.brokers[node] for node in sorted(image.admitted) if image.brokers[node].is_new]


def _shares(image: ClusterImage, room: int) -> list[Decision]:
    """Of brokers that have joined. Once they have them people decide: what they move is not moved back."""
    return [reassign(image, wanted) for wanted in even_out(image, room)] if _new(image) else []


def _settling_in(image: ClusterImage) -> Work | None:
    """All is even, and nothing is on its way to them."""
    if any(state.is_reassigning for _, state in every_partition(image)):
        return None
    return _each(Task.SETTLE_IN, (settle_in(image, broker) for broker in _new(image)))


def _preferring(image: ClusterImage, percentage_max: int) -> Work | None:
    wanted: dict[int, int] = {}
    missing: dict[int, int] = {}
    for _, state in every_partition(image):
        preferred = state.replicas[0]
        wanted[preferred] = wanted.get(preferred, 0) + 1
        if state.leader not in (preferred, NO_NODE):
            missing[preferred] = missing.get(preferred, 0) + 1
    uneven = {node for node, count in missing.items() if count * 100 > wanted[node] * percentage_max}
    if not uneven:
        return None
    theirs = (partition for partition in every_partition(image) if partition[1].replicas[0] in uneven)
    return _each(Task.PREFER, (prefer(image, partition) for partition in theirs))


def _sweeping(image: ClusterImage) -> Work | None:
    """Delete partitions that were prepared under an earlier term: nobody can make them count any more.

    Compares each of them, and the term.
    """
    if image.controller is None:
        return None
    keys, term = Keys(image.cluster_id), image.controller.term
    stale = (
        Compare(keys.partition(topic_id, index), state.revision)
        for topic_id, states in image.prepared.items()
        for index, state in states.items()
        if state.revision < term
    )
    compares = term_of(image)
    return _each(Task.SWEEP, (Decision((*compares, found), (Delete(found.key),)) for found in stale))


def _each(task: Task, found: Iterable[Decision | None]) -> Work | None:
    decisions: list[Decision] = []
    for decision in found:
        if decision is not None:
            decisions.append(decision)
            if len(decisions) == UPKEEP_DECISIONS_MAX:
                break
    return Work(task, decisions) if decisions else None
